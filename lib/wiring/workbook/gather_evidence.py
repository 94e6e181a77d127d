"""Build the evidence of a run from its artefacts: T of 02, L, S, C of 03 (C of 04 after the fix), P, R of 01 and 05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from wiring.accuracy.accuracy_report import AccuracyReport
from wiring.bench.arm_results import ArmResult
from wiring.capture.matching import SlotMatch
from wiring.diagnosis.slot_symptoms import DRIFTED, PARTIAL
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.logs.evidence import (
    AcceptanceRecord,
    AccuracyRecord,
    ArgumentRecord,
    Evidence,
    FactRecord,
    LintRecord,
    Setting,
    SlotRecord,
    SpeedRecord,
)
from wiring.logs.evidence import Phase as PhaseName
from wiring.workbook.artefacts import (
    ARTEFACTS,
    LayoutDiff,
    Patch,
    PhaseLayout,
    Rebenchmark,
    Throughput,
)
from wiring.workbook.artefacts import Accuracy as AccuracyArtefact
from wiring.workbook.case import validate_artefact

_STEPS = ("steps", "speculative_num_steps")  # names of the row in an artefact of this release and of older ones
_AS_TRANSFORM = {"drift": DRIFTED, "between": PARTIAL}  # verdicts of a comparison that name no boundary


def evidence_of_run(folder: Path, *, cured: bool = False) -> Evidence:
    """Return the evidence of a run folder: the draft as served, or after the fix.

    Takes the artefacts that are there; the as-served evidence needs one of 01 and 05 at least, the cured one 04 and 05.
    Raises WiringError when these are missing, or one is not of this release's shape.
    """
    folder = Path(folder)
    found = {name: validate_artefact(folder, name) for name in ARTEFACTS if (folder / f"{name}.json").is_file()}
    if cured:
        if "04_patch" not in found or "05_rebenchmark" not in found:
            raise WiringError(
                "server with the fix was not measured",
                code="fix-not-measured",
                where=folder,
                expected="04_patch and 05_rebenchmark",
                found=", ".join(found) or "no artefact",
                remedy="Run the whole chain first",
            )
        return evidence_of_cured(
            accuracy=found.get("02_accuracy"),
            layout=found.get("03_layout"),
            patch=found["04_patch"],
            rebenchmark=found["05_rebenchmark"],
            name=folder.name,
        )
    if not {"01_throughput", "05_rebenchmark"} & set(found):
        raise WiringError(
            "run has no measurement yet",
            code="run-measured-nothing",
            where=folder,
            expected="01_throughput or 05_rebenchmark",
            found=", ".join(found) or "no artefact",
            remedy="Run its notebooks first",
        )
    return evidence_as_served(
        throughput=found.get("01_throughput"),
        accuracy=found.get("02_accuracy"),
        layout=found.get("03_layout"),
        rebenchmark=found.get("05_rebenchmark"),
        name=folder.name,
    )


def evidence_as_served(
    *,
    throughput: Throughput | None = None,
    accuracy: AccuracyArtefact | None = None,
    layout: LayoutDiff | None = None,
    rebenchmark: Rebenchmark | None = None,
    name: str = "",
) -> Evidence:
    """Return the evidence of the draft as served. Arms come from 05 where it ran, which has all in one run."""
    arms = rebenchmark or throughput
    assert arms is not None, "needs an artefact with arms"
    source = "05_rebenchmark" if rebenchmark else "01_throughput"
    steps = _resolved_steps(throughput)
    return Evidence(
        name=name,
        setting=_setting(arms, layout, steps),
        lint=_lint(layout),
        arguments=_arguments(throughput),
        accuracy=(*_training(accuracy), *_serving(layout, served=True)),
        slots=_slots(layout.slots, layout.trained, "03_layout") if layout is not None else (),
        acceptance=_acceptance(arms.as_served, steps, source),
        speed=_speed(arms.plain, arms.as_served, source),
        facts=_facts(throughput, rebenchmark),
    )


def evidence_of_cured(
    *,
    rebenchmark: Rebenchmark,
    patch: Patch,
    accuracy: AccuracyArtefact | None = None,
    layout: LayoutDiff | None = None,
    name: str = "",
) -> Evidence:
    """Return the evidence of the fixed server: the captured layout, and the accept length that a replay predicts.

    The states served before the cure say nothing of it and are left out. The replay drafted along the very text that
    the server decoded, so it stands for T by depth, each among the rounds that got there.
    """
    replayed = rebenchmark.replayed_acceptance_by_position
    chosen = next((cure for cure in patch.cures if cure.form == rebenchmark.form), None)
    setting = _setting(rebenchmark, layout, len(replayed) or None)
    slots = ()
    if chosen is not None:
        setting = setting.model_copy(update={"served_layout": _by_phase(chosen.captured)})
        slots = _slots(chosen.slots, setting.trained_layout or (), f"04_patch, {chosen.form}")
    return Evidence(
        name=f"{name}, cured" if name else "cured",
        setting=setting,
        accuracy=(*_training(accuracy), *_replay(replayed, rebenchmark.cured.rounds)),
        slots=slots,
        acceptance=_acceptance(rebenchmark.cured, len(replayed) or None, "05_rebenchmark, cured"),
        speed=_speed(rebenchmark.plain, rebenchmark.cured, "05_rebenchmark"),
        facts=_facts(None, rebenchmark),
    )


def _lint(layout: LayoutDiff | None) -> tuple[LintRecord, ...]:
    """Return notebook 03's lint findings; those of a check without a fault number are notes."""
    return tuple(
        LintRecord(
            source="03_layout, lint",
            kind=one.kind if isinstance(one.kind, int) else 0,
            severity=one.severity if isinstance(one.kind, int) and one.kind else "note",
            where=one.where,
            evidence=one.evidence,
        )
        for one in (layout.lint_findings if layout is not None else ())
    )


