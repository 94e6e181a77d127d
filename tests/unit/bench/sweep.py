"""Measure the case's fixed draft at several chain lengths, and predict some of them from the others.

Servers take turns prompt by prompt with plain decoding, so every figure is a ratio within one run. The round cost is
fitted over the chains of `FIT`; for those of `HELD_OUT` the accept length comes from the acceptance by position of the
longest fitted chain, prompt by prompt, with the overshoot of the last round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.arm_results import summarize
from wiring.bench.benchmark import Arm
from wiring.bench.measurement import Measurement, Trial
from wiring.bench.round_cost import RoundCostModel, fit_rounds, measured_round_cost
from wiring.bench.tuning import Workload, chain_marginals, overshoot, speedup
from wiring.engines.sglang import Speculation
from wiring.patch.copies import apply_fix, remove_copy
from wiring.patch.plan import Fix
from wiring.workbook.case import Case
from wiring.workbook.live import PLAIN, Progress, draft_arm, measure_arms, plain_arm

FIT, HELD_OUT = (1, 4, 7), (2, 3, 5, 6)


@dataclass(frozen=True)
class SweepRow:
    """One held-out chain: predicted and measured.

    Accept lengths are pooled over prompts, bonus included; costs in plain steps of the same run; speed-ups are medians
    over prompts of the rate over the plain rate.
    """

    steps: int
    accept_length: float
    accept_length_measured: float
    cost: float
    cost_measured: float
    speedup: float
    speedup_measured: float

    @property
    def miss(self) -> float:
        """Predicted over measured speed-up, less 1."""
        return self.speedup / self.speedup_measured - 1


def arm_name(steps: int) -> str:
    """Return the name of a chain's arm in a measurement."""
    return f"{steps} steps, top-1, {steps + 1} tokens"


def measure_sweep(
    case: Case,
    fix: Fix,
    chains: Sequence[int] = (*FIT, *HELD_OUT),
    *,
    prompts: int | None = None,
    at_once: int = 6,
    progress: Progress = print,
) -> tuple[Measurement, ...]:
    """Measure the draft with `fix` applied at every chain length; each run has plain decoding and `at_once` chains."""
    patched = apply_fix(case.profile.draft, fix, case.scratch("draft-sweep"), case.profile.layout)

    def arm(steps: int) -> Arm:
        options = dict(draft=patched.folder, env=patched.environment, progress=progress)
        return draft_arm(case, "sweep", arm_name(steps), speculation=Speculation(steps, 1, steps + 1), **options)

    try:
        runs = []
        for start in range(0, len(chains), at_once):
            arms = [plain_arm(case, "sweep", progress), *map(arm, chains[start : start + at_once])]
            runs.append(measure_arms(case, arms, prompts=prompts, closing=2, progress=progress))
        return tuple(runs)
    finally:
        remove_copy(patched.folder)


def check_sweep(runs: Sequence[Measurement]) -> tuple[RoundCostModel, list[SweepRow]]:
    """Fit the round cost on `FIT` and predict `HELD_OUT`; their own measurements are used for comparison only."""
    arms = {steps: chain_trials(runs, steps) for steps in (*FIT, *HELD_OUT)}
    model = fit_rounds([measured_round_cost(*arms[steps], steps) for steps in FIT])
    longest = max(FIT)
    trials, plain = arms[longest]
    tokens = len(plain[0].output_ids)
    step_s = median((t.seconds - t.prefill_s) / (tokens - 1) for t in plain)
    work = Workload(tokens, *(median(t.prefill_s for t in side) / step_s for side in (plain, trials)))
    prompts = sorted({t.prompt for t in trials})
    by_prompt = [_by_position([t for t in trials if t.prompt == p], longest) for p in prompts]
    rows = []
    for steps in HELD_OUT:
        marginals = [chain_marginals(given, steps) for given in by_prompt]
        cost = model.cost(steps).value
        measured = summarize(*arms[steps], steps)
        rows.append(
            SweepRow(
                steps=steps,
                accept_length=1 + sum(chain_marginals(_by_position(trials, longest), steps)),
                accept_length_measured=measured.accept_length,
                cost=cost,
                cost_measured=measured_round_cost(*arms[steps], steps).cost,
                speedup=median(speedup(cost, 1 + sum(m), work, overshoot(m)) for m in marginals),
                speedup_measured=measured.speedup,
            )
        )
    return model, rows


def chain_trials(runs: Sequence[Measurement], steps: int) -> tuple[tuple[Trial, ...], tuple[Trial, ...]]:
    """Return the trials of a chain, and those of plain decoding in the same run."""
    return next((run.arm(arm_name(steps)), run.baseline(PLAIN)) for run in runs if run.arm(arm_name(steps)))


def _by_position(trials: Sequence[Trial], steps: int) -> tuple[float, ...]:
    return acceptance(pool_histograms(t.histogram for t in trials), steps).by_position
