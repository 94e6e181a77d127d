"""The command line's stdout, read by another program: `| head` changes nothing, a full disk is told."""

import os
import subprocess
import sys

import pytest

CASE = "data/evidence/case-study.json"


def start(pytestconfig, *words, stdout):
    return subprocess.Popen(
        [sys.executable, "-m", "wiring", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=pytestconfig.rootpath,
    )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("diagnose", "--schema"), 0),
        (("diagnose", CASE), 1),
        (("diagnose", CASE, "--json"), 1),
        (("layout",), 0),
        (("compare", "none", "none"), 2),
    ],
)
def test_a_reader_that_is_gone_changes_no_exit_status(pytestconfig, words, status):
    running = start(pytestconfig, *words, stdout=subprocess.PIPE)
    running.stdout.close()  # before anything was written
    said = running.stderr.read()
    running.stderr.close()
    assert running.wait(120) == status
    assert "Broken pipe" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "before"),
    [
        (("diagnose", "--schema"), ""),
        (("lint", "--draft", "data/tiny/draft"), ""),
        (("diagnose", "/none.json", "--json"), "wiring: /none.json: the evidence cannot be read (found No such file"),
    ],
)
def test_a_full_disk_is_told(pytestconfig, words, before):
    with open("/dev/full", "w") as full:
        running = start(pytestconfig, *words, stdout=full)
        said = running.communicate(timeout=120)[1]
    assert running.returncode == 2 and said.startswith(before)
    assert said.endswith("wiring: no space is left where this writes to.\n") and "Traceback" not in said


def shell(pytestconfig, command, **environment):
    return subprocess.run(
        ["bash", "-c", command],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, **environment},
        timeout=120,
    )


def test_without_a_stdout_or_with_a_poor_one_it_works_as_well(pytestconfig):
    lint = "$PYTHON -m wiring lint --draft data/tiny/draft"
    closed, ascii_alone = shell(pytestconfig, f"{lint} >&-"), shell(pytestconfig, lint, PYTHONIOENCODING="ascii")
    assert (closed.returncode, closed.stderr) == (0, "") == (ascii_alone.returncode, ascii_alone.stderr)
    assert "Boundaries in the slots of fc" in ascii_alone.stdout and ascii_alone.stdout.isascii()


def test_unbuffered_means_at_once(pytestconfig):
    code = "from wiring.cli.stdout import ignore_broken_pipe; ignore_broken_pipe(); print('now'); input()"
    running = subprocess.Popen([sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout.readline() == b"now\n"  # while it waits
    running.communicate(b"\n", timeout=60)
