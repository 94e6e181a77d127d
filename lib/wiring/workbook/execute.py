"""One notebook in a worker process, watched: its outcome told, its saved copy made honest, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from wiring.checkpoints.atomic import write_text
from wiring.errors import WiringError
from wiring.workbook.notebook_job import Order, Outcome
from wiring.workbook.processes import end_descendants
from wiring.workbook.run_progress import Progress

_STOP_S = 9.0  # how long a worker may take over its own stop (it needs at most 8.5) before it is killed
_TICK_S = 0.2
_WORDS = {
    "failed": "a cell raised an error",
    "died": "the notebook's kernel died",
    "timed_out": "a cell ran out of time",
    "crashed": "the notebook could not be executed",
}
_REMEDY = {
    "failed": "",
    "died": "Often the machine ran out of memory; see the end of the log. ",
    "timed_out": "Allow more with --cell-timeout. ",
    "crashed": "See the end of the log. ",
}


class Terminated(BaseException):
    """The chain was asked to end by SIGTERM or SIGHUP. Like KeyboardInterrupt, no `except Exception` catches it."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(signal.Signals(number).name)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into Terminated within the block; in another thread than the main one, do nothing."""

    def raise_it(number: int, _frame) -> None:
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, raise_it) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def execute(order: Order, log: Path, progress: Progress, lock: int | None = None) -> None:
    """Execute a notebook to its end; WiringError where it did not get there.

    `lock` is a file descriptor that the worker holds as long as it lives. On KeyboardInterrupt and
    Terminated everything is ended (10 s at most) before they go on.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    Path(order.output).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "wiring.workbook.notebook_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            env=_environment(),
            pass_fds=() if lock is None else (lock,),
        )
    try:
        outcome = _watch(worker, order, progress)
    except BaseException as error:
        with _undisturbed():
            progress.say("Stopping: ending the notebook and what it started (10 s at most).")
            _stop(worker)
            _tell_notebook(Path(order.output), Outcome("stopped", message=f"stopped by {type(error).__name__}"))
        raise
    finally:
        worker.stdin.close()
        worker.stdout.close()
    if outcome.kind != "completed":
        _tell_notebook(Path(order.output), outcome)
        raise _failure(order, outcome, log)


def _environment() -> dict[str, str]:
    library = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (library, before) if part)}


def _watch(worker: subprocess.Popen, order: Order, progress: Progress) -> Outcome:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # the pipe was closed under us: we are stopping
            for line in worker.stdout:
                lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # it died at once: told below
        worker.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        worker.stdin.flush()
    outcome = None
    while True:
        try:
            line = lines.get(timeout=_TICK_S)
        except queue.Empty:
            progress.tick()
            continue
        if not line:
            break
        told = json.loads(line)
        if "kind" in told:
            outcome = Outcome(**told)
        else:
            progress.cell(told["cell"], told["cells"])
    status = worker.wait()
    return outcome or Outcome("crashed", message=f"the worker process ended with status {status}")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a second Ctrl-C not cut the tidying-up short: that is bounded anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(worker: subprocess.Popen) -> None:
    worker.terminate()
    try:
        worker.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        end_descendants(0.0, 0.0, worker.pid)
        worker.kill()
        worker.wait()


def _failure(order: Order, outcome: Outcome, log: Path) -> WiringError:
    place = f" in cell {outcome.cell} ({outcome.cell_id})" if outcome.cell else ""
    said = outcome.message.strip().splitlines()
    return WiringError(
        f"{_WORDS.get(outcome.kind, 'the notebook was stopped')}{place}",
        where=Path(order.source).stem,
        found=said[0][:500] if said else "",
        remedy=f"{_REMEDY.get(outcome.kind, '')}Notebook as far as it came: {order.output}; log: {log}",
    )


def _tell_notebook(path: Path, outcome: Outcome) -> None:
    """Correct the saved notebook: papermill calls every cell "completed" after a dead kernel or a timeout."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    reached = False
    for number, cell in enumerate(notebook["cells"], 1):
        state = cell.get("metadata", {}).get("papermill")
        if state is None:
            continue
        # A failed cell is known to papermill, which also put its banners in front: numbers no longer fit, ids do.
        here = cell.get("id") == outcome.cell_id if outcome.cell_id else number == outcome.cell
        here = here or (not outcome.cell and state.get("status") == "running")
        if reached:
            state.update(status="pending", exception=None)
        elif here:
            state.update(status="failed", exception=True)
            reached = True
    metadata = notebook.setdefault("metadata", {})
    metadata.setdefault("papermill", {})["exception"] = True
    metadata["wiring"] = {"outcome": outcome.kind, "message": outcome.message}
    write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
