"""Progress of a long run: a bar on a terminal, a plain line every half minute elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_LINE_EVERY_S = 30.0


class Progress:
    """A counter of `total` steps called `name`; use it as a context manager."""

    def __init__(self, name: str, total: int):
        self.name, self.total = name, total
        self.started = self.last_line = time.monotonic()
        self.bar = tqdm(total=total, desc=name, disable=None, leave=False)

    def __enter__(self) -> Progress:
        if self.bar.disable:
            self._line("starts")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
        if kind is None:
            self._line("done")

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def reach(self, done: int, loss: float | None = None) -> None:
        """Say that `done` steps are done, and with which loss."""
        note = "" if loss is None else f"loss {loss:.3f}"
        if not self.bar.disable:
            self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(done - self.bar.n)
        elif time.monotonic() - self.last_line >= _LINE_EVERY_S:
            self.last_line = time.monotonic()
            self._line(f"{done} of {self.total} {note}".rstrip())

    def _line(self, text: str) -> None:
        print(f"{self.name}: {text} ({self.seconds:.0f} s)", file=sys.stderr, flush=True)
