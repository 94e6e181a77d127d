"""The second measurement: plain, as served and cured in one run, and what a round costs at other numbers of steps."""

from __future__ import annotations

from wiring.case.artefacts import CureRow
from wiring.case.live import CURED, Progress, draft_arm, measure_arms, plain_arm
from wiring.case.store import Case
from wiring.patch import draft_copy
from wiring.patch.plan import Cure, Form
from wiring.rules.sglang import ServedLayout, Speculation
from wiring.speed.measurement import Measurement


def measure_cured(case: Case, cure: CureRow, *, progress: Progress = print) -> Measurement:
    """Benchmark plain, as served, and the draft under `cure`, on a copy that is removed afterwards."""
    planned = Cure(
        Form(cure.form),
        cure.ids,
        cure.environment,
        ServedLayout(cure.captured.prefill, cure.captured.verify),
        "proved by capture",
    )
    patched = draft_copy.apply(case.profile.draft, planned, case.scratch(f"draft-{cure.form}-benchmark"))
    try:
        cured = draft_arm(case, "05", CURED, draft=patched.folder, env=patched.environment, progress=progress)
        arms = [plain_arm(case, "05", progress), draft_arm(case, "05", progress=progress), cured]
        return measure_arms(case, arms, progress=progress)
    finally:
        draft_copy.undo(patched.folder)


def measure_round_costs(case: Case, *, progress: Progress = print) -> Measurement:
    """Benchmark the draft as served at the profile's `cost_steps`; the arms are named "steps N"."""
    arms = [
        draft_arm(case, "05", f"steps {n}", speculation=Speculation(n, 1, n + 1), progress=progress)
        for n in case.profile.benchmark.cost_steps
    ]
    return measure_arms(case, arms, prompts=case.profile.benchmark.cost_prompts, progress=progress)
