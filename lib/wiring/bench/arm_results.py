"""Results of a benchmark arm: rate, speed-up, acceptance, seconds per round, and how varied its texts are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.measurement import Trial

BIGRAM_FLOOR = 0.4  # a looping text falls far below, prose and computation stay above


class ArmResult(BaseModel):
    """Results of one arm: medians over requests, with the quartiles as spread.

    `speedup` is the median over prompts of this arm's rate over the baseline's on the same prompt.
    `step_s` is the time of one plain decode step, `round_s` of one draft-and-verify round: (request - prefill)
    over steps or rounds. Accept length includes the bonus token, not the prefill token.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str
    requests: int
    tok_per_s: float
    tok_per_s_quartiles: tuple[float, float]
    speedup: float
    speedup_quartiles: tuple[float, float]
    prefill_s: float
    step_s: float | None = None
    round_s: float | None = None
    rounds: int = 0
    correct_drafts: int = 0
    accept_length: float | None = None
    acceptance_by_position: tuple[float, ...] = ()
    acceptance_conditional: tuple[float | None, ...] = ()


def summarize(trials: Sequence[Trial], baseline: Sequence[Trial], steps: int) -> ArmResult:
    """Compute the results of one arm's `trials` against the `baseline` trials on the same prompts."""
    rates = [len(t.output_ids) / t.seconds for t in trials]
    ratios = paired_ratios(trials, baseline)
    decode = [t.seconds - t.prefill_s for t in trials]
    figures: dict[str, Any] = dict(
        arm=trials[0].arm,
        requests=len(trials),
        tok_per_s=median(rates),
        tok_per_s_quartiles=_quartiles(rates),
        speedup=median(ratios),
        speedup_quartiles=_quartiles(ratios),
        prefill_s=median(t.prefill_s for t in trials),
    )
    if not any(t.rounds for t in trials):
        # The first token comes with the prefill, so n tokens take n - 1 decode steps.
        return ArmResult(
            **figures, step_s=median(d / (len(t.output_ids) - 1) for d, t in zip(decode, trials, strict=True))
        )
    got = acceptance(pool_histograms(t.histogram for t in trials), steps)
    return ArmResult(
        **figures,
        round_s=median(d / t.rounds for d, t in zip(decode, trials, strict=True)),
        rounds=got.rounds,
        correct_drafts=got.correct_drafts,
        accept_length=got.accept_length,
        acceptance_by_position=got.by_position,
        acceptance_conditional=tuple(c if c == c else None for c in got.conditional),
    )


def paired_ratios(trials: Sequence[Trial], baseline: Sequence[Trial]) -> list[float]:
    """Return the rate over the baseline's rate for each prompt (each from the mean time over its repeats)."""
    ours, plain = _mean_seconds(trials), _mean_seconds(baseline)
    return [plain[p] / ours[p] for p in sorted(ours) if p in plain]


def same_outputs(trials: Sequence[Trial], baseline: Sequence[Trial]) -> tuple[bool, ...]:
    """Return for each prompt whether every repeat of both arms gave the same token ids."""
    outputs = defaultdict(set)
    for trial in (*trials, *baseline):
        outputs[trial.prompt].add(trial.output_ids)
    return tuple(len(outputs[p]) == 1 for p in sorted(outputs))


def bigram_shares(trials: Sequence[Trial]) -> tuple[float, ...]:
    """Return the unique-bigram share of each output of one arm (first repeat), by prompt."""
    first = {t.prompt: t for t in reversed(trials)}
    return tuple(unique_share(first[p].output_ids, 2) for p in sorted(first))


def unique_share(ids: Sequence[int], n: int) -> float:
    """Return distinct n-grams of `ids` over all its n-grams; 1.0 for a text shorter than n.

    A draft predicts a looping text easily, so such a text is unfit for a benchmark.
    """
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _mean_seconds(trials: Sequence[Trial]) -> dict[int, float]:
    seconds = defaultdict(list)
    for trial in trials:
        seconds[trial.prompt].append(trial.seconds)
    return {prompt: mean(values) for prompt, values in seconds.items()}


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)
