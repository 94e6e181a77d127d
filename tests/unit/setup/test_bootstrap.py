"""The set-up installs what changed and nothing else, and says clearly why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wiring import bootstrap
from wiring.bootstrap import Refusal, Step, choose_route, ensure, plan

PROJECT = """
[project]
name = "toy"
requires-python = ">=3.11"
dependencies = ["base==1"]
[project.optional-dependencies]
lab = ["lab==1"]
test = ["test==1"]
cpu = ["torch==1"]
cpu-nodeps = ["sglang==1"]
gpu = ["sglang==1"]
browser = ["driver==1"]
[project.scripts]
toy = "toy:main"
[tool.wiring.bootstrap]
tools = ["pip==1"]
cpu-constraints = ["six==1"]
[tool.wiring.peers]
packages = ["torch==2"]
packages-nodeps = ["trainer==1"]
constraints = ["seven==1"]
"""


class FakePip:
    """Notes what pip would have installed; fails at the step named in `fails`."""

    def __init__(self, fails: str = "", says: str = ""):
        self.calls, self.fails, self.says = [], fails, says

    def __call__(self, command, log, step):
        self.calls.append((step.name, command))
        log.write_text(self.says)
        return 1 if step.name == self.fails else 0

    @property
    def names(self):
        return [name for name, _ in self.calls]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder in which making an environment means making a folder."""

    def create(environment: Path, clear: bool) -> None:
        if clear:
            shutil.rmtree(environment)
        (environment / "bin").mkdir(parents=True)
        (environment / "made").touch()

    monkeypatch.setattr(bootstrap, "create_environment", create)
    monkeypatch.setattr(bootstrap, "environment_fits", lambda environment: (environment / "made").exists())
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def install(project, route="cpu", browser=False, **pip) -> FakePip:
    runner = FakePip(**pip)
    ensure(project, route, browser=browser, runner=runner, say=lambda text: None)
    return runner


def edit(project, old, new):
    path = project / "pyproject.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_cpu_route_installs_sglang_without_its_requirements(project):
    calls = dict(install(project).calls)
    assert list(calls) == ["tools", "packages", "sglang", "workbook"]
    assert calls["packages"][-4:] == ["base==1", "lab==1", "test==1", "torch==1"]
    assert calls["sglang"][-2:] == ["--no-deps", "sglang==1"]
    assert calls["workbook"][-4:] == ["--no-deps", "--no-build-isolation", "-e", "."]
    assert all(command[0] == str(project / ".venv" / "bin" / "python") for command in calls.values())


def test_gpu_route_installs_sglang_as_it_comes(project):
    calls = dict(install(project, "gpu").calls)
    assert list(calls) == ["tools", "packages", "workbook"]
    assert calls["packages"][-1] == "sglang==1"
    assert "torch==1" not in calls["packages"]
    assert "--no-deps" not in calls["packages"]


def test_peers_have_an_environment_of_their_own(project):
    install(project)
    calls = dict(install(project, bootstrap.PEERS).calls)
    assert list(calls) == ["tools", "packages", "trainers"]
    assert calls["packages"][-1] == "torch==2"
    assert calls["trainers"][-2:] == ["--no-deps", "trainer==1"]
    assert all(command[0] == str(project / ".venv-peers" / "bin" / "python") for command in calls.values())
    listed = Path(calls["packages"][calls["packages"].index("--constraint") + 1])
    assert listed.read_text() == "six==1\nseven==1\n"
    assert install(project, bootstrap.PEERS).names == install(project).names == []
    edit(project, '"trainer==1"', '"trainer==2"')
    assert install(project, bootstrap.PEERS).names == ["trainers"]
    assert install(project).names == []


def test_what_drives_a_browser_is_installed_where_it_is_asked_for_and_then_stays(project):
    assert "browser" not in install(project).names
    calls = dict(install(project, browser=True).calls)
    assert list(calls) == ["browser"] and calls["browser"][-1] == "driver==1"
    assert install(project, browser=True).names == install(project).names == []
    edit(project, '"driver==1"', '"driver==2"')
    assert install(project).names == []
    assert install(project, browser=True).names == ["browser"]


