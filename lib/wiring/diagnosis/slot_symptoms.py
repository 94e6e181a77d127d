"""Symptoms of captured slots: what each slot of the draft's fc was fed against what it was trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from wiring.diagnosis.layout_symptoms import PREFILL_ALONE, layout_symptoms, target_depth
from wiring.diagnosis.symptom_table import Symptom, decide
from wiring.logs.evidence import Evidence, SlotRecord

RIGHT = 0.995  # cosine from which a slot is the boundary itself; a neighboring one stays below it in known targets
LOST = (0.5, 2.0)  # norm ratios outside: a slot that matches no boundary is neither drifted nor rotated
DIRECTION = 0.9  # cosine from which a slot has the right direction
NOTHING = 0.2  # cosine below which it shares no direction
NORM = (0.9, 1.1)
DRIFTED, PARTIAL = "drifted", "partial sum"  # verdicts of a slot comparison that stand in the field `transform`


def slot_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield layout, transform, shift, ranks, norm, drift and rotation, phase by phase."""
    phases: dict[str, list[SlotRecord]] = defaultdict(list)
    trained, depth = evidence.setting.trained_layout, target_depth(evidence)
    for slot in sorted(evidence.slots, key=lambda s: (s.phase, s.slot, s.model_dump_json())):
        if slot.wanted is None and trained is not None and slot.slot < len(trained):
            slot = slot.model_copy(update={"wanted": trained[slot.slot]})
        phases[slot.phase].append(slot)
    for phase, rows in phases.items():
        yield from _layout(rows, trained, depth, phase)
        yield from _state(rows, phase)
        yield from _drift(rows, phase)


def _layout(rows: list[SlotRecord], trained: Sequence[int] | None, depth: int, phase: str) -> Iterator[Symptom]:
    given = trained if trained is not None else [r.wanted for r in rows]
    wanted = tuple(b for b in given if b is not None)
    served = tuple(r.boundary for r in rows if r.boundary is not None)
    if len(wanted) < len(given):
        return
    if len(served) == len(rows) and len({r.slot for r in rows}) == len(rows) >= len(wanted):
        yield from layout_symptoms(wanted, served, depth, phase, rows[0].source)
        return
    for r in rows:  # some slots are unknown: judge the known ones one by one
        if r.boundary is not None and r.wanted is not None and r.boundary != r.wanted:
            yield from layout_symptoms((r.wanted,), (r.boundary,), depth, f"{phase}, slot {r.slot}", r.source)


def _state(rows: list[SlotRecord], phase: str) -> Iterator[Symptom]:
    """Transform, shift, norm and agreement of the ranks: one slot shows the symptom, all show its absence."""
    matched = all(r.boundary is not None for r in rows)
    lost = [r for r in rows if _lost(r)]
    odd = [r for r in rows if r.transform not in ("raw", DRIFTED, PARTIAL) or r in lost]
    ranked = [r for r in rows if r.ranks_agree is not None]
    normed = [r for r in rows if r.boundary in (None, r.wanted) and _cosine(r) is not None and _norm(r) is not None]
    straight = [r for r in normed if (_cosine(r) or 0) >= DIRECTION]
    off = [r for r in straight if not _within(_norm(r), NORM)]
    table = (  # symptom, what is compared, slots that show it, whether the others show its absence, one slot in words
        (
            "state_transformed",
            "transform",
            odd,
            matched,
            lambda r: _lost_words(r) if r in lost else f"is {r.transform}",
        ),
        ("partial_sum", "transform", [r for r in rows if r.transform == PARTIAL], matched, lambda r: f"is {PARTIAL}"),
        (
            "tokens_shifted",
            "shift",
            [r for r in rows if r.shift],
            matched,
            lambda r: f"holds token {r.shift:+d}'s state",
        ),
        ("ranks_differ", "ranks", [r for r in ranked if not r.ranks_agree], bool(ranked), lambda r: "differs by rank"),
        (
            "norm_ratio_off",
            "norm",
            off,
            bool(normed) and straight == normed,
            lambda r: f"has {_norm(r):.2f} of the norm",
        ),
    )
    for name, what, bad, decided, words in table:
        if bad:
            text = f"{phase}: " + "; ".join(f"slot {r.slot} {words(r)}" for r in bad)
            yield from decide(name, True, text, bad[0].source)
        elif decided:
            sure = PREFILL_ALONE if phase == "prefill" else 1.0
            yield from decide(name, False, f"{phase}: {what} as it should be", rows[0].source, sure)


def _drift(rows: list[SlotRecord], phase: str) -> Iterator[Symptom]:
    """Cosines to the wanted boundaries that fall with depth, or vanish while the norm is kept."""
    named = [r for r in rows if r.transform == DRIFTED]
    if named:
        yield from decide("drift_with_depth", True, f"{phase}: slot {named[0].slot} drifts", named[0].source)
    here = [r for r in rows if r.wanted is not None and r.boundary in (None, r.wanted) and not r.shift]
    here = [r for r in here if _cosine(r) is not None]
    if not here:
        return
    source = here[0].source
    curve = sorted(here, key=lambda r: (r.wanted, r.slot))
    cosines = [_cosine(r) or 0 for r in curve]
    text = f"{phase}: cosine " + ", ".join(
        f"{c:.3f} at boundary {r.wanted}" for c, r in zip(cosines, curve, strict=True)
    )
    falls = cosines[0] - cosines[-1] >= 0.05 and all(a >= b - 0.01 for a, b in pairwise(cosines))
    if min(cosines) >= RIGHT:
        for name in ("drift_with_depth", "rotated_state"):
            yield from decide(name, False, text, source, PREFILL_ALONE if phase == "prefill" else 1.0)
    elif falls and cosines[-1] > NOTHING:
        yield from decide("drift_with_depth", True, text, source)
    turned = [r for r in here if (_cosine(r) or 0) < NOTHING and r.boundary is None and _within(_norm(r), NORM)]
    if turned:
        yield from decide("rotated_state", True, f"{text}, norms as they should be", turned[0].source)


def _cosine(row: SlotRecord) -> float | None:
    """Cosine to the wanted boundary: as given, or the match's where the match is the wanted boundary."""
    return row.cosine_wanted if row.cosine_wanted is not None else row.cosine if _as_wanted(row) else None


def _norm(row: SlotRecord) -> float | None:
    return row.norm_ratio_wanted if row.norm_ratio_wanted is not None else row.norm_ratio if _as_wanted(row) else None


def _as_wanted(row: SlotRecord) -> bool:
    return row.boundary is not None and row.boundary == row.wanted and not row.shift


def _within(value: float | None, bounds: tuple[float, float]) -> bool:
    return value is not None and bounds[0] <= value <= bounds[1]


def _lost(row: SlotRecord) -> bool:
    """No boundary matches and the norm is far off: only a part of the state, such as the last block's output."""
    off = row.norm_ratio_wanted is not None and not _within(row.norm_ratio_wanted, LOST)
    return row.boundary is None and row.transform == "raw" and off


def _lost_words(row: SlotRecord) -> str:
    return f"matches no boundary, at {_norm(row) or 0:.2g} of its norm"
