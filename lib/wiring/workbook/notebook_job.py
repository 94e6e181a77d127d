"""Data that passes between a run and the process that executes one notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ResultKind = Literal["completed", "failed", "died", "timed_out", "stopped", "crashed"]


@dataclass(frozen=True)
class NotebookJob:
    """One notebook to execute: papermill's own arguments."""

    source: str
    output: str
    parameters: dict[str, Any]
    cwd: str
    execution_timeout_s: int


@dataclass(frozen=True)
class JobResult:
    """How a job ended; `cell` (1-based, 0 before the first) and `cell_id` name the cell at which it ended."""

    kind: ResultKind
    cell: int = 0
    cell_id: str = ""
    message: str = ""
