"""Intervals and tests of the package: bootstrap over whole sequences, permutation test, Wilson's interval.

Rows of one sequence (rounds of one request, rows of one document) are correlated, so the units that are resampled or
relabelled are whole sequences, requests or documents, never rows. All intervals are 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb, sqrt

import numpy as np

RESAMPLES = 2000
PERMUTATIONS = 10_000
Z95 = 1.96


def batch_sums(counts: np.ndarray, size: int) -> np.ndarray:
    """Return sums [groups, depths] of counts [sequences, depths] over consecutive batches of `size` sequences."""
    return np.add.reduceat(counts, np.arange(0, len(counts), size), axis=0)


def mean_share(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the mean over groups [depths] of each group's share; a group without rows counts as 0."""
    return np.divide(correct, total, out=np.zeros(correct.shape), where=total > 0).mean(0)


def pooled_share(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the share [depths] over the rows of all groups; nan without rows."""
    return _ratio(correct.sum(0), total.sum(0))


def share_interval(
    correct: np.ndarray,
    total: np.ndarray,
    pooled: bool,
    seed: int,
    of: Callable[[np.ndarray], np.ndarray] = lambda shares: shares,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of `of` (shares [R, depths] -> [R, ...]) over resampled groups; nan for a single group.

    correct, total [groups, depths]; `pooled` selects `pooled_share`, otherwise `mean_share`.
    """
    groups = len(correct)
    if groups == 1:
        unknown = np.full(of(np.zeros((1, correct.shape[1]))).shape[1:], np.nan)
        return unknown, unknown
    if pooled:
        return percentile_interval(of(resampled_ratios(correct, total, seed)))
    shares = np.divide(correct, total, out=np.zeros(correct.shape), where=total > 0)
    return percentile_interval(of(resampled_ratios(shares, np.ones(shares.shape), seed)))


def resampled_ratios(part: np.ndarray, whole: np.ndarray, seed: int, draws: int = RESAMPLES) -> np.ndarray:
    """Return sum(part) / sum(whole) [draws, ...] over units drawn with replacement; nan where the sum of whole is 0.

    part, whole [units, ...]; both take the same draw.
    """
    units = len(part)
    drawn = np.random.default_rng(seed).multinomial(units, [1 / units] * units, draws)  # [draws, units]
    return _ratio(drawn @ part, drawn @ whole)


def percentile_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % percentile bounds [...] of draws [draws, ...]; nan draws do not count, all nan gives 0."""
    values = np.where(np.isnan(values).all(0), 0.0, values)
    low, high = np.nanquantile(values, (0.025, 0.975), axis=0)
    return low, high


def paired_differences(sums: np.ndarray, base: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Return the mean difference per row of sums [B, D] to `base` [D] and its interval over documents: [B, 3].

    rows [D] are the counted rows of each document.
    """
    apart = (sums - base).T  # [D, B]
    low, high = percentile_interval(resampled_ratios(apart, rows[:, None], seed))
    return np.stack([apart.sum(0) / rows.sum(), low, high], 1)


def permutation_p_value(
    a: np.ndarray, b: np.ndarray, statistic: Callable[[np.ndarray, np.ndarray], np.ndarray], paired: bool, seed: int
) -> tuple[float, float]:
    """Return the two-sided p value of statistic(a, b) over relabelled units, and the smallest p value possible.

    a, b [units, k]; `statistic` maps two arrays [..., units, k] to [...]. `paired` swaps labels within pairs of equal
    index, otherwise labels are shuffled over all units. Exact up to PERMUTATIONS relabellings, else drawn.
    """
    from scipy.stats import permutation_test

    both, n = np.concatenate([a, b]), len(a)
    if min(n, len(b)) == 1:  # scipy's test needs two units on each side
        if paired:
            return 1.0, 1.0
        alone = [np.arange(len(both)) == k for k in range(len(both))]
        distances = np.array([float(np.abs(statistic(both[one], both[~one]))) for one in alone])
        observed = distances[0 if n == 1 else -1]
        return float((distances >= observed * (1 - 1e-12)).mean()), 1 / len(both)

    def distance(left: np.ndarray, right: np.ndarray, axis: int) -> np.ndarray:
        return np.abs(statistic(both[left.astype(int)], both[right.astype(int)]))

    test = permutation_test(
        (np.arange(n), np.arange(n, len(both))),
        distance,
        permutation_type="samples" if paired else "independent",
        alternative="greater",
        n_resamples=PERMUTATIONS,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    least = 2.0 ** (1 - n) if paired else 1 / comb(len(both), n)
    return float(test.pvalue), max(least, 1 / (PERMUTATIONS + 1))


def wilson_interval(share: float, rows: float) -> tuple[float, float]:
    """Return the bounds of a share of `rows` independent rows, at least 0 and at most 1.

    Wilson, E. B. (1927), "Probable inference, the law of succession, and statistical inference", JASA 22.
    """
    scale = 1 + Z95**2 / rows
    center = (share + Z95**2 / (2 * rows)) / scale
    half = Z95 / scale * sqrt(share * (1 - share) / rows + Z95**2 / (4 * rows**2))
    return max(0.0, center - half), min(1.0, center + half)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    whole = np.broadcast_to(whole, part.shape)
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole != 0)
