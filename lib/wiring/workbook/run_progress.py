"""Progress of a run on stderr: the notebook, the cell, the time; one moving line on a terminal, few lines elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tqdm import tqdm

_QUIET_EVERY_S = 60.0  # off a terminal, one line a minute


class RunProgress:
    """Progress of one notebook after the other."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self._bar: tqdm | None = None
        self._name, self._began, self._printed = "", 0.0, 0.0

    def say(self, text: str) -> None:
        """Print one line."""
        tqdm.write(text, file=self._stream)
        self._stream.flush()

    def start(self, name: str, usual: str, log: Path) -> None:
        """Report that a notebook begins."""
        self._name, self._began = name, time.monotonic()
        self._printed = self._began
        self.say(f"{name}: running{f', usually {usual}' if usual else ''}; log: {log}")
        if self._stream.isatty():
            self._bar = tqdm(desc=name, unit="cell", file=self._stream, leave=False)

    def cell(self, number: int, of: int) -> None:
        """Report the cell at which the notebook is; called a few times a second."""
        if self._bar is not None:
            self._bar.total, self._bar.n = of or None, number
            self._bar.refresh()
        elif time.monotonic() - self._printed >= _QUIET_EVERY_S:
            self._printed = time.monotonic()
            self.say(f"{self._name}: cell {number} of {of}, {clock(self._printed - self._began)}")

    def end(self, outcome: str) -> None:
        """Report that the notebook ended."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self.say(f"{self._name}: {outcome} after {clock(time.monotonic() - self._began)}")


def clock(seconds: float) -> str:
    """Return seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
