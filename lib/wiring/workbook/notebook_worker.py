"""`python -m wiring.workbook.notebook_worker`: executes one notebook with papermill, in a process of its own.

The chain writes the order as one line of JSON to stdin and keeps that pipe open: end-of-file means that
the chain is gone, however it died, and everything here ends. SIGTERM asks for the same. What happens is
told as lines of JSON on stdout; papermill's and the kernel's own output goes to stderr, the log.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from wiring.workbook import notebook_files as notebook
from wiring.workbook.notebook_job import Order, Outcome
from wiring.workbook.processes import adopt_orphans, end_descendants, signal_group

# From the stop to the end of everything, in seconds; the sum stays under the 10 that the chain promises.
_INTERRUPT_S = 2.5  # the cell gets KeyboardInterrupt and may leave its `with` blocks
_PATIENCE_S = 2.5  # the guards of servers see their owner gone
_GRACE_S = 1.5  # the rest, after SIGTERM
_AFTER_SUCCESS_S = 10.0  # a server that the last cell left running is ended by its guard: no hurry


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _State:
    """What the signal handler and the watch must know about the run."""

    group: int | None = None  # the kernel's process group
    cell: int = 0
    cell_id: str = ""
    stopping = False


_STATE = _State()


def main() -> int:
    """Execute the order on stdin; 0 when the outcome could be told."""
    tell = _private_stdout()
    order = Order(**json.loads(_first_line(0)))
    os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning of the debugger that is not ours
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # "python3" is this environment's kernel, not the user's
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: _stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the chain, which decides
    threading.Thread(target=_watch_chain, daemon=True).start()
    outcome = _execute(order, tell)
    signal_group(_STATE.group, signal.SIGKILL)
    # The kernel is gone; a guard may need a moment more than it.
    patience, grace = (_AFTER_SUCCESS_S, 3.0) if outcome.kind == "completed" else (_PATIENCE_S, _GRACE_S)
    for command in end_descendants(patience, grace):
        print(f"ended a process that the notebook left: {command}", file=sys.stderr, flush=True)
    tell(asdict(outcome))
    return 0


def _private_stdout():
    """Keep the pipe to the chain out of the kernel's reach: its stdout becomes ours, and that is the log."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(value: dict[str, Any]) -> None:
        with lock:
            try:
                pipe.write(json.dumps(value) + "\n")
                pipe.flush()
            except BrokenPipeError:  # the chain is gone; the watch ends us
                pass

    return tell


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return line


def _watch_chain() -> None:
    while os.read(0, 4096):  # not sys.stdin: a thread waiting in it would abort the interpreter's own exit
        pass
    _stop()


def _stop() -> None:
    """Interrupt the cell, and a little later end everything for good."""
    if not _STATE.stopping:
        _STATE.stopping = True
        signal_group(_STATE.group, signal.SIGINT)
        threading.Thread(target=_end_for_good, daemon=True).start()


def _end_for_good() -> None:
    time.sleep(_INTERRUPT_S)
    signal_group(_STATE.group, signal.SIGKILL)
    end_descendants(_PATIENCE_S, _GRACE_S)
    os._exit(1)


def _execute(order: Order, tell) -> Outcome:
    notebook.nbformat()
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill import execute_notebook
    from papermill.engines import papermill_engines
    from papermill.exceptions import PapermillExecutionError

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    papermill_engines.register("wiring", _engine(tell))
    execute = partial(
        execute_notebook,
        order.source,
        order.output,
        order.parameters,
        engine_name="wiring",
        kernel_name="python3",
        progress_bar=False,
        log_output=True,
        cwd=order.cwd,
        execution_timeout=order.execution_timeout_s,
        iopub_timeout=60,  # seconds for what a cell printed to arrive: after it, output is dropped without a word
        kernel_manager_class=_kernel_manager(),
        store_widget_state=False,
        coalesce_streams=True,
    )
    try:
        try:
            executed = execute()
        except RuntimeError as error:
            if _STATE.stopping or "died before replying" not in str(error):
                raise
            # Jupyter looks for free ports and the kernel binds them a second later: another may have been faster.
            print(f"{error}: starting the kernel once more", file=sys.stderr, flush=True)
            executed = execute()
    except PapermillExecutionError as error:
        message = f"{error.ename}: {error.evalue}".strip(": ")
        print(_COLOURS.sub("", "\n".join(error.traceback)), file=sys.stderr, flush=True)
        return _outcome("stopped" if _STATE.stopping else "failed", message)
    except DeadKernelError:
        return _outcome("stopped" if _STATE.stopping else "died", "the kernel died")
    except CellTimeoutError:
        return _outcome("timed_out", f"the cell took longer than {order.execution_timeout_s} s")
    except Exception as error:  # a kernel that does not start, a full disk: told, never swallowed
        logging.exception("papermill could not execute the notebook")
        return _outcome("stopped" if _STATE.stopping else "crashed", f"{type(error).__name__}: {error}")
    if any(_unexecuted(cell) for cell in executed.cells):
        return _outcome("failed", "the notebook ended before its last cell (sys.exit?)")
    return _outcome("completed", "")


def _outcome(kind: str, message: str) -> Outcome:
    return Outcome(kind, _STATE.cell, _STATE.cell_id, message)


def _unexecuted(cell) -> bool:
    skipped = "skip-execution" in cell.metadata.get("tags", [])
    return cell.cell_type == "code" and bool(cell.source.strip()) and cell.execution_count is None and not skipped


def _engine(tell):
    from papermill.engines import NBClientEngine

    class TellingEngine(NBClientEngine):
        """papermill's own engine, telling which cell it is at."""

        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, **more):
            start = nb_man.cell_start

            def told(cell, cell_index=None, **rest):
                if cell.cell_type == "code":
                    _STATE.cell, _STATE.cell_id = cell_index + 1, cell.get("id", "")
                    tell({"cell": _STATE.cell, "cells": len(nb_man.nb.cells)})
                return start(cell, cell_index, **rest)

            nb_man.cell_start = told
            return super().execute_managed_notebook(nb_man, kernel_name, **more)

    return TellingEngine


def _kernel_manager():
    from jupyter_client.manager import AsyncKernelManager

    class KnownKernelManager(AsyncKernelManager):
        """Keeps the kernel's process group, to end what the kernel leaves in it."""

        async def _async_launch_kernel(self, kernel_cmd, **more):
            await super()._async_launch_kernel(kernel_cmd, **more)
            _STATE.group = self.provisioner.pgid
            if _STATE.stopping:
                signal_group(_STATE.group, signal.SIGINT)

    return KnownKernelManager


if __name__ == "__main__":
    sys.exit(main())
