"""Acceptance by position, split by what it may depend on, and whether two groups of requests differ for real.

The unit is the request, never the round: rounds of one request share its text, its states and its cache, so they rise
and fall together, and a test that counted them one by one would call noise a finding. Where both groups hold the same
prompts, the prompt is the unit and differences are taken within it; prompts differ more than most faults do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import comb
from typing import Any

import numpy as np

from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.measurement import Trial
from wiring.errors import WiringError

DRAWS = 10_000
_EXACT_UP_TO = 13  # prompts: 2^13 sign patterns are fewer than the draws

# /generate's meta_info by SGLang release: 0.5.12 and later, then 0.5.9 to 0.5.20; drafts only, the bonus not counted.
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True)
class Request:
    """What the rounds of one request accepted, and under which conditions.

    `histogram[a]` = rounds that accepted `a` drafts, the bonus token not counted. `prompt` says which prompt it was, so
    that groups can be paired. `condition`: names and values of `wiring.logs.evidence.CONDITIONS`.
    """

    histogram: tuple[int, ...]
    prompt: int | None = None
    condition: Mapping[str, bool | int | float | str] = field(default_factory=dict)

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
    """Acceptance of the requests of one value of a condition.

    `by_position[k]` = share of rounds that accepted at least k + 1 drafts, `conditional[k]` the same among the rounds
    that accepted at least k (nan where there are none). `low`, `high`: the accept length's 95 % interval, by drawing
    requests again; nan for one request, which tells nothing about others.
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
class Difference:
    """Accept length of group b less that of group a, and how far chance alone would go.

    `low`, `high`: 95 % interval of the difference. `p_value`: share of relabellings of whole requests that differ at
    least as much (two-sided). `least_p`: the smallest p value that so few units can give; above 0.05 nothing can be
    told, whatever the difference. A unit is a prompt with all its repeats, or a request where prompts are not named;
    `paired`: both groups hold the same prompts, and labels were swapped within them.
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
        """Whether the difference is real at 5 %; None where there are too few requests to tell."""
        if self.least_p > 0.05:
            return None
        return self.p_value <= 0.05

    def __str__(self) -> str:
        what = {True: "a real difference", False: "no more than chance explains", None: "too few to tell"}
        unit = "prompts, paired" if self.paired else "prompts"
        return (
            f"accept length {self.accept_length_a:.2f} and {self.accept_length_b:.2f}: {self.difference:+.2f} "
            f"({self.low:+.2f} to {self.high:+.2f}), p {self.p_value:.3f} over {self.units_a} and "
            f"{self.units_b} {unit}: {what[self.real]}"
        )


def from_trial(trial: Trial, **condition: bool | int | float | str) -> Request:
    """A benchmark's trial as a request under `condition`."""
    return Request(trial.histogram, trial.prompt, condition)


def from_rounds(rounds: Sequence[int], prompt: int | None = None, **condition: bool | int | float | str) -> Request:
    """A request from the accepted drafts of its rounds, as a replay gives them: what a server should have accepted."""
    histogram = tuple(list(rounds).count(a) for a in range(max(rounds, default=-1) + 1))
    return Request(histogram, prompt, condition)


def from_meta(meta: Mapping[str, Any], prompt: int | None = None, **condition: bool | int | float | str) -> Request:
    """A request from the `meta_info` of SGLang's /generate, 0.5.9 and later; cached and prompt tokens come along.

    Raises WiringError where it holds no histogram (older releases, or a server without a draft).
    """
    name = next((n for n in _HISTOGRAMS if meta.get(n)), None)
    if name is None:
        raise WiringError(
            "meta_info holds no histogram of accepted drafts",
            where="meta_info",
            expected=" or ".join(_HISTOGRAMS),
            found=", ".join(sorted(k for k in meta if k.startswith("spec_"))) or "nothing about speculation",
            remedy="SGLang 0.5.9 and later give it, to requests that ran at least one round with a draft",
        )
    known: dict[str, Any] = {}
    if isinstance(meta.get("cached_tokens"), int):
        known["cached"] = meta["cached_tokens"] > 0
    if isinstance(meta.get("prompt_tokens"), int):
        known["prompt_tokens"] = meta["prompt_tokens"]
    return Request(tuple(int(n) for n in meta[name]), prompt, {**known, **condition})


def buckets(name: str, edges: Sequence[float]) -> Callable[[Request], float | None]:
    """A key for `split`: the smallest of `edges` that the condition's value does not exceed; beyond them infinity."""
    ordered = sorted(edges)

    def key(request: Request) -> float | None:
        value = request.condition.get(name)
        return None if value is None else next((e for e in ordered if float(value) <= e), float("inf"))

    return key


def split(
    requests: Iterable[Request], by: str, *, steps: int, edges: Sequence[float] = (), seed: int = 0
) -> tuple[SplitRow, ...]:
    """Acceptance for each value of condition `by`, in the order of the values; requests that lack it are left out.

    With `edges` values are put into buckets, each named by its upper end (prompt lengths, hours). Raises WiringError
    when no request has the condition; ValueError when a round accepted more than `steps` drafts.
    """
    key = buckets(by, edges) if edges else lambda request: request.condition.get(by)
    groups: dict[Any, list[Request]] = {}
    for request in requests:
        value = key(request)
        if value is not None and request.rounds:
            groups.setdefault(value, []).append(request)
    if not groups:
        raise WiringError("no request was measured under this condition", where="split", expected=by, found="none")
    return tuple(_row(by, value, groups[value], steps, seed) for value in sorted(groups, key=_order))


