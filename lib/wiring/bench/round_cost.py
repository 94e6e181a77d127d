"""Cost of a draft-and-verify round of a chain, in plain decode steps of the same run, fitted over measured settings.

A round of `steps` drafts is one verify of steps + 1 positions, one draft-extend and steps - 1 draft decodes (SGLang
0.5.23, `srt/speculative/eagle_worker_v2.py`). Hence the terms, each of which costs nothing or more:

    base                                  verify of two positions, and the draft-extend
    draft step with its verified token    x (steps - 1)
    verified token beyond w               x max(0, steps + 1 - w), where verify is free of charge up to w positions

Seconds drift on a busy machine; their ratio to the plain steps of the same run does not, so costs are such ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from wiring.bench.measurement import Trial
from wiring.errors import WiringError

BASE, CHAIN_STEP = "base", "draft step with its verified token"
_BEND_GAIN = 0.5  # a bend must at least halve the mean square residual of the straight line


@dataclass(frozen=True)
class MeasuredRoundCost:
    """`cost` of a round of `steps` drafts in plain steps of the same run, and its standard error (None: unknown)."""

    steps: int
    cost: float
    error: float | None = None


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error (None: unknown)."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Coefficient:
    """One term of the model: its name, plain steps per unit, and its standard error (None: unknown)."""

    name: str
    value: float
    error: float | None


@dataclass(frozen=True)
class RoundCostModel:
    """A fitted round cost in plain steps.

    `bend`: verify costs nothing extra up to this many positions (None: straight line). `residual`: root mean square of
    (measured - fitted) / measured over the settings; `spare`: settings beyond the number of terms.
    """

    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float, ...], ...] | None
    settings: tuple[MeasuredRoundCost, ...]
    bend: int | None
    residual: float
    spare: int

    def cost(self, steps: int) -> Estimate:
        """Return the plain steps that a round of `steps` drafts costs, which is its break-even accept length."""
        row = np.array([_units(c.name, steps, self.bend) for c in self.coefficients])
        value = float(row @ [c.value for c in self.coefficients])
        if self.covariance is None:
            return Estimate(value)
        return Estimate(value, float(np.sqrt(row @ np.array(self.covariance) @ row)))


def measured_round_cost(trials: Iterable[Trial], plain: Iterable[Trial], steps: int) -> MeasuredRoundCost:
    """Return the cost of the rounds of `trials`: the median over prompts, against the plain trials of the same run.

    Its standard error comes from the median absolute deviation, which a single slow request does not move. Raises
    WiringError when no prompt was measured both ways.
    """
    from scipy.stats import median_abs_deviation

    plain_s, round_s = _by_prompt(plain, _step_s), _by_prompt(trials, _round_s)
    ratios = [round_s[p] / plain_s[p] for p in round_s if p in plain_s]
    if not ratios:
        raise WiringError(
            "no prompt was measured with and without the draft",
            code="no-common-prompt",
            where="round cost",
            expected="trials with rounds, and plain trials on the same prompts",
            found=f"{len(round_s)} and {len(plain_s)} prompts",
        )
    error = None
    if len(ratios) > 2:
        # The variance of a median is pi / 2 times that of a mean.
        spread = median_abs_deviation(ratios, scale="normal")  # pyright: ignore[reportArgumentType] (read as float only)
        error = float((np.pi / 2 / len(ratios)) ** 0.5 * spread) or None
    return MeasuredRoundCost(steps, median(ratios), error)


def fit_rounds(settings: Sequence[MeasuredRoundCost]) -> RoundCostModel:
    """Fit the terms by non-negative least squares, with a bend where it explains much more than a straight line.

    Weighted by the settings' errors where all are known; the errors of the fit are scaled up where it misses by more.
    Raises WiringError for fewer than two settings that differ.
    """
    widths = sorted({s.steps + 1 for s in settings})
    if len(widths) < 2:
        raise WiringError(
            "the round cost is fitted over two settings or more",
            code="too-few-round-costs",
            where="round cost",
            expected="chains of two lengths or more",
            found=len(widths),
        )
    best = _fitted(settings, None)
    for bend in widths[1:-1] if len(settings) > 3 else ():
        bent = _fitted(settings, bend)
        if bent.spare and bent.residual**2 / bent.spare < _BEND_GAIN * best.residual**2 / max(best.spare, 1):
            best = bent
    return best


def bend_name(bend: int) -> str:
    """Return the name of the term of a bend at this many verified tokens."""
    return f"verified token beyond {bend}"


def _fitted(settings: Sequence[MeasuredRoundCost], bend: int | None) -> RoundCostModel:
    from scipy.optimize import nnls

    names = [BASE, CHAIN_STEP, *([] if bend is None else [bend_name(bend)])]
    y = np.array([s.cost for s in settings])
    errors = [s.error for s in settings]
    known = all(errors)
    weight = 1 / y  # equal relative errors
    if known:  # the error of few prompts may be tiny by chance, so none weighs more than the median error
        weight = 1 / np.maximum(np.array(errors, float), np.median(np.array(errors, float)))
    matrix = np.array([[_units(name, s.steps, bend) for name in names] for s in settings])
    value, norm = nnls(matrix * weight[:, None], y * weight)
    used = [i for i, name in enumerate(names) if value[i] > 0 or name == BASE]  # terms of no cost are left out
    names, matrix, value = [names[i] for i in used], matrix[:, used], value[used]
    spare = len(settings) - len(names)
    covariance = None
    if known or spare:
        scale = norm**2 / spare if spare else 1.0
        weighted = matrix * weight[:, None]
        covariance = np.linalg.inv(weighted.T @ weighted) * (max(1.0, scale) if known else scale)
    error = [None] * len(names) if covariance is None else [float(np.sqrt(v)) for v in np.diag(covariance)]
    return RoundCostModel(
        coefficients=tuple(Coefficient(n, float(v), e) for n, v, e in zip(names, value, error, strict=True)),
        covariance=None if covariance is None else tuple(map(tuple, covariance.tolist())),
        settings=tuple(settings),
        bend=bend if bend is not None and bend_name(bend) in names else None,
        residual=float(np.sqrt(np.mean(((y - matrix @ value) / y) ** 2))),
        spare=spare,
    )


def _units(name: str, steps: int, bend: int | None) -> float:
    """How often the term `name` occurs in a round."""
    if name == BASE:
        return 1.0
    return steps - 1.0 if name == CHAIN_STEP else max(0.0, steps + 1.0 - (bend or 0))


def _by_prompt(trials: Iterable[Trial], seconds: Callable[[Trial], float | None]) -> Mapping[int, float]:
    """Mean of `seconds` by prompt."""
    found: dict[int, list[float]] = {}
    for trial in trials:
        value = seconds(trial)
        if value is not None:
            found.setdefault(trial.prompt, []).append(value)
    return {prompt: mean(values) for prompt, values in found.items()}


def _step_s(trial: Trial) -> float | None:
    # The first token comes with the prefill.
    return (trial.seconds - trial.prefill_s) / (len(trial.output_ids) - 1) if len(trial.output_ids) > 1 else None


def _round_s(trial: Trial) -> float | None:
    return (trial.seconds - trial.prefill_s) / trial.rounds if trial.rounds else None
