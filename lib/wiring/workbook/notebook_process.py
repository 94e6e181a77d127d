"""`python -m wiring.workbook.notebook_process STATE`: execute one notebook with papermill, in a process of its own.

STATE is a JSON file with the job. Its `cell` and `cells` are updated as the notebook proceeds, and `result` is
written at the end. What papermill and the kernel print goes to stdout and stderr, the log.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wiring.checkpoints.atomic import write_json
from wiring.workbook.notebook_files import nbformat
from wiring.workbook.notebook_job import JobResult, NotebookJob, ResultKind

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class _State:
    """The state file: the cell at which the notebook is, and the result."""

    def __init__(self, path: Path):
        self.path, self.cell, self.cell_id, self.cells = path, 0, "", 0

    def at(self, cell: int, cell_id: str, cells: int) -> None:
        self.cell, self.cell_id, self.cells = cell, cell_id, cells
        write_json(self.path, {"cell": cell, "cell_id": cell_id, "cells": cells})

    def end(self, kind: ResultKind, message: str = "") -> None:
        result = JobResult(kind, self.cell, self.cell_id, message)
        write_json(self.path, {"result": asdict(result)})


def main(path: Path) -> int:
    """Execute the job in the state file at `path`; return 0 when the result was written."""
    job = NotebookJob(**json.loads(path.read_text(encoding="utf-8"))["job"])
    os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning of the debugger about frozen modules
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # "python3" is this environment's kernel, not the user's
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    state = _State(path)
    state.end(*_execute(job, state))
    return 0


def _execute(job: NotebookJob, state: _State) -> tuple[ResultKind, str]:
    nbformat()
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    try:
        try:
            executed = _papermill(job, state)
        except RuntimeError as error:
            if state.cell or isinstance(error, DeadKernelError):
                raise
            # Jupyter looks for free ports and the kernel binds them a second later: another process may be faster.
            print(f"{error}: starting the kernel once more", file=sys.stderr, flush=True)
            executed = _papermill(job, state)
    except PapermillExecutionError as error:
        print(_ANSI.sub("", "\n".join(error.traceback)), file=sys.stderr, flush=True)
        return "failed", f"{error.ename}: {error.evalue}".strip(": ")
    except DeadKernelError:
        return "died", "the kernel died"
    except CellTimeoutError:
        return "timed_out", f"the cell took longer than {job.execution_timeout_s} s"
    except Exception as error:  # a kernel that does not start, a full disk
        logging.exception("papermill could not execute the notebook")
        return "crashed", f"{type(error).__name__}: {error}"
    if any(_unexecuted(cell) for cell in executed.cells):
        return "failed", "the notebook ended before its last cell (sys.exit?)"
    return "completed", ""


def _papermill(job: NotebookJob, state: _State) -> Any:
    from papermill import execute_notebook
    from papermill.engines import papermill_engines

    papermill_engines.register("wiring", _engine(state))
    return execute_notebook(
        job.source,
        job.output,
        job.parameters,
        engine_name="wiring",
        kernel_name="python3",
        progress_bar=False,
        log_output=True,
        cwd=job.cwd,
        execution_timeout=job.execution_timeout_s,
        iopub_timeout=60,  # seconds for a cell's output to arrive; after it, output is dropped silently
        store_widget_state=False,
        coalesce_streams=True,
    )


def _engine(state: _State) -> type:
    from papermill.engines import NBClientEngine

    class ReportingEngine(NBClientEngine):
        """papermill's own engine, which also notes the cell at which it is."""

        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, **options):
            start = nb_man.cell_start

            def noted(cell, cell_index=None, **rest):
                if cell.cell_type == "code":
                    state.at((cell_index or 0) + 1, cell.get("id", ""), len(nb_man.nb.cells))
                return start(cell, cell_index, **rest)

            nb_man.cell_start = noted
            return super().execute_managed_notebook(nb_man, kernel_name, **options)

    return ReportingEngine


def _unexecuted(cell) -> bool:
    skipped = "skip-execution" in cell.metadata.get("tags", [])
    return cell.cell_type == "code" and bool(cell.source.strip()) and cell.execution_count is None and not skipped


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
