"""The draft's own accuracy by depth, as curves that acceptance is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import hypot
from operator import mul
from typing import Literal

from wiring.diagnosis.estimates import OTHER_PROMPTS, SAME_PROMPTS, Bounded, share
from wiring.logs.evidence import AccuracyRecord, Evidence

SAME_TEXT, OTHER_TEXT = 0.85, 0.7  # shares of an expected figure below which a figure counts as lower
_TEXTS = ("served", "held_out", "training", "other")  # ordered by similarity to what the server decodes


@dataclass(frozen=True)
class Curve:
    """Accuracy at depth 0, 1, ...

    `claimed`: the trainer's figure. `conditional`: among the rows whose earlier depths were right.
    """

    side: Literal["T", "S"]
    text: str
    claimed: bool
    depths: tuple[Bounded, ...]
    source: str
    conditional: bool = False

    @property
    def same_text(self) -> bool:
        """Whether it was measured on the text that the server decoded."""
        return self.text == "served" or self.side == "S"

    @property
    def margin(self) -> float:
        """Share of the expected drafts down to which a lower figure is attributed to the text."""
        return SAME_TEXT if self.same_text and not self.claimed else OTHER_TEXT

    @property
    def name(self) -> str:
        """The curve in words."""
        where = "the served states" if self.side == "S" else f"{self.text.replace('_', '-')} text"
        return f"{'the trainer' if self.claimed else 'the draft alone'} on {where}"

    def at(self, depth: int) -> Bounded:
        """Return accuracy at `depth`; deeper than measured, that of the deepest measured depth."""
        return self.depths[min(depth, len(self.depths) - 1)]

    def accept_length(self, steps: int) -> Bounded:
        """Return the expected accept length (bonus token included) of a chain of `steps` drafts.

        It is 1 + the sum of the running products. A conditional curve counts at each depth the rows that passed the
        depth before, so the errors of its depths are independent and add in quadrature. In other curves all depths
        count the same rows and err together: the bounds are those of all depths at once.
        """
        values = [depth.value for depth in self.depths]
        total = _chain_length(values, steps)
        bounds = []
        for bound in ("low", "high"):
            at = [getattr(depth, bound) for depth in self.depths]
            moved = [_chain_length(at, steps) - total]
            if self.conditional:
                moved = [_chain_length([*values[:k], one, *values[k + 1 :]], steps) - total for k, one in enumerate(at)]
            bounds.append(hypot(*moved))
        return Bounded(total, total - bounds[0], total + bounds[1], all(depth.counted for depth in self.depths))


def _chain_length(shares: list[float], steps: int) -> float:
    return 1 + sum(accumulate((*shares, *shares[-1:] * steps)[:steps], mul))


def curves(evidence: Evidence, side: Literal["T", "S"]) -> tuple[Curve, ...]:
    """Return the curves of one side without a control, best first.

    Measured goes before claimed, then the nearer text, then conditional ones, then the deeper ones.
    """
    groups: dict[tuple[bool, str, bool], list[AccuracyRecord]] = {}
    for row in evidence.accuracy:
        if row.side == side and not row.control and not row.condition:
            groups.setdefault((row.claimed, row.text, row.conditional), []).append(row)
    found = [_curve(rows) for rows in groups.values() if any(row.depth == 0 for row in rows)]
    return tuple(
        sorted(found, key=lambda c: (c.claimed, _TEXTS.index(c.text), not c.conditional, -len(c.depths), c.source))
    )


def best_curve(evidence: Evidence, *sides: Literal["T", "S"]) -> Curve | None:
    """Return the best curve of the first side that has one, or None."""
    return next((curve for side in sides for curve in curves(evidence, side)), None)


def _curve(rows: Iterable[AccuracyRecord]) -> Curve:
    """Take one row per depth, the one with most rows, up to the first missing depth."""
    by_depth = {row.depth: row for row in sorted(rows, key=lambda r: (r.rows or 0, r.accuracy, r.source))}
    depths = []
    while (row := by_depth.get(len(depths))) is not None:
        same = row.conditional and row.text == "served"  # a replay of the prompts that the server answered
        depths.append(share(row.accuracy, row.rows, row.low, row.high, SAME_PROMPTS if same else OTHER_PROMPTS))
    first = by_depth[0]
    return Curve(first.side, first.text, first.claimed, tuple(depths), first.source, first.conditional)
