"""T and S: what the draft does alone, on training states and on the states that the server feeds."""

from __future__ import annotations

from collections.abc import Iterator

from wiring.diagnosis.symptoms import facts
from wiring.diagnosis.symptoms.estimates import Estimate, below, certainty, share
from wiring.diagnosis.symptoms.reference_accuracy import Curve, curves
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Accuracy, Evidence

LOW = 0.5  # published EAGLE-3 drafts are right at depth 0 in 0.6 to 0.8 of the cases
SAME_TEXT, OTHER_TEXT = 0.85, 0.7  # shares of the expected figure below which it is called lower
_CHECKPOINT = (3, 8, 9, 10, 11, 13)  # kinds of fault in a draft's files, and what facts show of them
_BROKEN = (
    "map_missing",
    "map_changed",
    "map_arbitrary",
    "embedding_differs",
    "tensors_unused",
    "draft_quantised_unasked",
)
COLLAPSE = 0.6  # of the accuracy one depth before; drafts trained on their own states lose a few percent


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Everything that accuracies alone decide."""
    trained, served = curves(evidence, "T"), curves(evidence, "S")
    measured = [curve for curve in trained if not curve.claimed]
    claimed = [curve for curve in trained if curve.claimed]
    for curve in claimed[:1]:
        yield from _low("training_accuracy_low", curve)
    known = [curve for curve in measured if curve.text != "served"] or measured
    for curve in known[:1]:
        found = [*_low("accuracy_low", curve), *_collapse(curve)]
        if any(s.present for s in found):
            yield from (s for s in found if s.present)  # right at depth 0 alone is no sound draft
            yield from _sound_files(evidence, curve)
        else:
            yield from found
        if claimed:
            yield from _compared("accuracy_below_claim", curve, claimed[0], SAME_TEXT)
        elif curve.at(0).low >= LOW:  # whatever the trainer says, it did learn
            text = f"{curve.name} is right in {curve.at(0)} of the cases"
            for name in ("accuracy_below_claim", "training_accuracy_low"):
                yield Symptom(name, False, 0.5, "T", text, curve.source)
    by_text = {curve.text: curve for curve in reversed(measured)}
    no_text = any(
        symptom.present and symptom.name in ("random_prompts", "text_loops") for symptom in facts.symptoms(evidence)
    )
    for other in ("held_out", "training"):
        if no_text:
            break  # what was served is no text to compare with
        if other in by_text and "served" in by_text:
            yield from _compared("accuracy_falls_on_served_text", by_text["served"], by_text[other], 0.75)
            break
    if {"training", "held_out"} <= set(by_text):
        yield from _compared("accuracy_on_training_text_only", by_text["held_out"], by_text["training"], 0.75)
    for curve in served[:1]:
        for reference in trained[:1]:
            margin = SAME_TEXT if reference.text == "served" and not reference.claimed else OTHER_TEXT
            yield from _compared("served_accuracy_low", curve, reference, margin)
    yield from _shifted(evidence)


def _low(name: str, curve: Curve) -> Iterator[Symptom]:
    first = curve.at(0)
    text = f"{curve.name} is right in {first} of the cases at depth 0"
    if first.high < LOW or first.low >= LOW:
        yield Symptom(name, first.high < LOW, certainty(first), "T", text, curve.source)


def _compared(name: str, lower: Curve, higher: Curve, margin: float) -> Iterator[Symptom]:
    found = below(lower.at(0), higher.at(0), margin)
    if found is None:
        return
    text = f"{lower.name}: {lower.at(0)}, {higher.name}: {higher.at(0)}"
    sure = certainty(lower.at(0), higher.at(0))
    yield Symptom(name, found, sure, lower.side, text, lower.source)


def _collapse(curve: Curve) -> Iterator[Symptom]:
    pairs = list(zip(curve.depths, curve.depths[1:], strict=False))
    if not pairs:
        return
    told = ", ".join(f"{depth.value:.3g}" for depth in curve.depths)
    text = f"{curve.name}, by depth: {told}"
    sure = certainty(*curve.depths)
    if any(after.high < COLLAPSE * before.low for before, after in pairs):
        yield Symptom("accuracy_collapses_with_depth", True, sure, "T", text, curve.source)
    elif all(after.low >= (2 * COLLAPSE - 1) * before.value for before, after in pairs):
        yield Symptom("accuracy_collapses_with_depth", False, sure, "T", text, curve.source)


def _sound_files(evidence: Evidence, curve: Curve) -> Iterator[Symptom]:
    """Lint was made and says nothing of what would make a trained checkpoint fail: it may not have learnt."""
    made = any(fact.name == "lint_made" and fact.value is True for fact in evidence.facts)
    wrong = any(row.kind in _CHECKPOINT and row.severity != "note" for row in evidence.lint)
    seen = any(symptom.present and symptom.name in _BROKEN for symptom in facts.symptoms(evidence))
    if made and not wrong and not seen:
        text = f"{curve.name} is right in {curve.at(0)} of the cases, and lint finds nothing in its files"
        yield Symptom("low_with_sound_files", True, 1.0, "T", text, curve.source)


def _shifted(evidence: Evidence) -> Iterator[Symptom]:
    """A control with shifted states that beats the states as they are: they belong to neighbouring tokens."""
    rows = [row for row in evidence.accuracy if row.depth == 0 and not row.condition and not row.claimed]
    for side in ("T", "S"):
        plain = [row for row in rows if row.side == side and not row.control]
        shifted = [row for row in rows if row.side == side and row.control.startswith("shifted")]
        if not plain or not shifted:
            continue
        base = max(plain, key=_weight)
        best = max(shifted, key=lambda row: (row.accuracy, row.control, row.source))
        if best.text != base.text and any(row.text == base.text for row in shifted):
            best = max((row for row in shifted if row.text == base.text), key=lambda row: (row.accuracy, row.control))
        low, high = _estimate(base), _estimate(best)
        text = f"{side} as it is {low}, {best.control} {high}"
        if high.low > low.high and high.value > 1.2 * low.value + 0.05:
            yield Symptom("tokens_shifted", True, certainty(low, high), side, text, best.source)
        elif high.high < low.low:
            yield Symptom("tokens_shifted", False, certainty(low, high), side, text, best.source)


def _weight(row: Accuracy) -> tuple:
    return row.rows or 0, row.accuracy, row.source


def _estimate(row: Accuracy) -> Estimate:
    return share(row.accuracy, row.rows, row.low, row.high)
