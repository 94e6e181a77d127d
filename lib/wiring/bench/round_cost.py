"""The price of a draft-and-verify round, fitted over measured settings, in plain decode steps of the same run.

A round of `steps` drafts is one verify of `draft_tokens` positions, one draft-extend and steps - 1 draft decodes of
`topk` rows each (SGLang 0.5.23, `srt/speculative/eagle_worker_v2.py`). Hence the terms

    base                    verify of one position, and the draft-extend
    draft step              x (steps - 1)
    verified token          x (draft_tokens - 1)
    branch of a draft step  x (steps - 1) (topk - 1)
    wide verify             x max(0, draft_tokens - w), for hardware that verifies up to w positions at one price

each of which costs nothing or more. Seconds of one minute do not hold for the next on a busy machine; their ratio to
the plain steps beside them does. So all prices are ratios within one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median

import numpy as np

from wiring.bench.measurement import Trial
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError

BASE, STEP, TOKEN, BRANCH = "base", "draft step", "verified token", "branch of a draft step"
CHAIN_STEP = "draft step with its verified token"
_HINGE_GAIN = 0.5  # a bend must at least halve the mean square that is left, or a straight line does

Term = Callable[[Speculation], float]
_TERMS: dict[str, Term] = {
    BASE: lambda s: 1.0,
    STEP: lambda s: s.steps - 1.0,
    TOKEN: lambda s: s.draft_tokens - 1.0,
    BRANCH: lambda s: (s.steps - 1.0) * (s.topk - 1.0),
}


@dataclass(frozen=True)
class PricedRound:
    """What a round cost at one setting: `price` in plain steps of the same run, over `prompts` prompts.

    `error` is its standard error (None: unknown).
    """

    setting: Speculation
    price: float
    error: float | None = None
    prompts: int = 1


@dataclass(frozen=True)
class Coefficient:
    """One term of the model: its name, plain steps per unit, and its standard error (None: nothing left to tell it)."""

    name: str
    value: float
    error: float | None


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error (None: unknown)."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class RoundModel:
    """A fitted price of a round, in plain steps.

    `chains_only`: all settings were chains, where a draft step never comes without its verified token; the two are
    then one term, and trees have no price. `bend`: verify is free of charge by width up to this many positions (None:
    straight). `residual`: root mean square of (measured - fitted) / measured over the settings; `spare`: settings
    beyond the number of terms, 0 means that the residual says nothing.
    """

    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float, ...], ...] | None
    settings: tuple[PricedRound, ...]
    bend: int | None
    chains_only: bool
    residual: float
    spare: int

    def price(self, setting: Speculation) -> Estimate:
        """Plain steps that a round costs at `setting`; this is also its break-even accept length.

        Raises WiringError for a tree when only chains were measured.
        """
        if self.chains_only and not is_chain(setting):
            raise WiringError(
                "the price of a tree cannot be told from chains",
                where="round cost",
                expected="at least one measured setting with topk above 1",
                found="chains only",
                remedy="Measure a tree too: sweep does",
            )
        row = np.array([_units(c.name, self.bend)(setting) for c in self.coefficients])
        value = float(row @ [c.value for c in self.coefficients])
        if self.covariance is None:
            return Estimate(value)
        return Estimate(value, float(np.sqrt(row @ np.array(self.covariance) @ row)))

    def as_json(self) -> dict:
        """The model for JSON; prices in plain steps."""
        return {
            "coefficients": [{"name": c.name, "plain_steps": c.value, "error": c.error} for c in self.coefficients],
            "bend": self.bend,
            "chains_only": self.chains_only,
            "residual": self.residual,
            "spare": self.spare,
            "settings": [
                {
                    "steps": p.setting.steps,
                    "topk": p.setting.topk,
                    "draft_tokens": p.setting.draft_tokens,
                    "price": p.price,
                    "error": p.error,
                    "fitted": self.price(p.setting).value,
                }
                for p in self.settings
            ],
        }


def is_chain(setting: Speculation) -> bool:
    """Whether the drafts of a round are one path: top-k 1."""
    return setting.topk == 1


def chain(steps: int) -> Speculation:
    """The chain of `steps` drafts as a server resolves it: steps + 1 verified tokens."""
    return Speculation(steps, 1, steps + 1)


def priced_round(trials: Iterable[Trial], plain: Iterable[Trial], setting: Speculation) -> PricedRound:
    """The price of the rounds of `trials`, prompt by prompt against the plain trials of the same run.

    The median over prompts; its standard error comes from the median absolute deviation, which a single slow request
    does not move. Raises WiringError when no prompt was measured both ways.
    """
    steps, rounds = _by_prompt(plain, _step_s), _by_prompt(trials, _round_s)
    ratios = [rounds[p] / steps[p] for p in rounds if p in steps]
    if not ratios:
        raise WiringError(
            "no prompt was measured with and without the draft",
            where="round cost",
            expected="trials with rounds, and plain trials on the same prompts",
            found=f"{len(rounds)} and {len(steps)} prompts",
        )
    price = median(ratios)
    error = None
    if len(ratios) > 2:
        spread = 1.4826 * median(abs(r - price) for r in ratios)  # a normal's standard deviation from its MAD
        error = (np.pi / 2) ** 0.5 * spread / len(ratios) ** 0.5  # of a median: pi/2 times the variance of a mean
    return PricedRound(setting, price, float(error) if error else None, len(ratios))


def fit_rounds(settings: Sequence[PricedRound]) -> RoundModel:
    """Fit the terms that the settings can tell apart, none of them below zero, by least squares.

    Weighted by the settings' errors where all are known; these are scaled up where the fit misses by more. With chains
    alone: base and one term by step. With trees also the verified token, and with enough of them the branches and a
    bend. Raises WiringError for fewer than two settings that differ.
    """
    if len({p.setting for p in settings}) < 2:
        raise WiringError(
            "the price of a round needs two settings or more",
            where="round cost",
            expected="chains of two lengths, or more",
            found=f"{len({p.setting for p in settings})}",
        )
    chains_only = all(is_chain(p.setting) for p in settings)
    names = [BASE, CHAIN_STEP]
    if not chains_only:
        names = [BASE]
        for name in (STEP, TOKEN, BRANCH):
            # The branches only where a setting is left over: three terms tell most of it.
            if _independent([*names, name], settings) and (name != BRANCH or len(settings) > len(names) + 1):
                names.append(name)
    best = _fitted(names, settings, None, chains_only)
    width = CHAIN_STEP if chains_only else TOKEN
    for bend in sorted({p.setting.draft_tokens for p in settings})[1:-1]:
        bent = [*names, bend_name(bend)]
        if width in names and len(settings) > len(bent) and _independent(bent, settings, bend):
            other = _fitted(bent, settings, bend, chains_only)
            if other.spare and other.residual**2 / other.spare < _HINGE_GAIN * best.residual**2 / max(best.spare, 1):
                best = other
    return best


def _fitted(names: Sequence[str], settings: Sequence[PricedRound], bend: int | None, chains_only: bool) -> RoundModel:
    """The best fit with no coefficient below zero: the best of all subsets of terms that come out that way."""
    y = np.array([p.price for p in settings])
    errors = [p.error for p in settings]
    known = all(e is not None and e > 0 for e in errors)
    weight = 1 / y  # alike in per cent
    if known:  # of few prompts an error may come out tiny by chance: none counts for less than the middle one
        weight = 1 / np.maximum(np.array(errors, float), np.median(np.array(errors, float)))
    best: tuple[float, tuple[str, ...], np.ndarray] | None = None
    for size in range(len(names)):
        for chosen in combinations(names[1:], size):
            terms = (names[0], *chosen)
            matrix = _matrix(terms, settings, bend)
            value = np.linalg.lstsq(matrix * weight[:, None], y * weight, rcond=None)[0]
            missed = float((((y - matrix @ value) * weight) ** 2).sum())
            if (value >= 0).all() and (best is None or missed < best[0] - 1e-15):
                best = missed, terms, value
    assert best is not None, "a positive constant fits positive prices"
    missed, terms, value = best
    matrix = _matrix(terms, settings, bend)
    spare = len(settings) - len(terms)
    covariance = None
    if known or spare:
        scale = missed / spare if spare else 1.0
        covariance = np.linalg.inv((matrix * weight[:, None]).T @ (matrix * weight[:, None]))
        covariance *= max(1.0, scale) if known else scale
    error = [None] * len(terms) if covariance is None else [float(np.sqrt(v)) for v in np.diag(covariance)]
    return RoundModel(
        coefficients=tuple(Coefficient(n, float(v), e) for n, v, e in zip(terms, value, error, strict=True)),
        covariance=None if covariance is None else tuple(map(tuple, covariance.tolist())),
        settings=tuple(settings),
        bend=bend if bend is not None and bend_name(bend) in terms else None,
        chains_only=chains_only,
        residual=float(np.sqrt(np.mean(((y - matrix @ value) / y) ** 2))),
        spare=spare,
    )


def _units(name: str, bend: int | None) -> Term:
    if name in _TERMS:
        return _TERMS[name]
    if name == CHAIN_STEP:
        return _TERMS[STEP]
    return lambda s: max(0.0, s.draft_tokens - float(bend or 0))


def bend_name(bend: int) -> str:
    """The name of the term of a bend at this many verified tokens."""
    return f"verified token beyond {bend}"


def _matrix(names: Sequence[str], settings: Sequence[PricedRound], bend: int | None) -> np.ndarray:
    return np.array([[_units(name, bend)(p.setting) for name in names] for p in settings])


def _independent(names: Sequence[str], settings: Sequence[PricedRound], bend: int | None = None) -> bool:
    return np.linalg.matrix_rank(_matrix(names, settings, bend)) == len(names)


def _by_prompt(trials: Iterable[Trial], seconds: Callable[[Trial], float | None]) -> Mapping[int, float]:
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
