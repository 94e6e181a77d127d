"""Speed-up breakdown of a case: the round cost that notebook 05 measured, predicted chains, the limit."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.bench.acceptance import acceptance
from wiring.bench.acceptance_difference import Request, split_row
from wiring.bench.arm_results import summarize
from wiring.bench.measurement import Measurement
from wiring.bench.round_cost import RoundCostModel, fit_rounds, measured_round_cost
from wiring.bench.speedup_breakdown import ServedRate, SpeedupBreakdown, break_down
from wiring.bench.tuning import PredictedChain, Workload, predict_chains
from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.sglang import resolve_speculation
from wiring.errors import WiringError
from wiring.workbook.case import Case
from wiring.workbook.live import AS_SERVED, CURED, PLAIN


@dataclass(frozen=True)
class Limit:
    """The fitted round cost, the chains by predicted speed-up (best first), and the speed-up breakdown."""

    model: RoundCostModel
    chains: tuple[PredictedChain, ...]
    breakdown: SpeedupBreakdown


def case_limit(case: Case, measured: Measurement, costs: Measurement) -> Limit:
    """Compute the speed-up breakdown of a case from its two measurements, without a server.

    `measured` holds plain, as served and cured, `costs` plain and "steps N" for the profile's `cost_steps` (see
    `wiring.workbook.rebenchmark`). A round cost is in plain steps of the same run. Chains are predicted up to the
    longest measured one; beyond the present setting's steps the last conditional acceptance is assumed constant.

    Raises WiringError for a case that serves trees: their round cost does not follow from chains.
    """
    profile = case.profile
    setting = resolve_speculation(profile.speculation.speculation())
    if setting.topk != 1:
        raise WiringError(
            "the speed-up breakdown needs a chain",
            code="breakdown-of-tree",
            where="speculation.topk",
            expected=1,
            found=setting.topk,
        )
    baseline = measured.baseline(PLAIN)
    plain = summarize(baseline, baseline, setting.steps)
    today, cured = (summarize(measured.arm(name), baseline, setting.steps) for name in (AS_SERVED, CURED))
    assert plain.step_s and today.accept_length and cured.accept_length, "arms with a draft have rounds, plain has none"
    found = [measured_round_cost(costs.arm(f"steps {n}"), costs.arm(PLAIN), n) for n in profile.benchmark.cost_steps]
    # The round cost does not depend on what the slots hold, so both arms measure it.
    found += [measured_round_cost(measured.arm(name), baseline, setting.steps) for name in (AS_SERVED, CURED)]
    model = fit_rounds(found)
    work = Workload(
        measured.new_tokens, plain.prefill_s / plain.step_s, (today.prefill_s + cured.prefill_s) / 2 / plain.step_s
    )
    row = split_row([Request(t.histogram) for t in measured.arm(CURED)], "arm", CURED, setting.steps)
    chains = predict_chains(
        model,
        row.by_position,
        relative_error=(row.high - row.low) / (2 * 1.96) / row.accept_length,
        by_prompt=[acceptance(t.histogram, setting.steps).by_position for t in measured.arm(CURED)],
        work=work,
        longest=max(setting.steps, *profile.benchmark.cost_steps),
    )
    breakdown = break_down(
        plain_tok_per_s=plain.tok_per_s,
        steps=setting.steps,
        round_cost=model.cost(setting.steps).value,
        today=ServedRate(today.accept_length, plain.tok_per_s * today.speedup),
        cured=ServedRate(cured.accept_length, plain.tok_per_s * cured.speedup),
        draft_share=draft_share(case),
        tuned=chains,
        work=work,
    )
    return Limit(model, chains, breakdown)


def draft_share(case: Case) -> float:
    """Return the lowest cost of a draft forward in plain steps: the draft's layers over the target's."""
    config = read_json(case.profile.draft / "config.json", "the draft's config")
    return int(config.get("num_hidden_layers", 1)) / read_target_config(case.profile.target).num_layers