def test_the_route_of_make_cannot_be_the_peers():
    with pytest.raises(Refusal, match="no route 'peers'"):
        choose_route("peers", lambda: False)


def test_nothing_is_installed_twice(project):
    install(project)
    assert install(project).names == []


@pytest.mark.parametrize(
    ("old", "new", "steps"),
    [
        ('"base==1"', '"base==2"', ["packages"]),
        ('"test==1"', '"test==1", "more==1"', ["packages"]),
        ('cpu-nodeps = ["sglang==1"]', 'cpu-nodeps = ["sglang==2"]', ["sglang"]),
        ('gpu = ["sglang==1"]', 'gpu = ["sglang==2"]', []),
        ('toy = "toy:main"', 'toy = "toy:other"', ["workbook"]),
        ('"pip==1"', '"pip==2"', ["tools"]),
        ('"six==1"', '"six==1", "more==1"', ["packages"]),
    ],
)
def test_a_changed_pin_is_installed_and_nothing_else(project, old, new, steps):
    install(project)
    edit(project, old, new)
    assert install(project).names == steps
    assert install(project).names == []


def test_constraints_reach_pip(project):
    edit(project, '"six==1"', '"six==1", "more==2"')
    command = dict(install(project).calls)["packages"]
    listed = Path(command[command.index("--constraint") + 1])
    assert listed.read_text() == "six==1\nmore==2\n"


def test_another_route_or_folder_starts_afresh(project):
    install(project)
    assert install(project, "gpu").names == ["tools", "packages", "workbook"]
    moved = project.rename(project.with_name("moved"))
    assert install(moved, "gpu").names == ["tools", "packages", "workbook"]


def test_an_environment_that_lost_its_python_is_made_again(project):
    install(project)
    (project / ".venv" / "made").unlink()
    assert install(project).names == ["tools", "packages", "sglang", "workbook"]


def test_a_failed_step_is_told_and_only_it_and_what_follows_run_again(project):
    with pytest.raises(Refusal, match="(?s)pip could not install sglang.*install-sglang.log.*ERROR: no such wheel"):
        install(project, fails="sglang", says="line\nERROR: no such wheel\n")
    assert install(project).names == ["sglang", "workbook"]


@pytest.mark.parametrize(
    "says", ["Temporary failure in name resolution", "ConnectTimeoutError(...)", "Max retries exceeded"]
)
def test_no_network_is_told_as_such(project, says):
    with pytest.raises(Refusal, match="The package index could not be reached"):
        install(project, fails="packages", says=f"WARNING: Retrying ... {says}\n")


def test_a_full_disk_is_told_as_such(project):
    with pytest.raises(Refusal, match="The disk is full"):
        install(project, fails="packages", says="OSError: [Errno 28] No space left on device\n")


def test_an_interrupted_installation_goes_on_and_repairs_what_was_cut_off(project):
    class Cut(FakePip):
        def __call__(self, command, log, step):
            super().__call__(command, log, step)
            if step.name == "packages":
                site = project / ".venv" / "lib" / "python3.11" / "site-packages"
                for name, files in (("whole-1", ("METADATA", "RECORD")), ("cut-1", ("METADATA",))):
                    (site / f"{name}.dist-info").mkdir(parents=True)
                    for file in files:
                        (site / f"{name}.dist-info" / file).touch()
                raise KeyboardInterrupt
            return 0

    with pytest.raises(KeyboardInterrupt):
        ensure(project, "cpu", runner=Cut(), say=lambda text: None)
    told = []
    runner = FakePip()
    ensure(project, "cpu", runner=runner, say=told.append)
    assert runner.names == ["packages", "sglang", "workbook"]
    assert "The last installation was interrupted; going on. Again: cut-1." in told
    site = project / ".venv" / "lib" / "python3.11" / "site-packages"
    assert [path.name for path in site.iterdir()] == ["whole-1.dist-info"]


