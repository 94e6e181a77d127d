"""Whatever ends a notebook early: one clear error, an honest notebook, no marker, no process left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from wiring.errors import WiringError
from wiring.workbook.run_folder import RunFolder

ENDED_WITHIN_S = 10.0


FIRST = 1


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All living descendants of a process (default: this one)."""
    found = psutil.Process(pid).children(recursive=True)
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def failure(toy, **more) -> WiringError:
    """Run notebook 01, which must fail; return the error."""
    with pytest.raises(WiringError) as caught:
        toy.chain(FIRST, **more)
    assert toy.markers() == []
    assert not (toy.run / "01_value.json").exists()
    assert descendants() == []
    error = caught.value
    assert (error.code, error.where) == ("notebook-failed", "01_step")
    assert str(toy.run / "logs" / "01_step.log") in error.remedy
    assert str(toy.run / "notebooks" / "01_step.ipynb") in error.remedy
    return error


def notebook_says(toy, outcome: str) -> None:
    """The saved notebook 01 must say that its cell `extra` failed and that what is behind it never ran."""
    metadata = toy.executed(1)["metadata"]
    assert metadata["papermill"]["exception"] is True
    assert metadata["wiring"]["outcome"] == outcome
    statuses = toy.statuses(1)
    assert (statuses["work"], statuses["extra"], statuses["write"]) == ("completed", "failed", "pending")


def test_failing_cell_and_the_rerun_after_its_fix(toy):
    toy.write(1, extra="raise ValueError('seven is not eight\\nsecond line')")
    error = failure(toy)
    assert "cell 5 (extra)" in error.problem and error.found == "ValueError: seven is not eight"
    notebook_says(toy, "failed")
    log = (toy.run / "logs" / "01_step.log").read_text()
    assert "raise ValueError('seven is not eight" in log
    assert "\x1b" not in log
    toy.write(1)
    assert toy.chain(FIRST).ran == ("01_step",)
    assert toy.executions() == "11"
    assert set(toy.statuses(1).values()) == {"completed"}


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_dead_kernel(toy, process_zoo, code):
    start, pids = process_zoo
    toy.write(1, extra=f"{start}\n{code}")
    assert "cell 5 (extra)" in failure(toy).problem
    notebook_says(toy, "died")
    assert len(pids()) == 3


# As sitecustomize.py: a kernel ends as soon as it starts.
DIES = "import os, sys\nif 'ipykernel_launcher' in sys.orig_argv{unless}:\n    open({mark!r}, 'a'); os._exit(1)\n"


def test_a_kernel_that_dies_at_its_start_is_started_once_more(toy, tmp_path, monkeypatch):
    """As one does whose port another process was given in the meantime."""
    site = tmp_path / "site"
    site.mkdir()
    mark = str(tmp_path / "died")
    (site / "sitecustomize.py").write_text(DIES.format(mark=mark, unless=f" and not os.path.exists({mark!r})"))
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert toy.chain(FIRST).ran == ("01_step",)
    assert Path(mark).exists() and toy.executions() == "1"
    assert "starting the kernel once more" in (toy.run / "logs" / "01_step.log").read_text()
    (site / "sitecustomize.py").write_text(DIES.format(mark=mark, unless=""))
    toy.write(1, extra="1 + 1")
    failure(toy)
    assert toy.executed(1)["metadata"]["wiring"]["outcome"] == "crashed"


def test_timeout(toy, process_zoo):
    start, pids = process_zoo
    toy.write(1, extra=f"{start}\nimport time\ntime.sleep(300)")
    error = failure(toy, execution_timeout=15)
    assert "cell 5 (extra)" in error.problem and "--cell-timeout" in error.remedy
    notebook_says(toy, "timed_out")
    assert len(pids()) == 3


def test_sys_exit_is_no_success(toy):
    toy.write(1, extra="import sys; sys.exit(0)")
    failure(toy)
    assert toy.executed(1)["metadata"]["wiring"]["outcome"] == "failed"


