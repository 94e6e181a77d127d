"""pyproject.toml is the one source of versions; environment.yml, the Makefile and CI agree with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def root(pytestconfig):
    return pytestconfig.rootpath


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def lists(project):
    """Every list of requirements of pyproject.toml by name."""
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    return {"": project["project"]["dependencies"], **extras, **groups}


@pytest.fixture(scope="module")
def compiled(root):
    """Every requirements file by name: its lines as requirements."""
    files = (root / "requirements").glob("*.txt")
    return {file.stem: [Requirement(line) for line in file.read_text().splitlines()] for file in files}


@pytest.fixture(scope="module")
def conda(root):
    return yaml.safe_load((root / "environment.yml").read_text())


# What each compiled file is made from (tools/compile_requirements.sh).
SOURCES = {
    "installer": ("installer",),
    "cpu": ("", "lab", "test", "cpu"),
    "cpu-nodeps": ("cpu-nodeps",),
    "gpu": ("", "lab", "test", "gpu"),
    "browser": ("browser",),
    "lint": ("lint",),
    "peers": ("peers",),
    "peers-nodeps": ("peers-nodeps",),
}


def pins(requirements):
    return {canonicalize_name(requirement.name): str(requirement.specifier) for requirement in requirements}


def test_every_requirement_is_pinned_to_one_version(lists, compiled):
    for requirements in (*lists.values(), *compiled.values()):
        for requirement in map(Requirement, map(str, requirements)):
            assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
            assert requirement.url is None, requirement


def test_the_compiled_files_hold_every_pin_of_their_lists(lists, compiled):
    assert set(compiled) == set(SOURCES)
    for name, sources in SOURCES.items():
        wanted = pins(Requirement(text) for source in sources for text in lists[source])
        assert wanted.items() <= pins(compiled[name]).items(), name


def test_no_package_is_pinned_to_two_versions(lists):
    found = {
        (canonicalize_name((r := Requirement(text)).name), str(r.specifier))
        for texts in lists.values()
        for text in texts
    }
    assert [name for name, count in Counter(name for name, _ in found).items() if count > 1] == []


def test_environments_that_compute_the_same_numbers_share_their_pins(compiled):
    cpu = pins(compiled["cpu"])
    for name in ("peers", "browser", "lint"):
        both = cpu.keys() & pins(compiled[name]).keys()
        assert {key: cpu[key] for key in both} == {key: pins(compiled[name])[key] for key in both}, name


def test_the_cpu_route_installs_no_cuda_package(compiled):
    names = pins(compiled["cpu"]).keys() | pins(compiled["cpu-nodeps"]).keys()
    assert not [name for name in names if name.startswith(("nvidia", "cuda")) or name in ("triton", "sgl-kernel")]


@pytest.mark.parametrize(
    ("goal", "folder"), [("peers", "tests/external/peers"), ("benchmarks", "tests/external/benchmarks")]
)
@pytest.mark.parametrize("ready", ["", "/somewhere/bin/python"])
def test_make_installs_the_peers_unless_they_are_ready(copy, goal, folder, ready):
    ran = make(goal, cwd=copy, WIRING_PEERS_PYTHON=ready)
    assert ran.stderr == ""
    calls = [line.split("|")[2:] for line in ran.stdout.splitlines()]
    asked = ["-m", "pytest", folder, "-m", goal.removesuffix("s") if goal == "benchmarks" else goal, ""]
    assert calls == ([asked] if ready else [["set up", "peers", ""], asked])


def test_conda_python_satisfies_requires_python(conda, project):
    (python,) = [entry for entry in conda["dependencies"] if isinstance(entry, str) and entry.startswith("python=")]
    version = python.removeprefix("python=")
    assert re.fullmatch(r"3\.\d+", version)
    assert SpecifierSet(project["project"]["requires-python"]).contains(version)


def test_conda_takes_everything_else_from_pyproject(conda, project):
    (pip,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert len(pip) == 1
    match = re.fullmatch(r"-e \.\[([\w,-]+)\]", pip[0])
    assert match
    extras = match[1].split(",")
    assert set(extras) <= set(project["project"]["optional-dependencies"])
    assert len(set(extras)) == len(extras)
    plain = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    assert [re.split("[=<>]", entry)[0] for entry in plain] == ["python", "pip"]


def test_no_version_stands_in_makefile_or_ci(root):
    for name in ("Makefile", ".ci/run", "environment.yml"):
        assert not re.search(r"[A-Za-z]==\d", (root / name).read_text()), name


def test_sglang_is_the_supported_one(lists):
    from wiring.engines.sglang import SUPPORTED

    assert f"sglang=={SUPPORTED}" in lists["cpu-nodeps"]
    assert f"sglang=={SUPPORTED}" in lists["gpu"]


def make(*arguments, cwd, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTEST"))}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, timeout=120
    )


def test_make_help_lists_every_goal_from_any_folder(root, tmp_path):
    goals = re.search(r"^\.PHONY:(.*)$", (root / "Makefile").read_text(), re.M)[1].split()
    shown = make("-f", str(root / "Makefile"), "help", cwd=tmp_path)
    assert shown.returncode == 0
    assert re.findall(r"^  make ([a-z-]+)", shown.stdout, re.M) == goals


def test_make_refuses_a_python_that_is_none(root):
    refused = make("setup", "PYTHON=/nowhere/python", cwd=root)
    assert refused.returncode != 0
    assert "PYTHON=/nowhere/python is not Python 3.11, 3.12 or 3.13" in refused.stderr


@pytest.fixture
def copy(root, tmp_path):
    """A checkout whose set-up does nothing and whose Python is a script that says what it was asked."""
    folder = tmp_path / "a checkout"
    (folder / "tools").mkdir(parents=True)
    (folder / ".ci").mkdir()
    for name in ("Makefile", ".ci/run"):
        (folder / name).write_bytes((root / name).read_bytes())
    (folder / ".ci" / "run").chmod(0o755)
    setup = folder / "tools" / "setup.sh"
    setup.write_text('#!/bin/sh\n[ -z "$1" ] || printf "%s|" "$PWD" "" "set up" "$@"; [ -z "$1" ] || echo\n')
    setup.chmod(0o755)
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s|" "$PWD" "$PLOTLY_RENDERER" "$@"; echo; exit ${ENDS_WITH:-0}\n')
    python.chmod(0o755)
    return folder


@pytest.mark.parametrize("status", [0, 1])
def test_ci_runs_the_tests_and_passes_their_status_on(copy, tmp_path, status):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTEST"))}
    ran = subprocess.run(
        [copy / ".ci" / "run"], cwd=tmp_path, env={**clean, "ENDS_WITH": str(status)}, capture_output=True, text=True
    )
    assert (ran.returncode == 0) == (status == 0)
    if status:
        return
    side_by_side, servers, *_ = [line.split("|") for line in ran.stdout.strip().splitlines() if "|pytest|" in line]
    own = ("live", "peers", "benchmark", "variants", "long", "layouts", "releases", "browser")
    kept_out = " and ".join(f"not {marker}" for marker in own)
    for asked in (side_by_side, servers):
        assert asked[:5] == [str(copy), "plotly_mimetype", "-m", "pytest", "tests"]
    assert {"notebooks", "--nbval", "--nbval-current-env", f"not server and {kept_out}"} <= set(side_by_side)
    assert f"server and {kept_out}" in servers


def test_make_test_takes_what_to_test(copy):
    ran = make("test", 'PYTEST=tests/unit/engines -k "layout and not slow"', cwd=copy)
    assert ran.stdout.strip().split("|")[2:] == ["-m", "pytest", "tests/unit/engines", "-k", "layout and not slow", ""]


def test_make_lab_registers_the_kernel_and_opens_the_index(copy):
    ran = make("lab", "LAB=--no-browser --port 8899", cwd=copy)
    kernel, lab = (line.split("|")[2:-1] for line in ran.stdout.strip().splitlines())
    assert kernel == ["-m", "wiring.workbook.jupyter_kernel"]
    assert lab[:2] == ["-m", "jupyterlab"]
    assert {f"--ServerApp.root_dir={copy}", "--LabApp.default_url=/lab/tree/notebooks/00_index.ipynb"} < set(lab)
    assert lab[-3:] == ["--no-browser", "--port", "8899"]
    assert ("--allow-root" in lab) == (os.geteuid() == 0)


def test_make_kernel_gpu_registers_the_other_kernel(copy):
    assert make("kernel-gpu", cwd=copy).stdout.strip().split("|")[2:-1] == [
        "-m",
        "wiring.workbook.jupyter_kernel",
        "--gpu",
    ]


@pytest.mark.parametrize("found", [True, False])
def test_make_test_browser_installs_what_drives_one_and_says_where_none_is_to_be_had(copy, tmp_path, found):
    tools = tmp_path / "tools"  # a machine without apt-get
    tools.mkdir()
    for name in ("make", "bash", "sh", "dirname", "id"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").symlink_to(sys.executable)
    python = copy / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s|" "$@"; echo; [ "$1" != -c ] || exit {int(not found)}\n')
    ran = make("test-browser", cwd=copy, PATH=str(tools))
    drives, looks, *tests = [line.split("|")[:-1] for line in ran.stdout.splitlines()]
    assert drives[2:] == ["set up", "browser"] and "find_browser()" in looks[1]
    assert tests == ([["-m", "pytest", "-s", "tests/external/browser", "-m", "browser"]] if found else [])
    assert (ran.returncode == 0) == found and ("apt install chromium" in ran.stderr) != found


def test_make_run_takes_a_profile_from_where_it_was_called(copy, tmp_path):
    (tmp_path / "my profile.yaml").touch()
    ran = make("-f", str(copy / "Makefile"), "run", "PROFILE=my profile.yaml", "RUN=--fresh", cwd=tmp_path)
    assert ran.stderr == ""
    asked = ran.stdout.strip().split("|")
    assert asked[0] == str(copy)
    assert asked[2:7] == ["-m", "wiring", "run", str(tmp_path / "my profile.yaml"), "--fresh"]
    default = make("run", cwd=copy).stdout.strip().split("|")
    assert default[2:6] == ["-m", "wiring", "run", str(copy / "data/profiles/cpu-tiny.yaml")] or default[5].startswith(
        "data/"
    )


def test_numpy_is_not_pinned_on_the_gpu_route(lists):
    # SGLang 0.5.23 brings mistral_common, which asks for numpy < 2.4 (Python 3.12 and older): with a pin of our own
    # beside it the GPU route could not be resolved at all.
    assert "numpy" not in {canonicalize_name(Requirement(text).name) for name in SOURCES["gpu"] for text in lists[name]}


def test_every_installed_pin_admits_the_python_of_debian_12(compiled):
    # pip on Python 3.11.7 takes releases that Debian 12's Python 3.11.2 may not have.
    environment = {"python_full_version": "3.11.2", "python_version": "3.11"}
    refused = []
    for requirement in compiled["cpu"]:
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        try:
            installed = metadata.metadata(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        if requirement.specifier.contains(installed["Version"]) and not SpecifierSet(
            installed["Requires-Python"] or ""
        ).contains("3.11.2"):
            refused.append(f"{requirement.name} {installed['Version']}: {installed['Requires-Python']}")
    assert refused == []
