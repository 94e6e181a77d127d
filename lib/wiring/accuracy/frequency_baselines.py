"""Frequency baselines: the accuracy of proposing frequent labels, a lower reference for every accuracy.

unigram: always the most frequent label. bigram: the most frequent label after the previous token. Tables are built on
one half of the sequences and scored on the other, in both directions. The halves follow the Thue-Morse sequence (parity
of the ones in the binary digits of the sequence number), because data sets often alternate. An unseen token gets the
most frequent label. A label outside the draft's vocabulary is never right.
"""

from __future__ import annotations

import numpy as np


class FrequencyTable:
    """Counts of (token, label) pairs of counted rows, by the half of their sequence."""

    def __init__(self, vocab: int):
        self.vocab = vocab
        self._pairs: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def add(self, sequence: int, tokens: np.ndarray, labels: np.ndarray) -> None:
        """Count rows of one sequence: tokens [M] fed, labels [M]; -1 is a label outside the draft's vocabulary."""
        keys, counts = np.unique(tokens.astype(np.int64) * (self.vocab + 1) + labels + 1, return_counts=True)
        table = self._pairs[sequence.bit_count() % 2]
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            table[key] = table.get(key, 0) + count

    def scores(self) -> tuple[float | None, float | None]:
        """Return the unigram and bigram shares of right labels; None where one half holds no rows."""
        right = np.zeros(2)
        rows = 0
        for known, asked in ((0, 1), (1, 0)):
            if not self._pairs[known] or not self._pairs[asked]:
                return None, None
            usual, after = self._tables(known)
            for key, count in self._pairs[asked].items():
                token, label = divmod(key, self.vocab + 1)
                right += [count * (label == usual), count * (label == after.get(token, usual))]
                rows += count
        return float(right[0] / rows), float(right[1] / rows)

    def _tables(self, half: int) -> tuple[int, dict[int, int]]:
        """Return the most frequent label, overall and by token; labels are offset by one, ties go to the lower."""
        by_label: dict[int, int] = {}
        best: dict[int, tuple[int, int]] = {}
        for key, count in self._pairs[half].items():
            token, label = divmod(key, self.vocab + 1)
            if label == 0:
                continue
            by_label[label] = by_label.get(label, 0) + count
            best[token] = max(best.get(token, (0, 0)), (count, -label))
        usual = max(by_label, key=lambda label: (by_label[label], -label), default=-1)
        return usual, {token: -label for token, (_, label) in best.items()}
