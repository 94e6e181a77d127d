"""The draft's own accuracy by depth: the best record of T or S, as a curve that acceptance is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import hypot
from operator import mul
from typing import Literal

from wiring.diagnosis.symptoms.estimates import OTHER_PROMPTS, SAME_PROMPTS, Estimate, share
from wiring.logs.evidence import Accuracy, Evidence

_TEXTS = ("served", "held_out", "training", "other")  # the nearer to what the server decodes, the better


@dataclass(frozen=True)
class Curve:
    """Accuracy at depth 0, 1, ...; `claimed`: the trainer's. `conditional`: among rows whose earlier depths were right."""

    side: Literal["T", "S"]
    text: str
    claimed: bool
    depths: tuple[Estimate, ...]
    source: str
    conditional: bool = False

    @property
    def same_text(self) -> bool:
        """Whether it was measured on what the server decoded."""
        return self.text == "served" or self.side == "S"

    @property
    def name(self) -> str:
        """The curve in words."""
        where = "the served states" if self.side == "S" else f"{self.text.replace('_', '-')} text"
        return f"{'the trainer' if self.claimed else 'the draft alone'} on {where}"

    def at(self, depth: int) -> Estimate:
        """Accuracy at `depth`; below the deepest known one it is taken to stay as it is."""
        return self.depths[min(depth, len(self.depths) - 1)]

    def accept_length(self, steps: int) -> Estimate:
        """Expected accept length (bonus included) of a chain of `steps`: 1 + the sum of the running products.

        A conditional curve counts at each depth the rows that the depth before left, so the errors of its depths are
        independent and add in quadrature. Elsewhere all depths count the same rows and err together: the bounds are
        those of all depths at once.
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
        counted = all(depth.counted for depth in self.depths)
        return Estimate(total, total - bounds[0], total + bounds[1], counted)


def _chain_length(shares: Sequence[float], steps: int) -> float:
    """1 + the sum of the running products; below the deepest known depth the share is taken to stay as it is."""
    conditional = (*shares, *shares[-1:] * steps)[:steps]
    return 1 + sum(accumulate(conditional, mul))


def curves(evidence: Evidence, side: Literal["T", "S"]) -> tuple[Curve, ...]:
    """Every curve of one side without a control, best first: measured, on served text, conditional as rounds are."""
    groups: dict[tuple[bool, str, bool], list[Accuracy]] = {}
    for row in evidence.accuracy:
        if row.side == side and not row.control and not row.condition:
            groups.setdefault((row.claimed, row.text, row.conditional), []).append(row)
    found = [_curve(rows) for rows in groups.values() if any(row.depth == 0 for row in rows)]

    def order(curve: Curve) -> tuple:
        return curve.claimed, _TEXTS.index(curve.text), not curve.conditional, -len(curve.depths), curve.source

    return tuple(sorted(found, key=order))


def best(evidence: Evidence, side: Literal["T", "S"]) -> Curve | None:
    """The curve that acceptance is held against, None where there is none."""
    return next(iter(curves(evidence, side)), None)


def _curve(rows: Iterable[Accuracy]) -> Curve:
    """One row a depth, the one with most rows; up to the first depth that is missing."""
    by_depth: dict[int, Accuracy] = {}
    for row in sorted(rows, key=lambda r: (r.rows or 0, r.accuracy, r.source)):
        by_depth[row.depth] = row
    depths = []
    while len(depths) in by_depth:
        row = by_depth[len(depths)]
        same = row.conditional and row.text == "served"  # a replay of the very prompts that the server answered
        design = SAME_PROMPTS if same else OTHER_PROMPTS
        depths.append(share(row.accuracy, row.rows, row.low, row.high, design))
    first = by_depth[0]
    return Curve(first.side, first.text, first.claimed, tuple(depths), first.source, first.conditional)
