"""Acceptance of groups of requests with intervals, and whether two groups differ significantly.

The unit is the request, never the round: rounds of one request share its text, its states and its cache, so they are
correlated. Where both groups hold the same prompts, the prompt is the unit and differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wiring.accuracy.stats import PERMUTATIONS, percentile_interval, permutation_p_value, resampled_ratios
from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.errors import WiringError

# /generate's meta_info by SGLang release: 0.5.12 and later, then 0.5.9 to 0.5.20; drafts only, the bonus not counted.
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True)
class Request:
    """What the rounds of one request accepted.

    `histogram[a]` = rounds that accepted `a` drafts, the bonus token not counted. `prompt` is the prompt's number, by
    which groups are paired.
    """

    histogram: tuple[int, ...]
    prompt: int | None = None

    @property
    def rounds(self) -> int:
        """Verify rounds."""
        return sum(self.histogram)

    @property
    def correct(self) -> int:
        """Accepted drafts."""
        return sum(a * n for a, n in enumerate(self.histogram))


@dataclass(frozen=True)
class SplitRow:
    """Acceptance of the requests under one `value` of the condition `by`.

    `by_position[k]` = share of rounds that accepted at least k + 1 drafts, `conditional[k]` the same among the rounds
    that accepted at least k (nan where there are none). `low`, `high`: the accept length's 95 % interval over
    resampled requests; nan for one request.
    """

    by: str
    value: bool | int | float | str
    requests: int
    rounds: int
    accept_length: float
    low: float
    high: float
    by_position: tuple[float, ...]
    conditional: tuple[float, ...]


@dataclass(frozen=True)
class AcceptanceDifference:
    """Accept length of group b minus that of group a, and its significance.

    `low`, `high`: 95 % interval of the difference. `p_value`: share of relabellings of whole units that differ at
    least as much (two-sided). `least_p`: the smallest p value that so few units can give; above 0.05 no difference is
    significant. A unit is a prompt with all its repeats, or a request without a prompt number; `paired`: both groups
    hold the same prompts, and labels were swapped within them.
    """

    accept_length_a: float
    accept_length_b: float
    difference: float
    low: float
    high: float
    p_value: float
    least_p: float
    requests_a: int
    requests_b: int
    units_a: int
    units_b: int
    rounds_a: int
    rounds_b: int
    paired: bool

    @property
    def real(self) -> bool | None:
        """Whether the difference is significant at 5 %; None where there are too few requests to decide."""
        return None if self.least_p > 0.05 else self.p_value <= 0.05

    def __str__(self) -> str:
        what = {True: "a real difference", False: "no more than chance explains", None: "too few prompts to decide"}
        unit = "prompts, paired" if self.paired else "prompts"
        return (
            f"accept length {self.accept_length_a:.2f} and {self.accept_length_b:.2f}: {self.difference:+.2f} "
            f"({self.low:+.2f} to {self.high:+.2f}), p {self.p_value:.3f} over {self.units_a} and "
            f"{self.units_b} {unit}: {what[self.real]}"
        )


def from_meta(meta: Mapping[str, Any], prompt: int | None = None) -> Request:
    """Read a request from the `meta_info` of SGLang's /generate, 0.5.9 and later.

    Raises WiringError where it holds no histogram (older releases, or a server without a draft).
    """
    name = next((n for n in _HISTOGRAMS if meta.get(n)), None)
    if name is None:
        raise WiringError(
            "meta_info holds no histogram of accepted drafts",
            code="acceptance-histogram-missing",
            where="meta_info",
            expected=" or ".join(_HISTOGRAMS),
            found=", ".join(sorted(k for k in meta if k.startswith("spec_"))) or "no speculation fields",
            remedy="Use SGLang 0.5.9 or later, and requests of at least one draft-and-verify round",
        )
    return Request(tuple(int(n) for n in meta[name]), prompt)


def split_row(requests: Sequence[Request], by: str, value: bool | int | float | str, steps: int) -> SplitRow:
    """Return the pooled acceptance of the requests that were sent under `value` of condition `by`.

    Raises ValueError when a round accepted more than `steps` drafts.
    """
    group = [r for r in requests if r.rounds]
    got = acceptance(pool_histograms(r.histogram for r in group), steps)
    low = high = float("nan")
    if len(group) > 1:
        table = np.array([(r.correct, r.rounds) for r in group], float)
        low, high = map(float, percentile_interval(1 + resampled_ratios(*table.T, seed=0, draws=PERMUTATIONS)))
    return SplitRow(by, value, len(group), got.rounds, got.accept_length, low, high, got.by_position, got.conditional)


def compare(a: Sequence[Request], b: Sequence[Request], seed: int = 0) -> AcceptanceDifference:
    """Test the accept length of group b against that of group a.

    Groups of the same prompts are compared in pairs, repeats of a prompt are added up; otherwise labels are shuffled
    over all units. Raises WiringError for a group without rounds.
    """
    for name, group in (("a", a), ("b", b)):
        if not sum(r.rounds for r in group):
            raise WiringError(
                "there are no rounds to compare",
                code="no-rounds",
                where=f"group {name}",
                expected="at least one round",
                found=f"{len(group)} requests",
            )
    units_a, units_b = _units(a), _units(b)
    paired = units_a.keys() == units_b.keys()
    left = np.array(list(units_a.values()), float)  # [units, 2]: accepted drafts, rounds
    right = np.array([units_b[unit] for unit in (units_a if paired else units_b)], float)
    p_value, least_p = permutation_p_value(left, right, _difference, paired, seed)
    low = high = float("nan")
    if min(len(left), len(right)) > 1:
        # The same draw of prompts for both groups where they are paired.
        seeds = (seed, seed if paired else seed + 1)
        first, second = (
            resampled_ratios(*side.T, seed=s, draws=PERMUTATIONS) for side, s in zip((left, right), seeds, strict=True)
        )
        low, high = map(float, percentile_interval(second - first))
    mean_a, mean_b = (1 + float(side[:, 0].sum() / side[:, 1].sum()) for side in (left, right))
    return AcceptanceDifference(
        accept_length_a=mean_a,
        accept_length_b=mean_b,
        difference=mean_b - mean_a,
        low=low,
        high=high,
        p_value=p_value,
        least_p=least_p,
        requests_a=len(a),
        requests_b=len(b),
        units_a=len(left),
        units_b=len(right),
        rounds_a=sum(r.rounds for r in a),
        rounds_b=sum(r.rounds for r in b),
        paired=paired,
    )


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Accept length of b minus that of a, from [..., units, 2] accepted drafts and rounds."""
    first, second = a.sum(-2), b.sum(-2)
    return second[..., 0] / second[..., 1] - first[..., 0] / first[..., 1]


def _units(group: Sequence[Request]) -> dict[object, tuple[int, int]]:
    """Accepted drafts and rounds by prompt, repeats added up; a request without a prompt number is its own unit."""
    found: dict[object, tuple[int, int]] = {}
    for request in group:
        if request.rounds:
            unit: object = request.prompt if request.prompt is not None else object()
            correct, rounds = found.get(unit, (0, 0))
            found[unit] = correct + request.correct, rounds + request.rounds
    return found