def test_processes_that_a_successful_notebook_left_are_ended(toy, process_zoo):
    start, pids = process_zoo
    toy.write(1, extra=start)
    toy.chain(FIRST)
    assert len(pids()) == 3
    assert descendants() == [] and not any(map(toy.alive, pids()))


@pytest.fixture
def started(toy, process_zoo):
    """A chain in its own process, in the middle of notebook 01, with all its process ids (the kernel's first)."""
    start, pids = process_zoo
    toy.write(1, extra=f"{start}\nimport time\ntime.sleep(300)")
    chain = toy.start(FIRST)
    toy.wait_for(pids, 240, "notebook 01")
    whole = [*pids(), *(process.pid for process in descendants(chain.pid))]
    assert len(set(whole)) >= 4  # kernel, child, orphan, worker
    yield chain, whole
    if chain.poll() is None:
        chain.kill()
    chain.wait()
    chain.stderr.close()


def test_ctrl_c_ends_everything_within_ten_seconds_and_a_second_one_does_not_cut_that_short(toy, started):
    chain, whole = started
    chain.send_signal(signal.SIGINT)
    toy.wait_for(lambda: b"Stopping" in chain.stderr.readline(), 5, "the stop")
    chain.send_signal(signal.SIGINT)
    assert chain.wait(timeout=ENDED_WITHIN_S) == 130
    assert [pid for pid in whole if toy.alive(pid)] == []
    assert toy.markers() == []
    notebook_says(toy, "stopped")


def test_sigterm_ends_everything_within_ten_seconds(toy, started):
    chain, whole = started
    chain.send_signal(signal.SIGTERM)
    _, said = chain.communicate(timeout=ENDED_WITHIN_S)
    assert chain.returncode == 143
    assert [pid for pid in whole if toy.alive(pid)] == []
    assert b"Stopping" in said
    assert toy.markers() == []
    notebook_says(toy, "stopped")


def test_a_folder_has_one_chain_and_sigkill_of_it_takes_everything_along(toy, started):
    chain, whole = started
    for call in (lambda: toy.chain(FIRST), RunFolder(toy.run).remove):
        with pytest.raises(WiringError) as error:
            call()
        assert (error.value.code, error.value.found) == ("run-folder-locked", f"process {chain.pid}")
    assert toy.alive(chain.pid)
    chain.kill()
    chain.wait()
    toy.wait_for(lambda: not any(map(toy.alive, whole)), ENDED_WITHIN_S, "the end of all processes")
    assert toy.markers() == []
    assert toy.statuses(1)["write"] != "completed"
    toy.write(1)
    assert toy.chain(FIRST).ran == ("01_step",)


def test_sigkill_of_the_notebooks_process_is_reported_and_its_kernel_ends(toy, started):
    chain, whole = started
    worker = next(p for p in descendants(chain.pid) if "wiring.workbook.notebook_process" in p.cmdline()[2:3])
    worker.kill()
    _, said = chain.communicate(timeout=ENDED_WITHIN_S)
    assert chain.returncode == 1
    assert b"the notebook could not be executed" in said
    assert [pid for pid in whole if toy.alive(pid)] == []
    assert toy.markers() == []


def test_sigkill_of_the_supervisor_ends_everything(toy, started):
    chain, whole = started
    next(p for p in descendants(chain.pid) if "wiring.server.supervisor" in p.cmdline()[2:3]).kill()
    chain.communicate(timeout=ENDED_WITHIN_S)
    kernel, _, orphan = whole[:3]
    toy.wait_for(lambda: not toy.alive(kernel), ENDED_WITHIN_S, "the end of the kernel")
    assert toy.markers() == []
    if toy.alive(orphan):  # a process that left every session of the notebook outlives its supervisor
        os.kill(orphan, signal.SIGKILL)
