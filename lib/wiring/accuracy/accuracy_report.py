"""What an evaluation of the draft alone gives: plain numbers, without torch, fit for JSON and for artefacts."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.layers import Layout


@dataclass(frozen=True)
class DepthAccuracy:
    """Accuracy of draft step `depth` (0 first). Shares lie in 0..1; `low`, `high` bound a 95 % interval.

    `correct` of `total` rows are right, pooled over all sequences; `accuracy` is averaged as the rule says.
    `floor` is the share reached by always proposing the most frequent label of the sample; `out_of_vocabulary` of
    `out_of_vocabulary_of` rows that the loss mask names have a label that the draft cannot say.
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

    `accept_length` is the simulated one without the bonus token, sum over depths of the product of the accuracies up
    to there (of a cumulative rule: the sum of its accuracies); with the bonus it is one more. `unigram` and `bigram`
    are the shares of frequency tables at depth 0 (None below two sequences).
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
        """Simulated accept length, the target's own token included."""
        return self.accept_length + 1