def _setting(arms: Throughput | Rebenchmark, layout: LayoutDiff | None, steps: int | None) -> Setting:
    by_rule = None
    if layout is not None and not layout.slots:
        by_rule = _by_phase(layout.by_rule)
    return Setting(
        engine="sglang",
        version=arms.machine.versions.get("sglang"),
        steps=steps,
        batch=1,
        temperature=0.0,
        trained_layout=layout.trained if layout is not None else None,
        served_layout=by_rule,
    )


def _by_phase(layout: PhaseLayout) -> dict[PhaseName, tuple[int, ...] | None]:
    return {cast(PhaseName, phase.value): getattr(layout, phase.value) for phase in Phase}


def _resolved_steps(throughput: Throughput | None) -> int | None:
    for row in throughput.arguments if throughput is not None else ():
        if row.name in _STEPS and isinstance(row.resolved, int):
            return row.resolved
    return None


def _arguments(throughput: Throughput | None) -> tuple[ArgumentRecord, ...]:
    """Return the arguments that were requested; the server chose the others."""
    if throughput is None:
        return ()
    return tuple(
        ArgumentRecord(source="01_throughput, arguments", name=row.name, asked=row.asked, resolved=row.resolved)
        for row in throughput.arguments
        if row.asked is not None
    )


def _training(artefact: AccuracyArtefact | None) -> tuple[AccuracyRecord, ...]:
    """Return T on the saved states under the trained layout, depth by depth, and its controls at depth 0."""
    if artefact is None:
        return ()
    rows = [
        row
        for depth in range(len(artefact.trained.depths))
        for row in _row(artefact.trained, depth, artefact.accuracy_rule, "")
    ]
    for report in artefact.controls:
        if report.control != "none":
            rows += _row(report, 0, artefact.accuracy_rule, report.control)
    return tuple(rows)


def _row(report: AccuracyReport, depth: int, rule: str, control: str) -> list[AccuracyRecord]:
    if depth >= len(report.depths) or not report.depths[depth].total:
        return []
    one = report.depths[depth]
    finite = one.low == one.low and one.high == one.high
    return [
        AccuracyRecord(
            source="02_accuracy",
            side="T",
            depth=depth,
            accuracy=one.accuracy,
            rows=one.total,
            rule=rule,
            low=one.low if finite else None,
            high=one.high if finite else None,
            control=control,
            text="held_out",
        )
    ]


