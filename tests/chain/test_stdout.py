"""The command line's stdout, read by another program: `| head` changes nothing, a full disk is told."""

import subprocess
import sys

import pytest

CASE = "data/evidence/case-study.json"


def start(pytestconfig, *words, stdout):
    return subprocess.Popen([sys.executable, "-m", "wiring", *words], stdout=stdout, stderr=subprocess.PIPE, text=True,
                            cwd=pytestconfig.rootpath)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "status"), [(("diagnose", "--schema"), 0), (("diagnose", CASE), 1), (("diagnose", CASE, "--json"), 1),
                          (("layout",), 0), (("compare", "none", "none"), 2)],
)  # fmt: skip
def test_a_reader_that_is_gone_changes_no_exit_status(pytestconfig, words, status):
    running = start(pytestconfig, *words, stdout=subprocess.PIPE)
    running.stdout.close()  # before anything was written
    said = running.stderr.read()
    running.stderr.close()
    assert running.wait(120) == status
    assert "Broken pipe" not in said and "Traceback" not in said


def test_a_full_disk_is_told(pytestconfig):
    with open("/dev/full", "w") as full:
        running = start(pytestconfig, "diagnose", "--schema", stdout=full)
        said = running.communicate(timeout=120)[1]
    assert (running.returncode, said) == (2, "wiring: no space is left where this writes to.\n")
