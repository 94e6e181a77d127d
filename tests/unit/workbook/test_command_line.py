"""The command line is thin: it passes on what was asked, says what is wrong in one line, and deletes only runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from wiring.cli.app import app, main
from wiring.errors import WiringError
from wiring.workbook.execute import Terminated
from wiring.workbook.run_folder import RunFolder
from wiring.workbook.run_notebooks import RunResult

CLAIM = {"claim": "slots hold [3]", "expected": "(3,)", "actual": "(3,)", "holds": True}


@pytest.fixture
def call(monkeypatch, capsys):
    """Call `wiring ...` in this process; (exit status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["wiring", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Stand in for the chain: note what it was asked for, leave a summary. `asked.error` makes it fail."""

    class Asked(list):
        error = None

    asked = Asked()

    def run_workbook(profile, **more):
        asked.append((str(profile), more))
        if asked.error:
            raise asked.error
        run = tmp_path / "runs" / "toy"
        folder = RunFolder(run)
        folder.create()
        folder.sign(tmp_path / "toy.yaml", {"rows": 4})
        (run / "summary.json").write_text(json.dumps({"conclusions": [CLAIM]}))
        return RunResult(run, (), ())

    monkeypatch.setattr("wiring.workbook.workbook_run.run_workbook", run_workbook)
    return asked


def commands():
    groups = [group.typer_instance.info.name for group in app.registered_groups]
    own = [command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands]
    return sorted([*groups, *own])


def test_there_is_a_command_for_everything():
    steps = {"throughput", "accuracy", "layout", "patch", "rebenchmark"}
    assert {"run", "resume", "report", "record", "clean"} | steps <= set(commands())


@pytest.mark.parametrize("command", commands())
def test_help_has_an_example(call, command):
    status, out, _ = call(command, "--help")
    assert status == 0
    assert f"wiring {command}" in " ".join(out.split("Example", 1)[1].split())


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['wiring', '--help']; from wiring.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'sglang', 'papermill', 'nbformat', 'plotly', 'pandas'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "heavy: []"


def test_run_passes_on_what_was_asked_and_prints_the_verdict(call, asked, tmp_path):
    status, out, _ = call("run", "my.yaml", "--fresh", "--runs", tmp_path, "--cell-timeout", "60")
    assert status == 0
    ((profile, more),) = asked
    assert profile == "my.yaml"
    assert more == {"run_root": tmp_path, "resume": False, "overrides": {}, "execution_timeout": 60}
    assert "slots hold [3]" in out
    assert "holds" in out
    assert "report.html" in out


def test_resume_takes_the_profile_and_settings_of_the_run(call, asked, tmp_path):
    call("run", "--runs", tmp_path / "runs")
    status, _, _ = call("resume", "toy", "--runs", tmp_path / "runs")
    assert status == 0
    profile, more = asked[-1]
    assert profile == str(tmp_path / "toy.yaml")
    assert more["overrides"] == {"rows": 4}
    assert more["run_root"] == tmp_path / "runs"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            WiringError("the port is taken", where="30000", remedy="Choose another"),
            2,
            "wiring: 30000: the port is taken.",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(15), 143, "terminated"),
    ],
)
def test_how_it_ends(call, asked, error, status, said):
    asked.error = error
    got, out, err = call("run")
    assert got == status
    assert said in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("setting", ["rows", "no_such_parameter=3"])
def test_settings_are_checked_before_the_chain(call, asked, setting):
    status, _, err = call("run", "--set", setting)
    assert status == 2
    assert "--set" in err
    assert asked == []


def test_unknown_run_is_told_with_those_that_there_are(call, asked, tmp_path):
    call("run")
    status, _, err = call("report", "other", "--runs", tmp_path / "runs")
    assert status == 2
    assert "no such run" in err and "one of: toy" in err
    status, _, err = call("report", "toy", "--runs", tmp_path / "runs")
    assert status == 2 and "no 01_throughput, " in err and "`wiring resume toy`" in err


@pytest.fixture
def runs(tmp_path):
    """A folder with two runs and something that is none."""
    for name in ("one", "two"):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.create()
        folder.sign(tmp_path / "p.yaml", {})
    (tmp_path / "runs" / "thesis").mkdir()
    (tmp_path / "runs" / "thesis" / "chapter.txt").write_text("mine")
    return tmp_path / "runs"


def left(runs):
    return sorted(path.name for path in runs.iterdir())


def test_clean_deletes_only_runs(call, runs):
    assert call("clean", "one", "--runs", runs, "--yes")[0] == 0
    assert left(runs) == ["thesis", "two"]
    status, _, err = call("clean", "thesis", "--runs", runs, "--yes")
    assert (status, "no such run" in err) == (2, True)
    assert call("clean", "--all", "--runs", runs, "--yes")[0] == 0
    assert left(runs) == ["thesis"]
    assert (runs / "thesis" / "chapter.txt").read_text() == "mine"


def test_clean_deletes_what_notebooks_left_that_ran_alone(call, runs, monkeypatch):
    """They do so in the workbook's own folder of runs; what is called so in another is somebody else's."""
    for name in ("alone-one", "alone-two"):
        (runs / name / "logs").mkdir(parents=True)
    assert call("clean", "--all", "--runs", runs, "--yes")[0] == 0
    assert left(runs) == ["alone-one", "alone-two", "thesis"]
    monkeypatch.setattr("wiring.workbook.workbook_run.RUNS", runs)
    assert call("clean", "alone-one", "--yes")[0] == 0
    assert left(runs) == ["alone-two", "thesis"]
    assert call("clean", "--all", "--yes")[0] == 0
    assert left(runs) == ["thesis"]


def test_clean_asks_and_deletes_nothing_where_nobody_answers(call, runs, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    status, out, err = call("clean", "--all", "--runs", runs)
    assert status == 2
    assert str(runs / "one") in out
    assert "Add --yes" in err
    assert left(runs) == ["one", "thesis", "two"]


@pytest.mark.parametrize(("answer", "rest"), [(False, ["one", "thesis", "two"]), (True, ["thesis"])])
def test_clean_does_as_it_is_told(call, runs, monkeypatch, answer, rest):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text: answer)
    assert call("clean", "--all", "--runs", runs)[0] == 0
    assert left(runs) == rest


def test_clean_wants_to_know_which(call, runs):
    assert call("clean", "--runs", runs)[0] == 2
    assert call("clean", "one", "--all", "--runs", runs)[0] == 2
    assert left(runs) == ["one", "thesis", "two"]


@pytest.mark.parametrize(
    "words, code",
    [
        (("lint", "--draft", "nowhere"), None),
        (("lint",), "usage"),  # typer's own error
        (("search", "--draft", "nowhere", "--target", "nowhere"), None),
        (("patch", "plan", "--sglang", "nowhere"), "sglang-not-found"),
        (("patch", "apply", "--layout", "0,3,31"), "options-belong-together"),
        (("patch", "apply"), "out-missing"),
        (("patch", "undo", "--out", "."), "not-our-copy"),
        (("patch", "apply", "--no-such-option"), "usage"),
    ],
)
def test_a_problem_is_reported_to_programs_too(call, words, code):
    status, out, err = call(*words, "--json")
    error = json.loads(out)["error"]
    assert status == 2 and set(error) == {"message", "code", "problem", "where", "expected", "found", "remedy"}
    assert error["code"] == code or (code is None and error["code"])
    assert error["problem"].split()[0] in err
    assert call(*words)[:2] == (2, "")  # without --json nobody parses stdout
