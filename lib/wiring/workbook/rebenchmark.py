"""Measure plain, as served and fixed in one run, and the round cost at other numbers of steps."""

from __future__ import annotations

from statistics import median

from wiring.bench.measurement import Measurement
from wiring.engines.sglang import Speculation
from wiring.workbook.case import Case
from wiring.workbook.fixes import applied, plan_for
from wiring.workbook.live import CURED, PLAIN, Progress, draft_arm, measure_arms, plain_arm


def measure_cured(case: Case, form: str = "", *, progress: Progress = print) -> Measurement:
    """Benchmark plain, as served, and the draft with the fix of this kind, on copies that are removed afterwards.

    `form`: config, plugin or source; empty: the first of the plan. Raises WiringError (no-fix) where there is none.
    """
    with applied(case, plan_for(case).fix(form), "benchmark") as fix:
        fixed = draft_arm(case, "05", CURED, draft=fix.draft, env=fix.environment, sglang=fix.sglang, progress=progress)
        arms = [plain_arm(case, "05", progress), draft_arm(case, "05", progress=progress), fixed]
        return measure_arms(case, arms, progress=progress)


def measure_round_costs(case: Case, *, progress: Progress = print) -> Measurement:
    """Benchmark the draft as served at the profile's `cost_steps`, with plain decoding; the arms are named "steps N".

    Plain decoding runs in the same run because the round cost is in plain steps: on a busy machine seconds
    drift, their ratio does not.
    """
    arms = [
        draft_arm(case, "05-costs", f"steps {n}", speculation=Speculation(n, 1, n + 1), progress=progress)
        for n in case.profile.benchmark.cost_steps
    ]
    arms = [plain_arm(case, "05-costs", progress), *arms]
    return measure_arms(case, arms, prompts=case.profile.benchmark.cost_prompts, progress=progress)


def round_costs(costs: Measurement, steps: tuple[int, ...]) -> dict[int, float]:
    """Return the round cost in plain decode steps for each number of draft steps: the median over prompts."""
    plain = {t.prompt: (t.seconds - t.prefill_s) / (len(t.output_ids) - 1) for t in costs.arm(PLAIN)}
    return {
        n: median((t.seconds - t.prefill_s) / t.rounds / plain[t.prompt] for t in costs.arm(f"steps {n}"))
        for n in steps
    }
