"""Accept length and acceptance by position, from SGLang's unbiased counts.

`spec_accept_length` of SGLang also counts the prefill token; here accept length is 1 + accepted drafts / verify rounds,
so 1.0 means that no draft was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of the verify rounds of some requests.

    `accept_length` includes the bonus token. `by_position[k]` is the share of rounds that accepted at least
    k + 1 drafts; `conditional[k]` the same among the rounds that accepted at least k (NaN where there are none).
    """

    rounds: int
    correct_drafts: int
    accept_length: float
    by_position: tuple[float, ...]
    conditional: tuple[float, ...]


def pool_histograms(histograms: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add histograms of accepted drafts; shorter ones are padded with zeros."""
    return tuple(sum(column) for column in zip_longest(*histograms, fillvalue=0))


def acceptance(histogram: Sequence[int], steps: int) -> Acceptance:
    """Compute acceptance from `histogram[a]` = rounds that accepted `a` drafts, for chains of `steps` drafts.

    An empty histogram gives accept length NaN. Raises ValueError when a round accepted more than `steps`.
    """
    if len(histogram) > steps + 1 and any(histogram[steps + 1 :]):
        raise ValueError(f"a round accepted more than {steps} drafts: histogram {tuple(histogram)}")
    padded = [*histogram[: steps + 1], *[0] * (steps + 1 - len(histogram))]
    rounds = sum(padded)
    correct = sum(a * n for a, n in enumerate(padded))
    reached = [sum(padded[k:]) for k in range(steps + 1)]  # rounds that accepted at least k drafts
    nan = float("nan")
    return Acceptance(
        rounds=rounds,
        correct_drafts=correct,
        accept_length=1 + correct / rounds if rounds else nan,
        by_position=tuple(reached[k] / rounds if rounds else nan for k in range(1, steps + 1)),
        conditional=tuple(reached[k] / reached[k - 1] if reached[k - 1] else nan for k in range(1, steps + 1)),
    )
