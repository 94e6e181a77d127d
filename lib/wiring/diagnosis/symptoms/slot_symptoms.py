"""C: what the slots of the draft's fc were fed, beside what they were trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from wiring.diagnosis.symptoms.layout_symptoms import PREFILL_ALONE, layout_symptoms
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Evidence, Slot

RIGHT = 0.995  # cosine from which a slot is the boundary itself; a neighbouring one stays below in the targets seen
LOST = (0.5, 2.0)  # norm ratios outside: a slot that is no boundary is no drifted or rotated one either
DIRECTION = 0.9  # cosine from which a slot points where it should
NOTHING = 0.2  # cosine below which it shares no direction
NORM = (0.9, 1.1)
DRIFTED, PARTIAL = "drifted", "partial sum"  # transforms that are none: a verdict of the comparison, named here


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Layout, transform, shift, ranks, norm, drift and rotation, phase by phase."""
    phases: dict[str, list[Slot]] = defaultdict(list)
    for slot in evidence.slots:
        phases[slot.phase].append(slot)
    trained = evidence.setting.trained_layout
    depth = int((evidence.setting.target_config or {}).get("num_hidden_layers") or 0)
    for phase, rows in sorted(phases.items()):
        rows = [_with_wanted(slot, trained) for slot in sorted(rows, key=lambda s: (s.slot, s.model_dump_json()))]
        yield from _layout(rows, trained, depth, phase)
        yield from _state(rows, phase)
        yield from _drift(rows, phase)


def _with_wanted(slot: Slot, trained: Sequence[int] | None) -> Slot:
    if slot.wanted is None and trained is not None and slot.slot < len(trained):
        return slot.model_copy(update={"wanted": trained[slot.slot]})
    return slot


def _layout(rows: list[Slot], trained: Sequence[int] | None, depth: int, phase: str) -> Iterator[Symptom]:
    wanted = tuple(trained) if trained is not None else tuple(r.wanted for r in rows)
    served = tuple(r.boundary for r in rows)
    if None in wanted:
        return
    if None not in served and len({r.slot for r in rows}) == len(rows) >= len(wanted):
        yield from layout_symptoms(wanted, served, depth, phase, "C", rows[0].source)
        return
    for row in rows:  # some slots are not known: those that are speak for themselves
        if row.boundary is not None and row.wanted is not None and row.boundary != row.wanted:
            yield from layout_symptoms(
                (row.wanted,), (row.boundary,), depth, f"{phase}, slot {row.slot}", "C", row.source
            )


def _state(rows: list[Slot], phase: str) -> Iterator[Symptom]:
    """Transform, shift, norm and agreement of the ranks: present by one slot, absent by all."""
    sure = PREFILL_ALONE if phase == "prefill" else 1.0
    matched = all(r.boundary is not None for r in rows)

    def say(name: str, bad: list[Slot], what: str, decided: bool = True) -> Iterator[Symptom]:
        if bad:
            told = "; ".join(f"slot {r.slot} {_of(r, what)}" for r in bad)
            yield Symptom(name, True, 1.0, "C", f"{phase}: {told}", bad[0].source)
        elif decided:
            yield Symptom(name, False, sure, "C", f"{phase}: {what} as it should be", rows[0].source)

    odd = [r for r in rows if r.transform not in ("raw", DRIFTED, PARTIAL) or _lost(r)]
    yield from say("state_transformed", odd, "transform", matched)
    yield from say("partial_sum", [r for r in rows if r.transform == PARTIAL], "transform", matched)
    yield from say("tokens_shifted", [r for r in rows if r.shift], "shift", matched)
    told = [r for r in rows if r.ranks_agree is not None]
    if told:
        yield from say("ranks_differ", [r for r in told if not r.ranks_agree], "ranks")
    normed = [
        (r, c, n)
        for r in rows
        if r.boundary in (None, r.wanted) and (c := _cosine(r)) is not None and (n := _norm(r)) is not None
    ]
    if normed:
        off = [r for r, c, n in normed if c >= DIRECTION and not NORM[0] <= n <= NORM[1]]
        yield from say("norm_ratio_off", off, "norm", all(c >= DIRECTION for _, c, _ in normed))


def _drift(rows: list[Slot], phase: str) -> Iterator[Symptom]:
    """Cosines against the wanted boundaries that fall with depth, or are gone while the norm is kept."""
    sure = PREFILL_ALONE if phase == "prefill" else 1.0
    named = [r for r in rows if r.transform == DRIFTED]
    if named:
        yield Symptom("drift_with_depth", True, 1.0, "C", f"{phase}: slot {named[0].slot} drifts", named[0].source)
    here = [
        (r, c)
        for r in rows
        if r.wanted is not None and r.boundary in (None, r.wanted) and not r.shift and (c := _cosine(r)) is not None
    ]
    if not here:
        return
    curve = [(r.wanted, c) for r, c in sorted(here, key=lambda one: (one[0].wanted, one[0].slot))]
    text = f"{phase}: cosine " + ", ".join(f"{c:.3f} at boundary {b}" for b, c in curve)
    cosines = [c for _, c in curve]
    if min(cosines) >= RIGHT:
        yield Symptom("drift_with_depth", False, sure, "C", text, here[0][0].source)
        yield Symptom("rotated_state", False, sure, "C", text, here[0][0].source)
    elif (
        len(curve) >= 2
        and cosines[0] - cosines[-1] >= 0.05
        and all(a >= b - 0.01 for a, b in zip(cosines, cosines[1:], strict=False))
        and cosines[-1] > NOTHING
    ):
        yield Symptom("drift_with_depth", True, 1.0, "C", text, here[0][0].source)
    lost = [
        r
        for r, c in here
        if c < NOTHING and (n := _norm(r)) is not None and NORM[0] <= n <= NORM[1] and r.boundary is None
    ]
    if lost:
        yield Symptom("rotated_state", True, 1.0, "C", f"{text}, norms as they should be", lost[0].source)


def _cosine(row: Slot) -> float | None:
    """Cosine against the wanted boundary: as given, or the match's own where that is the wanted one."""
    if row.cosine_wanted is not None:
        return row.cosine_wanted
    return row.cosine if row.boundary is not None and row.boundary == row.wanted and not row.shift else None


def _norm(row: Slot) -> float | None:
    if row.norm_ratio_wanted is not None:
        return row.norm_ratio_wanted
    return row.norm_ratio if row.boundary is not None and row.boundary == row.wanted and not row.shift else None


def _lost(row: Slot) -> bool:
    """No boundary fits, and the norm is another one altogether: a part of the state, such as the last block's alone."""
    n = row.norm_ratio_wanted
    return row.boundary is None and row.transform == "raw" and n is not None and not LOST[0] <= n <= LOST[1]


def _of(row: Slot, what: str) -> str:
    """One slot's finding in words."""
    lost = f"is no boundary, at {_norm(row) or 0:.2g} of its norm"
    return {
        "transform": lost if _lost(row) else f"is {row.transform}",
        "shift": f"holds the state of token {row.shift:+d}",
        "ranks": "differs between ranks",
        "norm": f"has {_norm(row) or 0:.2f} times the norm",
    }[what]
