"""The base class of the readers of log lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from wiring.logs.acceptance_figures import Figures, normalise
from wiring.logs.evidence import AcceptanceRecord, FactRecord, Record, SpeedRecord, Value
from wiring.logs.log_context import Context
from wiring.logs.log_text import place


class LineParser:
    """Reads a log line by line: `feed` every line that contains one of `words`, then `finish`."""

    words: tuple[str, ...] = ()

    def __init__(self, context: Context):
        self._context = context

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """Yield the records that line number `at` completes."""
        raise NotImplementedError

    def finish(self) -> Iterator[Record]:
        """Yield the records that the end of the log completes."""
        yield from ()

    def _source(self, at: int) -> str:
        return place(self._context.source, at)

    def _acceptance(
        self, at: int, figures: Figures, rule: str, line: str = "", **condition: Value | None
    ) -> AcceptanceRecord:
        held = self._context.condition(line, **condition)
        return normalise(self._source(at), figures, rule=rule, condition=held)

    def _speed(
        self,
        at: int,
        arm: Literal["plain", "draft"],
        tok_per_s: float,
        length: float | None = None,
        line: str = "",
        **condition: Value | None,
    ) -> SpeedRecord:
        held = self._context.condition(line, **condition)
        return SpeedRecord(source=self._source(at), arm=arm, tok_per_s=tok_per_s, accept_length=length, condition=held)

    def _fact(self, at: int | None, name: str, value: Value, letter: Literal["L", "P"] = "L") -> FactRecord:
        source = self._context.source if at is None else self._source(at)
        return FactRecord(source=source, letter=letter, name=name, value=value)
