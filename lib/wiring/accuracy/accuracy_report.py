"""Results of a draft evaluation as plain numbers, without torch, for JSON and artefacts."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.layers import Layout


@dataclass(frozen=True)
class DepthAccuracy:
    """Accuracy of draft step `depth` (0 first). Shares lie in 0..1; `low`, `high` bound a 95 % interval.

    `correct` of `total` rows are right, pooled over all sequences; `accuracy` is averaged as the rule says.
    `floor` is the share of the most frequent label of the sample (a frequency baseline); `out_of_vocabulary` of
    `out_of_vocabulary_of` rows in the loss mask have a label outside the draft's vocabulary.
    """

    depth: int
    correct: int
    total: int
    accuracy: float
    low: float
    high: float
    floor: float
    out_of_vocabulary: int
    out_of_vocabulary_of: int


@dataclass(frozen=True)
class PositionAccuracy:
    """Pooled counts of one depth among rows t in first..last (token positions)."""

    depth: int
    first: int
    last: int | None
    correct: int
    total: int


@dataclass(frozen=True)
class AccuracyReport:
    """Accuracy under one layout and one control, over `sequences` sequences.

    `accept_length` is simulated, without the bonus token: the sum over depths of the product of the accuracies up to
    that depth (for a cumulative rule: the sum of its accuracies). `unigram` and `bigram` are the frequency baselines at
    depth 0 (None below two sequences).
    """

    layout: Layout
    control: str
    rule: str
    sequences: int
    depths: tuple[DepthAccuracy, ...]
    positions: tuple[PositionAccuracy, ...]
    accept_length: float
    accept_length_low: float
    accept_length_high: float
    unigram: float | None
    bigram: float | None

    @property
    def accept_length_with_bonus(self) -> float:
        """Simulated accept length, bonus token included."""
        return self.accept_length + 1
