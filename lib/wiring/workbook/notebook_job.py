"""What passes between the chain and the worker that executes one notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Order:
    """What to execute: papermill's own arguments."""

    source: str
    output: str
    parameters: dict[str, Any]
    cwd: str
    execution_timeout_s: int


@dataclass(frozen=True)
class Outcome:
    """How it ended: completed, failed, died, timed_out, stopped or crashed; the cell where; the words."""

    kind: str
    cell: int = 0  # 1-based, in the executed notebook; 0 where no cell had begun
    cell_id: str = ""
    message: str = ""
