"""Whatever ends a notebook early: one clear error, an honest notebook, no marker, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wiring.errors import WiringError
from wiring.workbook.processes import descendants
from wiring.workbook.run_folder import RunFolder

ENDED_WITHIN_S = 10.0


FIRST = ["01_step"]


def failure(toy, **more) -> str:
    """Run notebook 01, which must fail; the error's text."""
    with pytest.raises(WiringError) as caught:
        toy.chain(names=FIRST, **more)
    assert toy.markers() == []
    assert not (toy.run / "01_value.json").exists()
    assert descendants() == []
    text = str(caught.value)
    assert text.startswith("01_step: ")
    assert str(toy.run / "logs" / "01_step.log") in text
    assert str(toy.run / "notebooks" / "01_step.ipynb") in text
    return text


def notebook_says(toy, outcome: str) -> None:
    """The saved notebook 01 must say that its cell `extra` failed and that what is behind it never ran."""
    metadata = toy.executed(1)["metadata"]
    assert metadata["papermill"]["exception"] is True
    assert metadata["wiring"]["outcome"] == outcome
    statuses = toy.statuses(1)
    assert (statuses["work"], statuses["extra"], statuses["write"]) == ("completed", "failed", "pending")


def test_failing_cell_and_the_rerun_after_its_cure(toy):
    toy.write(1, extra="raise ValueError('seven is not eight\\nsecond line')")
    text = failure(toy)
    assert "a cell raised an error in cell 5 (extra) (found ValueError: seven is not eight)" in text
    notebook_says(toy, "failed")
    log = (toy.run / "logs" / "01_step.log").read_text()
    assert "raise ValueError('seven is not eight" in log
    assert "\x1b" not in log
    toy.write(1)
    assert toy.chain(names=FIRST).ran == ("01_step",)
    assert toy.executions() == "11"
    assert set(toy.statuses(1).values()) == {"completed"}


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_dead_kernel(toy, process_zoo, code):
    start, pids = process_zoo
    toy.write(1, extra=f"{start}\n{code}")
    text = failure(toy)
    assert "the notebook's kernel died in cell 5 (extra)" in text
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
    assert toy.chain(names=FIRST).ran == ("01_step",)
    assert Path(mark).exists() and toy.executions() == "1"
    assert "starting the kernel once more" in (toy.run / "logs" / "01_step.log").read_text()
    (site / "sitecustomize.py").write_text(DIES.format(mark=mark, unless=""))
    toy.write(1, extra="1 + 1")
    assert "Kernel died before replying" in failure(toy)


def test_timeout(toy, process_zoo):
    start, pids = process_zoo
    toy.write(1, extra=f"{start}\nimport time\ntime.sleep(300)")
    text = failure(toy, execution_timeout=15)
    assert "a cell ran out of time in cell 5 (extra) (found the cell took longer than 15 s)" in text
    assert "--cell-timeout" in text
    notebook_says(toy, "timed_out")
    assert len(pids()) == 3


def test_sys_exit_is_no_success(toy):
    toy.write(1, extra="import sys; sys.exit(0)")
    assert "the notebook ended before its last cell (sys.exit?)" in failure(toy)


def test_processes_that_a_successful_notebook_left_are_ended(toy, process_zoo):
    start, pids = process_zoo
    toy.write(1, extra=start)
    toy.chain(names=FIRST)
    assert len(pids()) == 3
    assert descendants() == []
    assert (toy.run / "logs" / "01_step.log").read_text().count("ended a process that the notebook left") == 2


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
    with pytest.raises(WiringError, match=f"another chain is writing this run folder .found process {chain.pid}"):
        toy.chain(names=FIRST)
    with pytest.raises(WiringError, match="another chain is writing"):
        RunFolder(toy.run).remove()
    assert toy.alive(chain.pid)
    chain.kill()
    chain.wait()
    toy.wait_for(lambda: not any(map(toy.alive, whole)), ENDED_WITHIN_S, "the end of all processes")
    assert toy.markers() == []
    assert toy.statuses(1)["write"] != "completed"
    toy.write(1)
    assert toy.chain(names=FIRST).ran == ("01_step",)


def test_sigkill_of_the_worker_is_told_and_its_kernel_goes(toy, started):
    chain, whole = started
    worker = next(
        process for process in descendants(chain.pid) if "wiring.workbook.notebook_worker" in process.cmdline()
    )
    worker.kill()
    _, said = chain.communicate(timeout=ENDED_WITHIN_S)
    assert chain.returncode == 1
    assert b"the notebook could not be executed" in said
    assert b"status -9" in said
    toy.wait_for(lambda: not toy.alive(whole[0]), ENDED_WITHIN_S, "the end of the kernel")
    assert toy.markers() == []


def test_the_worker_ends_without_an_order():
    worker = subprocess.run(
        [sys.executable, "-m", "wiring.workbook.notebook_worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.returncode != 0
