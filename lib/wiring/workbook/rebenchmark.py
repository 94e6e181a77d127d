"""The second measurement: plain, as served and cured in one run, and what a round costs at other numbers of steps."""

from __future__ import annotations

from statistics import median

from wiring.bench.measurement import Measurement
from wiring.engines.sglang import Speculation
from wiring.patch import draft_copy
from wiring.workbook.artefacts import CureRow
from wiring.workbook.case import Case
from wiring.workbook.live import CURED, PLAIN, Progress, draft_arm, measure_arms, plain_arm


def measure_cured(case: Case, cure: CureRow, *, progress: Progress = print) -> Measurement:
    """Benchmark plain, as served, and the draft under `cure`, on a copy that is removed afterwards."""
    folder = case.scratch(f"draft-{cure.form}-benchmark")
    patched = draft_copy.apply(case.profile.draft, cure, folder, case.profile.layout)
    try:
        cured = draft_arm(case, "05", CURED, draft=patched.folder, env=patched.environment, progress=progress)
        arms = [plain_arm(case, "05", progress), draft_arm(case, "05", progress=progress), cured]
        return measure_arms(case, arms, progress=progress)
    finally:
        draft_copy.undo(patched.folder)


def measure_round_costs(case: Case, *, progress: Progress = print) -> Measurement:
    """Benchmark the draft as served at the profile's `cost_steps`, beside plain decoding; the arms are named "steps N".

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