def compare(a: Sequence[Request], b: Sequence[Request], *, seed: int = 0) -> Difference:
    """Is the accept length of group `b` another than that of group `a`?

    Pooled: 1 + accepted drafts / rounds over a whole group. When both groups hold the same prompts, labels are swapped
    within prompts (every pattern, where there are few) and prompts are drawn again; otherwise labels are shuffled.
    Raises WiringError for a group without rounds.
    """
    for name, group in (("a", a), ("b", b)):
        if not sum(r.rounds for r in group):
            raise WiringError("there are no rounds to compare", where=f"group {name}", found=f"{len(group)} requests")
    units_a, units_b = _units(a), _units(b)
    paired = units_a.keys() == units_b.keys()
    left = np.array(list(units_a.values()), float)  # [units, 2]: accepted drafts, rounds
    right = np.array([units_b[unit] for unit in (units_a if paired else units_b)], float)
    draws, p_value, least = (_paired if paired else _unpaired)(left, right, np.random.default_rng(seed))
    few = min(len(left), len(right)) < 2
    low, high = (float("nan"),) * 2 if few else map(float, np.quantile(draws, (0.025, 0.975)))
    mean_a, mean_b = (1 + float(side[:, 0].sum() / side[:, 1].sum()) for side in (left, right))
    return Difference(
        accept_length_a=mean_a,
        accept_length_b=mean_b,
        difference=mean_b - mean_a,
        low=low,
        high=high,
        p_value=p_value,
        least_p=least,
        requests_a=len(a),
        requests_b=len(b),
        units_a=len(left),
        units_b=len(right),
        rounds_a=sum(r.rounds for r in a),
        rounds_b=sum(r.rounds for r in b),
        paired=paired,
    )


def without_nan(value: Any) -> Any:
    """Dicts and lists with None for nan, which JSON does not have."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value


def _row(by: str, value: Any, group: Sequence[Request], steps: int, seed: int) -> SplitRow:
    got = acceptance(pool_histograms(r.histogram for r in group), steps)
    low = high = float("nan")
    if len(group) > 1:
        table = np.array([(r.correct, r.rounds) for r in group], float)
        drawn = _drawn(np.random.default_rng(seed), len(group)) @ table
        low, high = map(float, np.quantile(1 + drawn[:, 0] / drawn[:, 1], (0.025, 0.975)))
    return SplitRow(by, value, len(group), got.rounds, got.accept_length, low, high, got.by_position, got.conditional)


def _paired(left: np.ndarray, right: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float, float]:
    """Bootstrap of the difference over prompts [DRAWS], p value by swaps within prompts, and the least p value."""
    n = len(left)
    if n <= _EXACT_UP_TO:
        swapped = np.array(list(product((False, True), repeat=n)))  # every pattern, the observed one among them
        none = 0
    else:
        swapped, none = rng.random((DRAWS, n)) < 0.5, 1
    first, second = left.sum(0) + swapped @ (right - left), right.sum(0) - swapped @ (right - left)
    p_value = _share(_difference(first, second), _difference(left.sum(0), right.sum(0)), none)
    drawn = _drawn(rng, n)
    return _difference(drawn @ left, drawn @ right), p_value, max(2.0 ** (1 - n), 1 / (DRAWS + 1))


def _unpaired(left: np.ndarray, right: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float, float]:
    """As `_paired`, with labels shuffled over requests and requests of each group drawn again."""
    both, n = np.concatenate([left, right]), len(left)
    in_a = rng.random((DRAWS, len(both))).argsort(1) < n  # [DRAWS, requests], n of each row true
    first = in_a @ both
    p_value = _share(_difference(first, both.sum(0) - first), _difference(left.sum(0), right.sum(0)), 1)
    draws = _difference(_drawn(rng, n) @ left, _drawn(rng, len(right)) @ right)
    return draws, p_value, max(1 / comb(len(both), n), 1 / (DRAWS + 1))


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Accept length of b less that of a, from [..., 2] accepted drafts and rounds."""
    return b[..., 0] / b[..., 1] - a[..., 0] / a[..., 1]


def _share(relabelled: np.ndarray, observed: np.ndarray, itself: int) -> float:
    """Share of relabellings at least as far apart as observed; drawn ones do not include the observed, which counts."""
    further = np.abs(relabelled) >= abs(float(observed)) - 1e-12
    return float((further.sum() + itself) / (len(further) + itself))


def _drawn(rng: np.random.Generator, n: int) -> np.ndarray:
    """How often each of n units is drawn, [DRAWS, n]."""
    return rng.multinomial(n, [1 / n] * n, DRAWS)


def _units(group: Sequence[Request]) -> dict[object, tuple[int, int]]:
    """Accepted drafts and rounds of each prompt, its repeats added up; a request of no named prompt is its own."""
    found: dict[object, tuple[int, int]] = {}
    for request in group:
        if request.rounds:
            unit: object = request.prompt if request.prompt is not None else object()
            correct, rounds = found.get(unit, (0, 0))
            found[unit] = correct + request.correct, rounds + request.rounds
    return found


def _order(value: Any) -> tuple[str, Any]:
    return ("", float(value)) if isinstance(value, bool | int | float) else (str(value), 0.0)
