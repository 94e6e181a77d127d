"""What the reader sees meanwhile: which notebook runs, at which cell, how long it usually takes, where its log is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

_QUIET_EVERY_S = 60.0  # off a terminal a line a minute says that it still runs


class Progress:
    """Writes to `stream` (default: stderr): one moving line on a terminal, a few plain lines elsewhere."""

    def __init__(self, stream=None):
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._name, self._usual, self._where = "", "", ""
        self._began = self._told = 0.0

    def say(self, text: str) -> None:
        """One line."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
        self._stream.write(text + "\n")
        self._stream.flush()

    def start(self, name: str, usual: str, log: Path) -> None:
        """A notebook begins."""
        self._name, self._usual, self._where = name, usual, ""
        self._began = self._told = time.monotonic()
        self.say(f"{name}: running{f', usually {usual}' if usual else ''}; log: {log}")

    def cell(self, number: int, of: int) -> None:
        """The notebook is at this cell."""
        self._where = f"cell {number} of {of}"
        self.tick()

    def tick(self) -> None:
        """Called a few times a second while a notebook runs."""
        now = time.monotonic()
        if now - self._told < (0.5 if self._terminal else _QUIET_EVERY_S):
            return
        self._told = now
        text = f"{self._name}: {self._where or 'starting'}, {clock(now - self._began)}"
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}{f' of usually {self._usual}' if self._usual else ''}")
            self._stream.flush()
        else:
            self.say(text)

    def end(self, outcome: str) -> None:
        """The notebook ended."""
        self.say(f"{self._name}: {outcome} after {clock(time.monotonic() - self._began)}")


def clock(seconds: float) -> str:
    """Seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
