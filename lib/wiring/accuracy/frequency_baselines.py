"""What a table of token frequencies would score: the floor under every accuracy.

unigram: always the most frequent label. bigram: the most frequent label after the token before it. Tables are made on
one half of the sequences and scored on the other, both ways round, so that they do not know the answers. The halves
are those of the Thue-Morse sequence, since data sets alternate: sequences with an even number of ones in the binary
digits of their number, and the others. A token that the table has not seen gets the most frequent label. A label that
the draft cannot say is never right.
"""

from __future__ import annotations

import numpy as np


class FrequencyTable:
    """Collects (token, label) pairs of counted rows, by the half that their sequence is in."""

    def __init__(self, vocab: int):
        self.vocab = vocab
        self._pairs: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def add(self, sequence: int, tokens: np.ndarray, labels: np.ndarray) -> None:
        """Count rows of one sequence: tokens [M] fed, labels [M]; -1 is a label that cannot be said."""
        keys, counts = np.unique(tokens.astype(np.int64) * (self.vocab + 1) + labels + 1, return_counts=True)
        table = self._pairs[sequence.bit_count() % 2]
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            table[key] = table.get(key, 0) + count

    def scores(self) -> tuple[float | None, float | None]:
        """Unigram and bigram share of right labels; None where one half holds no rows."""
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
        """Most frequent label, and most frequent label by token; labels are offset by one, ties go to the lower."""
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