def test_progress_says_what_how_long_and_where(project):
    told = []
    ensure(project, "cpu", runner=FakePip(), say=told.append)
    text = "\n".join(told)
    assert "Installing packages: torch and all libraries; usually 2 to 4 minutes, 1.6 GB to download, " in text
    assert str(project / ".venv" / "install-packages.log") in text


def test_a_stamp_that_cannot_be_read_counts_as_none(project):
    install(project)
    (project / ".venv" / bootstrap.STAMP).write_text("{")
    assert install(project).names == ["tools", "packages", "sglang", "workbook"]


@pytest.mark.parametrize(
    ("asked", "device", "route"),
    [("", False, "cpu"), ("", True, "gpu"), ("auto", True, "gpu"), ("cpu", True, "cpu"), ("gpu", False, "gpu")],
)
def test_route(asked, device, route):
    assert choose_route(asked, lambda: device) == route


def test_route_that_there_is_not():
    with pytest.raises(Refusal, match="no route 'tpu'"):
        choose_route("tpu", lambda: False)


@pytest.mark.parametrize(
    ("script", "found"),
    [("echo 'GPU 0: some device'", True), ("echo 'No devices were found'", False), ("exit 9", False)],
)
def test_a_device_is_what_the_driver_lists(tmp_path, monkeypatch, script, found):
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a device of its own")
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert bootstrap.has_cuda_device() is found


def test_an_old_python_is_refused_with_what_to_do(project, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    with pytest.raises(Refusal, match="needs 3.11 or newer.*apt install python3"):
        ensure(project, "cpu", runner=FakePip(), say=print)
    assert not (project / ".venv").exists()


def test_requires_python_is_kept(project, monkeypatch):
    edit(project, ">=3.11", ">=3.99")
    with pytest.raises(Refusal, match="asks for >=3.99"):
        install(project)


def test_a_real_environment_is_made_and_recognised(tmp_path):
    environment = tmp_path / "with space" / ".venv"
    assert not bootstrap.environment_fits(environment)
    bootstrap.create_environment(environment, clear=False)
    assert bootstrap.environment_fits(environment)
    (environment / "bin" / "python").unlink()
    assert not bootstrap.environment_fits(environment)


def test_real_runner_logs_and_gives_the_status(tmp_path, capsys):
    (tmp_path / ".venv").mkdir()
    step = Step("toy", "a toy", "1 s", ())
    log = tmp_path / ".venv" / "toy.log"
    command = [sys.executable, "-c", "import sys; print('told'); print('wrong', file=sys.stderr); sys.exit(3)"]
    assert bootstrap.run_logged(command, log, step) == 3
    assert sorted(log.read_text().split()) == ["told", "wrong"]


def test_runs_as_a_script_with_nothing_but_the_standard_library():
    code = (
        "import runpy, sys; sys.argv = ['bootstrap', '--help']\n"
        f"try: runpy.run_path({bootstrap.__file__!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "outside = [n for n, m in sys.modules.items() if 'site-packages' in (getattr(m, '__file__', '') or '')]\n"
        "print([n for n in outside if not n.startswith(('_virtualenv', 'distutils', '_distutils', '__editable__'))])"
    )
    shown = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "--route" in shown
    assert shown.splitlines()[-1] == "[]"


def test_the_plan_of_this_repository_takes_every_pin(pytestconfig):
    project = bootstrap.read_project(pytestconfig.rootpath)
    extras = project["project"]["optional-dependencies"]
    for route, names in (("cpu", ("lab", "test", "cpu", "cpu-nodeps")), ("gpu", ("lab", "test", "gpu"))):
        planned = {pin for step in plan(project, route) for pin in step.requirements}
        wanted = {*project["project"]["dependencies"], *project["tool"]["wiring"]["bootstrap"]["tools"]}.union(
            *(extras[name] for name in names)
        )
        assert wanted <= planned
    assert set(extras) == {"lab", "test", "browser", "gpu", "cpu", "cpu-nodeps"}


def test_digest_does_not_depend_on_words(project):
    step = Step("a", "what", "usual", ("x==1",))
    assert step.digest == Step("a", "other words", "longer", ("x==1",)).digest
    assert step.digest != Step("a", "what", "usual", ("x==2",)).digest
