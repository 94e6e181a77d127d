"""95 % intervals by drawing whole sequences again: tokens of one sequence are not independent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

RESAMPLES = 2000


def batches(counts: np.ndarray, size: int) -> np.ndarray:
    """Sums [groups, depths] of counts [sequences, depths] over consecutive batches of `size` sequences."""
    starts = np.arange(0, len(counts), size)
    return np.add.reduceat(counts, starts, axis=0)


def mean_share(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Mean over groups [depths] of each group's share; a group without rows is 0, as its trainer has it."""
    return np.divide(correct, total, out=np.zeros(correct.shape), where=total > 0).mean(0)


def pooled_share(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Share [depths] over all rows of all groups; nan without rows."""
    rows = total.sum(0)
    return np.divide(correct.sum(0), rows, out=np.full(rows.shape, np.nan), where=rows > 0)


def resampled(correct: np.ndarray, total: np.ndarray, pooled: bool, seed: int) -> np.ndarray:
    """Shares [RESAMPLES, depths] of groups drawn again with replacement."""
    groups = len(correct)
    drawn = np.random.default_rng(seed).multinomial(groups, [1 / groups] * groups, RESAMPLES)  # [R, groups]
    if pooled:
        rows = drawn @ total
        return np.divide(drawn @ correct, rows, out=np.full(rows.shape, np.nan), where=rows > 0)
    return drawn @ np.divide(correct, total, out=np.zeros(correct.shape), where=total > 0) / groups


def interval(
    correct: np.ndarray, total: np.ndarray, pooled: bool, seed: int, of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bounds of `of` (shares [R, depths] -> [R, ...]).

    One group tells nothing about the spread between groups: the bounds are then nan, and the caller says so.
    """
    if len(correct) == 1:
        nothing = np.full(of(np.zeros((1, correct.shape[1]))).shape[1:], np.nan)
        return nothing, nothing
    values = of(resampled(correct, total, pooled, seed))
    values = np.where(np.isnan(values).all(0), 0.0, values)  # a depth without rows in any draw
    return np.nanquantile(values, 0.025, axis=0), np.nanquantile(values, 0.975, axis=0)
