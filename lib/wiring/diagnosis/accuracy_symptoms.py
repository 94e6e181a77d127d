"""Symptoms of the draft's own accuracy, on training states (T) and on the states that the server feeds it (S)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from wiring.diagnosis.accuracy_curves import OTHER_TEXT, SAME_TEXT, Curve, curves
from wiring.diagnosis.estimates import below, certainty, share
from wiring.diagnosis.fact_symptoms import fact_symptoms
from wiring.diagnosis.symptom_table import Symptom, decide
from wiring.logs.evidence import Evidence

LOW = 0.5  # published EAGLE-3 drafts reach 0.6 to 0.8 at depth 0
COLLAPSE = 0.6  # of the accuracy one depth before; drafts trained on their own states lose a few percent
NEW_TEXT = 0.75  # share of the accuracy on one text below which another text is much harder
_IN_FILES = (3, 8, 9, 10, 11, 13)  # faults in a draft's files, and the symptoms that facts show of them
_BROKEN = {
    "map_missing",
    "map_changed",
    "map_arbitrary",
    "embedding_differs",
    "tensors_unused",
    "draft_quantised_unasked",
}


def accuracy_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield every symptom that accuracies decide without acceptance."""
    trained, served = curves(evidence, "T"), curves(evidence, "S")
    measured = [curve for curve in trained if not curve.claimed]
    claimed = next((curve for curve in trained if curve.claimed), None)
    if claimed is not None:
        yield from _low("training_accuracy_low", claimed)
    if measured:
        yield from _measured(
            evidence, next((curve for curve in measured if curve.text != "served"), measured[0]), claimed
        )
    by_text = {curve.text: curve for curve in reversed(measured)}
    facts = {symptom.name for symptom in fact_symptoms(evidence) if symptom.present}
    other = next((by_text[text] for text in ("held_out", "training") if text in by_text), None)
    if other is not None and "served" in by_text and not facts & {"random_prompts", "text_loops"}:
        yield from _compared("accuracy_falls_on_served_text", by_text["served"], other, NEW_TEXT)
    if {"training", "held_out"} <= set(by_text):
        yield from _compared("accuracy_on_training_text_only", by_text["held_out"], by_text["training"], NEW_TEXT)
    if served and trained:
        same = trained[0].text == "served" and not trained[0].claimed
        yield from _compared("served_accuracy_low", served[0], trained[0], SAME_TEXT if same else OTHER_TEXT)
    yield from _shifted(evidence)


def _measured(evidence: Evidence, curve: Curve, claimed: Curve | None) -> Iterator[Symptom]:
    found = [*_low("accuracy_low", curve), *_collapse(curve)]
    present = [symptom for symptom in found if symptom.present]
    yield from present or found  # an accurate depth 0 alone does not make a sound draft
    if present:
        yield from _sound_files(evidence, curve)
    if claimed is not None:
        yield from _compared("accuracy_below_claim", curve, claimed, SAME_TEXT)
    elif curve.at(0).low >= LOW:  # the draft did learn
        for name in ("accuracy_below_claim", "training_accuracy_low"):
            yield from decide(name, False, _accuracy_of(curve), curve.source, 0.5, "T")


def _accuracy_of(curve: Curve) -> str:
    return f"{curve.name} has accuracy {curve.at(0)} at depth 0"


def _low(name: str, curve: Curve) -> Iterator[Symptom]:
    first = curve.at(0)
    state = True if first.high < LOW else False if first.low >= LOW else None
    yield from decide(name, state, _accuracy_of(curve), curve.source, certainty(first))


def _compared(name: str, lower: Curve, higher: Curve, margin: float) -> Iterator[Symptom]:
    first, second = lower.at(0), higher.at(0)
    text = f"{lower.name}: {first}, {higher.name}: {second}"
    yield from decide(name, below(first, second, margin), text, lower.source, certainty(first, second), lower.side)


def _collapse(curve: Curve) -> Iterator[Symptom]:
    pairs = list(pairwise(curve.depths))
    if not pairs:
        return
    state = None
    if any(after.high < COLLAPSE * before.low for before, after in pairs):
        state = True
    elif all(after.low >= (2 * COLLAPSE - 1) * before.value for before, after in pairs):
        state = False
    text = f"{curve.name}, by depth: {', '.join(f'{depth.value:.3g}' for depth in curve.depths)}"
    yield from decide("accuracy_collapses_with_depth", state, text, curve.source, certainty(*curve.depths))


def _sound_files(evidence: Evidence, curve: Curve) -> Iterator[Symptom]:
    """Lint ran and found nothing that would break a trained checkpoint, so the draft may not have learned."""
    linted = any(fact.name == "lint_made" and fact.value is True for fact in evidence.facts)
    wrong = any(row.kind in _IN_FILES and row.severity != "note" for row in evidence.lint)
    broken = any(symptom.present and symptom.name in _BROKEN for symptom in fact_symptoms(evidence))
    if linted and not wrong and not broken:
        text = f"{_accuracy_of(curve)}, and lint finds nothing in its files"
        yield from decide("low_with_sound_files", True, text, curve.source)


def _shifted(evidence: Evidence) -> Iterator[Symptom]:
    """A control with shifted states that beats the unshifted ones: states belong to neighboring tokens."""
    rows = [row for row in evidence.accuracy if row.depth == 0 and not row.condition and not row.claimed]
    for side in ("T", "S"):
        plain = [row for row in rows if row.side == side and not row.control]
        shifted = [row for row in rows if row.side == side and row.control.startswith("shifted")]
        if not plain or not shifted:
            continue
        base = max(plain, key=lambda row: (row.rows or 0, row.accuracy, row.source))
        best = max(shifted, key=lambda row: (row.text == base.text, row.accuracy, row.control, row.source))
        low, high = (share(row.accuracy, row.rows, row.low, row.high) for row in (base, best))
        state = None
        if high.low > low.high and high.value > 1.2 * low.value + 0.05:
            state = True
        elif high.high < low.low:
            state = False
        text = f"{side} without a control {low}, {best.control} {high}"
        yield from decide("tokens_shifted", state, text, best.source, certainty(low, high), side)