def _serving(layout: LayoutDiff | None, *, served: bool) -> tuple[AccuracyRecord, ...]:
    """Return T and S on the text that the server decoded: on the reference's trained states, and on captured states."""
    if layout is None:
        return ()
    rows: list[AccuracyRecord] = []
    for row in layout.serving:
        common: dict[str, Any] = dict(source="03_layout, serving", depth=row.depth, rows=row.rows, text="served")
        rows.append(AccuracyRecord(side="T", accuracy=row.trained, rule=layout.serving_rule, **common))
        if served:  # its interval is that of the difference to T on the same rows, which is the question
            low, high = (min(1.0, max(0.0, row.trained + d)) for d in (row.difference_low, row.difference_high))
            rows.append(
                AccuracyRecord(side="S", accuracy=row.served, rule=layout.serving_rule, low=low, high=high, **common)
            )
    return tuple(rows)


def _replay(by_position: Sequence[float], rounds: int) -> tuple[AccuracyRecord, ...]:
    """Return the shares of a replay as accuracies among the rounds that reached each depth."""
    rows, before = [], 1.0
    for depth, share in enumerate(by_position):
        reached = round(rounds * before)
        if not reached:
            break
        rows.append(
            AccuracyRecord(
                source="05_rebenchmark, replay without a server",
                side="T",
                depth=depth,
                accuracy=min(1.0, share / before),
                rows=reached,
                conditional=True,
                text="served",
                rule="rounds of a replay along the decoded text",
            )
        )
        before = share
    return tuple(rows)


def _slots(by_phase: Mapping[str, Sequence[SlotMatch]], trained: Sequence[int], source: str) -> tuple[SlotRecord, ...]:
    return tuple(_slot(row, phase, trained, source) for phase, rows in sorted(by_phase.items()) for row in rows)


def _slot(row: SlotMatch, phase: str, trained: Sequence[int], source: str) -> SlotRecord:
    return SlotRecord(
        source=f"{source}, {phase}",
        phase=cast(PhaseName, phase),
        slot=row.slot,
        wanted=trained[row.slot] if row.slot < len(trained) else None,
        boundary=row.boundary,
        shift=row.shift if row.verdict == "equals" else 0,
        transform=_AS_TRANSFORM.get(row.verdict, row.transform if row.verdict == "equals" else "raw"),
        cosine=row.cosine,
        norm_ratio=row.norm_ratio,
    )


def _acceptance(arm: ArmResult, steps: int | None, source: str) -> tuple[AcceptanceRecord, ...]:
    if arm.accept_length is None or arm.accept_length != arm.accept_length:
        return ()
    positions = () if any(p != p for p in arm.acceptance_by_position) else arm.acceptance_by_position
    return (
        AcceptanceRecord(
            source=source,
            accept_length=arm.accept_length,
            by_position=positions,
            rounds=arm.rounds or None,
            proposed=steps or len(positions) or None,
            rule="1 + accepted drafts / verify rounds",
        ),
    )


def _speed(plain: ArmResult, draft: ArmResult, source: str) -> tuple[SpeedRecord, ...]:
    return (
        SpeedRecord(source=source, arm="plain", tok_per_s=plain.tok_per_s, step_s=plain.step_s),
        SpeedRecord(
            source=source,
            arm="draft",
            tok_per_s=draft.tok_per_s,
            round_s=draft.round_s,
            speedup=draft.speedup,
            accept_length=draft.accept_length,
        ),
    )


def _facts(throughput: Throughput | None, rebenchmark: Rebenchmark | None) -> tuple[FactRecord, ...]:
    facts = []
    same = [a.same_outputs for a in (throughput, rebenchmark) if a is not None and a.same_outputs]
    if same:
        facts.append(
            FactRecord(
                source="same token ids as plain decoding",
                letter="P",
                name="outputs_equal_plain",
                value=all(all(one) for one in same),
            )
        )
    if throughput is not None and throughput.bigram_shares:
        facts.append(
            FactRecord(
                source="01_throughput", letter="P", name="unique_bigram_share", value=min(throughput.bigram_shares)
            )
        )
        facts.append(
            FactRecord(source="01_throughput", letter="P", name="prompts", value=len(throughput.bigram_shares))
        )
    return tuple(facts)
