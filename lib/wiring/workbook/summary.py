"""The results of a case in one file, `summary.json`, for people and CI."""

from __future__ import annotations

from pydantic import Field

from wiring.bench.measurement import Machine
from wiring.bench.speedup_breakdown import BreakdownStep
from wiring.diagnosis.verdict import Verdict
from wiring.workbook.artefacts import (
    Accuracy,
    Artefact,
    LayoutDiff,
    Patch,
    PhaseLayout,
    Rebenchmark,
    Throughput,
)
from wiring.workbook.check import Claim


class Baseline(Artefact):
    """Plain decoding."""

    tok_per_s: float = Field(description="median over requests, output tokens / wall second, prefill included")


class AsServed(Artefact):
    """EAGLE-3 with the draft's own config, measured in the same run as the baseline."""

    tok_per_s: float
    speedup: float = Field(description="median over prompts of the rate over the baseline's on the same prompt")
    accept_length: float = Field(
        description="1 + accepted drafts / verify rounds: bonus token included, prefill token not"
    )
    acceptance_by_position: tuple[float, ...] = Field(
        description="share of rounds that accepted at least k drafts, k = 1.."
    )
    layout: PhaseLayout = Field(description="boundaries captured in the running server, slot by slot")


class EvaluationSummary(Artefact):
    """The draft without a server, on saved training states."""

    trained_layout: tuple[int, ...]
    accuracy_trained: float = Field(
        description="depth 0, full-vocabulary labels, out-of-draft-vocabulary counts as wrong"
    )
    accuracy_served: float = Field(description="the same, fed the layout that the server serves")


class Cured(AsServed):
    """EAGLE-3 with the fixed copy of the draft."""

    form: str
    predicted_speedup: float = Field(
        description="from the draft replayed on the served text and round costs measured at other numbers of steps"
    )


class Arguments(Artefact):
    """The speculation arguments, requested and resolved."""

    asked: dict[str, int | str | None]
    resolved: dict[str, int | str | None]
    overridden: tuple[str, ...]


class Summary(Artefact):
    """`summary.json`."""

    case: str
    machine: Machine = Field(description="where and when notebook 05 measured")
    versions: dict[str, str]
    baseline: Baseline
    as_served: AsServed
    standalone: EvaluationSummary
    cured: Cured
    lossless: bool = Field(description="every arm gave the same token ids on every prompt")
    arguments: Arguments
    ladder: tuple[BreakdownStep, ...] = Field(description="from today's rate to the limit, one cause at a time")
    verdict: Verdict | None = Field(description="kinds of fault named in the draft as served")
    verdict_cured: Verdict | None = Field(description="the same for the cured draft")
    conclusions: tuple[Claim, ...]


def summarize(
    case: str, throughput: Throughput, accuracy: Accuracy, layout: LayoutDiff, patch: Patch, rebenchmark: Rebenchmark
) -> Summary:
    """Join the five artefacts. Rates and speed-ups are those of notebook 05, which has all arms in one run."""
    chosen = next(c for c in patch.cures if c.form == rebenchmark.form)
    plain, as_served, cured = rebenchmark.plain, rebenchmark.as_served, rebenchmark.cured
    rows = throughput.arguments
    return Summary(
        case=case,
        machine=rebenchmark.machine,
        versions=rebenchmark.machine.versions,
        baseline=Baseline(tok_per_s=plain.tok_per_s),
        as_served=AsServed(**_rates(as_served), layout=layout.captured),
        standalone=EvaluationSummary(
            trained_layout=layout.trained,
            accuracy_trained=accuracy.trained.depths[0].accuracy,
            accuracy_served=accuracy.served.depths[0].accuracy,
        ),
        cured=Cured(
            **_rates(cured),
            layout=chosen.captured,
            form=rebenchmark.form,
            predicted_speedup=rebenchmark.prediction.speedup,
        ),
        lossless=all(throughput.same_outputs) and all(rebenchmark.same_outputs),
        arguments=Arguments(
            asked={r.name: r.asked for r in rows},
            resolved={r.name: r.resolved for r in rows},
            overridden=tuple(r.name for r in rows if r.overridden),
        ),
        ladder=rebenchmark.ladder,
        verdict=rebenchmark.verdict,
        verdict_cured=rebenchmark.verdict_cured,
        conclusions=tuple(c for a in (throughput, accuracy, layout, patch, rebenchmark) for c in a.conclusions),
    )


def _rates(arm) -> dict:
    return dict(
        tok_per_s=arm.tok_per_s,
        speedup=arm.speedup,
        accept_length=arm.accept_length,
        acceptance_by_position=arm.acceptance_by_position,
    )
