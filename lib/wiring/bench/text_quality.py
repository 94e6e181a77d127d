"""Is a text fit for a benchmark? A looping text is accepted by any draft and measures nothing."""

from __future__ import annotations

from collections.abc import Sequence


def unique_share(ids: Sequence[int], n: int) -> float:
    """Distinct n-grams of `ids` over all its n-grams (1.0: nothing repeats); 1.0 for a text shorter than n."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


BIGRAM_FLOOR = 0.4  # a text that repeats a short phrase falls far below; prose and computation stay above
