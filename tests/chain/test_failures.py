"""Whatever ends a notebook early: one clear error, an honest notebook, no marker, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from wiring.chain.folder import RunFolder
from wiring.chain.processes import descendants
from wiring.errors import WiringError

ENDED_WITHIN_S = 10.0


def failure(toy, **more) -> str:
    """Run the chain, which must fail in notebook 02; the error's text."""
    with pytest.raises(WiringError) as caught:
        toy.chain(**more)
    assert toy.markers() == ["01.done.json"]
    assert not (toy.run / "02_value.json").exists()
    assert descendants() == []
    text = str(caught.value)
    assert text.startswith("02_step: ")
    assert str(toy.run / "logs" / "02_step.log") in text
    assert str(toy.run / "notebooks" / "02_step.ipynb") in text
    return text


def notebook_says(toy, outcome: str) -> None:
    """The saved notebook 02 must say that its cell `extra` failed and what is behind it never ran."""
    metadata = toy.executed(2)["metadata"]
    assert metadata["papermill"]["exception"] is True
    assert metadata["wiring"]["outcome"] == outcome
    statuses = toy.statuses(2)
    assert (statuses["work"], statuses["extra"], statuses["write"]) == ("completed", "failed", "pending")


def test_failing_cell_and_the_rerun_after_its_cure(toy):
    toy.write(2, extra="raise ValueError('seven is not eight\\nsecond line')")
    text = failure(toy)
    assert "a cell raised an error in cell 5 (extra) (found ValueError: seven is not eight)" in text
    notebook_says(toy, "failed")
    assert "seven is not eight" in (toy.run / "logs" / "02_step.log").read_text()
    toy.write(2)
    assert toy.chain().ran == ("02_step", "03_step")
    assert toy.executions() == "12" + "23"


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_dead_kernel(toy, process_zoo, code):
    start, pids = process_zoo
    toy.write(2, extra=f"{start}\n{code}")
    text = failure(toy)
    assert "the notebook's kernel died in cell 5 (extra)" in text
    notebook_says(toy, "died")
    assert len(pids()) == 3


def test_timeout(toy, process_zoo):
    start, pids = process_zoo
    toy.write(2, extra=f"{start}\nimport time\ntime.sleep(120)")
    text = failure(toy, execution_timeout=4)
    assert "a cell ran out of time in cell 5 (extra) (found the cell took longer than 4 s)" in text
    assert "--cell-timeout" in text
    notebook_says(toy, "timed_out")
    assert len(pids()) == 3


def test_sys_exit_is_no_success(toy):
    toy.write(2, extra="import sys; sys.exit(0)")
    assert "the notebook ended before its last cell (sys.exit?)" in failure(toy)


def test_processes_that_a_successful_notebook_left_are_ended(toy, process_zoo):
    start, pids = process_zoo
    toy.write(2, extra=start)
    toy.chain()
    assert len(pids()) == 3
    assert descendants() == []
    assert (toy.run / "logs" / "02_step.log").read_text().count("ended a process that the notebook left") == 2


@pytest.fixture
def started(toy, process_zoo):
    """A chain in its own process, in the middle of notebook 02, with all its process ids."""
    start, pids = process_zoo
    toy.write(2, extra=f"{start}\nimport time\ntime.sleep(300)")
    chain = toy.start()
    toy.wait_for(pids, 60, "notebook 02")
    whole = [*pids(), *(process.pid for process in descendants(chain.pid))]
    assert len(set(whole)) >= 4  # worker, kernel, child, orphan
    yield chain, whole
    if chain.poll() is None:
        chain.kill()
    chain.wait()
    chain.stderr.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signals_end_everything_within_ten_seconds(toy, started, number, status):
    chain, whole = started
    chain.send_signal(number)
    _, said = chain.communicate(timeout=ENDED_WITHIN_S)
    assert chain.returncode == status
    assert [pid for pid in whole if toy.alive(pid)] == []
    assert "Stopping" in said.decode()
    assert toy.markers() == ["01.done.json"]
    notebook_says(toy, "stopped")


def test_second_ctrl_c_does_not_cut_the_stop_short(toy, started):
    chain, whole = started
    chain.send_signal(signal.SIGINT)
    toy.wait_for(lambda: b"Stopping" in chain.stderr.readline(), 5, "the stop")
    chain.send_signal(signal.SIGINT)
    assert chain.wait(timeout=ENDED_WITHIN_S) == 130
    assert [pid for pid in whole if toy.alive(pid)] == []


def test_sigkill_of_the_chain_takes_everything_along(toy, started):
    chain, whole = started
    chain.kill()
    chain.wait()
    toy.wait_for(lambda: not any(map(toy.alive, whole)), ENDED_WITHIN_S, "the end of all processes")
    assert toy.markers() == ["01.done.json"]
    assert toy.executed(2)["metadata"]["papermill"]["end_time"] is None or toy.statuses(2)["write"] != "completed"


def test_sigkill_of_the_worker_is_told_and_its_kernel_goes(toy, started):
    chain, whole = started
    worker = next(process for process in descendants(chain.pid) if "wiring.chain.worker" in process.cmdline())
    kernel = whole[0]
    worker.kill()
    _, said = chain.communicate(timeout=ENDED_WITHIN_S)
    assert chain.returncode == 1
    assert b"the notebook could not be executed" in said
    assert b"status -9" in said
    toy.wait_for(lambda: not toy.alive(kernel), ENDED_WITHIN_S, "the end of the kernel")
    assert toy.markers() == ["01.done.json"]


def test_two_chains_do_not_write_one_folder(toy, started):
    chain, _ = started
    with pytest.raises(WiringError, match=f"another chain is writing this run folder .found process {chain.pid}"):
        toy.chain()
    with pytest.raises(WiringError, match="another chain is writing"):
        RunFolder(toy.run).remove()
    assert toy.markers() == ["01.done.json"]


def test_a_folder_whose_chain_was_killed_can_be_taken_at_once(toy, started):
    chain, _ = started
    chain.kill()
    chain.wait()
    toy.write(2)
    assert toy.chain().ran == ("02_step", "03_step")


def test_the_worker_ends_without_an_order():
    worker = subprocess.run(
        [sys.executable, "-m", "wiring.chain.worker"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert worker.returncode != 0
