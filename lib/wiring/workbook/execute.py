"""Run one notebook in a supervised process, report the outcome, and correct papermill's cell statuses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wiring.checkpoints.atomic import write_json, write_text
from wiring.errors import WiringError
from wiring.server.supervisor import start_supervised
from wiring.workbook.notebook_job import JobResult, NotebookJob
from wiring.workbook.run_progress import RunProgress

_GRACE_S = 2.0  # between SIGTERM and SIGKILL when a notebook is stopped
_POLL_S = 0.2
_PROBLEMS = {
    "failed": ("a cell raised an error", ""),
    "died": ("the notebook's kernel died", "Often the machine ran out of memory; see the end of the log. "),
    "timed_out": ("a cell ran out of time", "Allow more with --cell-timeout. "),
    "crashed": ("the notebook could not be executed", "See the end of the log. "),
}


class Terminated(BaseException):
    """The run received SIGTERM or SIGHUP. Like KeyboardInterrupt, `except Exception` does not catch it."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(signal.Signals(number).name)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise Terminated on SIGTERM and SIGHUP within the block; do nothing outside the main thread."""

    def terminate(number: int, frame: object) -> None:
        raise Terminated(number)

    with _handlers(terminate, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handlers(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def execute(job: NotebookJob, log: Path, progress: RunProgress, started: Callable[[int], object]) -> None:
    """Execute a notebook to its end.

    The process tree ends with this process, also by kill -9. On KeyboardInterrupt and Terminated it is ended first.
    `started` receives the id of the notebook's process. Raises WiringError (notebook-failed).
    """
    Path(job.output).parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    # Next to the log, not in the temporary directory: a killed run leaves nothing there.
    path = write_json(log.with_name(f".{log.stem}.state.json"), {"job": asdict(job)})
    command = [sys.executable, "-m", "wiring.workbook.notebook_process", str(path)]
    process = start_supervised(command, os.environ, log, grace_s=_GRACE_S)
    started(process.pid)
    try:
        while process.alive:
            state = _read(path)
            progress.cell(state.get("cell", 0), state.get("cells", 0))
            time.sleep(_POLL_S)
    except BaseException as error:
        # A second Ctrl-C must not interrupt this; the supervisor ends the tree within seconds.
        with _handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            state = _read(path)  # the last poll may be older than the cell that runs now
            progress.say("Stopping: ending the notebook and the processes that it started (10 s at most).")
            process.end()
            stopped = JobResult("stopped", **_place(state), message=f"stopped by {type(error).__name__}")
            _correct(Path(job.output), stopped)
        raise
    ended = _read(path)
    path.unlink()
    message = f"its process ended with status {process.exit_status}"
    result = (
        JobResult(**ended["result"]) if "result" in ended else JobResult("crashed", **_place(ended), message=message)
    )
    if result.kind != "completed":
        _correct(Path(job.output), result)
        raise _failure(job, result, log)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _place(state: dict[str, Any]) -> dict[str, Any]:
    return {"cell": state.get("cell", 0), "cell_id": state.get("cell_id", "")}


def _failure(job: NotebookJob, result: JobResult, log: Path) -> WiringError:
    problem, remedy = _PROBLEMS[result.kind]
    place = f" in cell {result.cell} ({result.cell_id})" if result.cell else ""
    lines = result.message.strip().splitlines()
    return WiringError(
        f"{problem}{place}",
        code="notebook-failed",
        where=Path(job.source).stem,
        found=lines[0][:500] if lines else "",
        remedy=f"{remedy}Notebook so far: {job.output}; log: {log}",
    )


def _correct(path: Path, result: JobResult) -> None:
    """Correct the saved notebook: papermill marks every cell "completed" after a dead kernel or a timeout."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    reached = False
    for number, cell in enumerate(notebook["cells"], 1):
        status = cell.get("metadata", {}).get("papermill")
        if status is None:
            continue
        # papermill puts a banner in front of a failed cell, so numbers do not fit any more, but ids do.
        here = cell.get("id") == result.cell_id if result.cell_id else number == result.cell
        here = here or (not result.cell and status.get("status") == "running")
        if reached:
            status.update(status="pending", exception=None)
        elif here:
            status.update(status="failed", exception=True)
            reached = True
    metadata = notebook.setdefault("metadata", {})
    metadata.setdefault("papermill", {})["exception"] = True
    metadata["wiring"] = {"outcome": result.kind, "message": result.message}
    write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
