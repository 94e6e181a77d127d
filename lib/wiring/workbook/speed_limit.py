"""What stands between the case and the limit: the price of a round from what notebook 05 measured, and the ladder."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.bench.acceptance import acceptance
from wiring.bench.acceptance_difference import Request, split_row
from wiring.bench.arm_results import summarize
from wiring.bench.measurement import Measurement
from wiring.bench.round_cost import RoundModel, chain, fit_rounds, is_chain, priced_round
from wiring.bench.speedup_breakdown import Ladder, Served, ladder
from wiring.bench.tuning import Outlook, Workload, outlooks
from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.sglang import resolve_speculation
from wiring.errors import WiringError
from wiring.workbook.case import Case
from wiring.workbook.live import AS_SERVED, CURED, PLAIN


@dataclass(frozen=True)
class Limit:
    """The fitted price of a round, the settings by predicted speed-up (best first), and the ladder."""

    model: RoundModel
    outlooks: tuple[Outlook, ...]
    ladder: Ladder

    def as_json(self) -> dict:
        """The whole for JSON."""
        return {
            "model": self.model.as_json(),
            "outlooks": [
                {
                    "steps": o.setting.steps,
                    "topk": o.setting.topk,
                    "draft_tokens": o.setting.draft_tokens,
                    "accept_length": o.accept_length.value,
                    "price": o.price.value,
                    "speedup": o.speedup.value,
                    "error": o.speedup.error,
                    "extrapolated": o.extrapolated,
                }
                for o in self.outlooks
            ],
            "ladder": self.ladder.as_json(),
        }


def case_limit(case: Case, measured: Measurement, costs: Measurement) -> Limit:
    """The ladder of a case from its two measurements, without a server.

    `measured` holds plain, as served and cured, `costs` plain and "steps N" for the profile's `cost_steps` (see
    `wiring.workbook.rebenchmark`). Each round is priced in the plain steps of its own run. Chains are looked at up to the
    longest one that was priced; beyond the present setting's steps the last conditional acceptance is held.

    Raises WiringError for a case that serves trees: its rounds cannot be priced from chains.
    """
    profile = case.profile
    setting = resolve_speculation(profile.speculation.speculation())
    if not is_chain(setting):
        raise WiringError(
            "the ladder of a case needs a chain",
            where="speculation.topk",
            expected=1,
            found=setting.topk,
            remedy="Use sweep, which prices trees",
        )
    baseline = measured.baseline(PLAIN)
    plain = summarize(baseline, baseline, setting.steps)
    today, cured = (summarize(measured.arm(name), baseline, setting.steps) for name in (AS_SERVED, CURED))
    assert plain.step_s and today.accept_length and cured.accept_length, "arms with a draft have rounds, plain has none"
    priced = [priced_round(costs.arm(f"steps {n}"), costs.arm(PLAIN), chain(n)) for n in profile.benchmark.cost_steps]
    # The price of a round does not depend on what the slots hold, so both arms tell it.
    priced += [priced_round(measured.arm(name), baseline, setting) for name in (AS_SERVED, CURED)]
    model = fit_rounds(priced)
    work = Workload(
        measured.new_tokens, plain.prefill_s / plain.step_s, (today.prefill_s + cured.prefill_s) / 2 / plain.step_s
    )
    row = split_row([Request(t.histogram) for t in measured.arm(CURED)], "arm", CURED, setting.steps)
    ranked = outlooks(
        model,
        row.by_position,
        relative_error=(row.high - row.low) / (2 * 1.96) / row.accept_length,
        by_prompt=[acceptance(t.histogram, setting.steps).by_position for t in measured.arm(CURED)],
        work=work,
        longest=max(setting.steps, *profile.benchmark.cost_steps),
    )
    built = ladder(
        plain_tok_per_s=plain.tok_per_s,
        setting=setting,
        price=model.price(setting),
        today=Served(today.accept_length, plain.tok_per_s * today.speedup),
        cured=Served(cured.accept_length, plain.tok_per_s * cured.speedup),
        draft_share=draft_share(case),
        tuned=ranked,
        work=work,
    )
    return Limit(model, ranked, built)


def draft_share(case: Case) -> float:
    """The least that a draft forward costs in plain steps: the draft's layers over the target's."""
    config = read_json(case.profile.draft / "config.json", "the draft's config")
    return int(config.get("num_hidden_layers", 1)) / read_target_config(case.profile.target).num_layers
