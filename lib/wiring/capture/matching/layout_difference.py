"""Name how served slots differ from the trained layout, slot by slot and for the layout as a whole.

Layout faults come from `wiring.layers.classify_layout`; the names ("swapped", "off by one up") describe them. A slot may
add faults of its state: a partial sum, a norm or a scale, a shift by tokens, drift. Faults are the numbers of
`wiring.engines.faults`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wiring.capture.matching.match_result import BETWEEN, DRIFT, EQUALS, RAW, UNDECIDED, SlotMatch
from wiring.layers import Layout, LayoutFault, classify_layout, is_default_layout

SAME = "same"
DEFAULT, OFF_UP, OFF_DOWN = "default layers", "off by one up", "off by one down"
SWAPPED, ROTATED, MOVED, PERMUTED = "swapped", "rotated", "moved by one slot", "permuted"
EMBEDDING_MOVED, SLOT_COUNT, OTHER = "embedding in the wrong slot", "slot count", "other layers"
PARTIAL, DRIFTED, SHIFTED, IN_BETWEEN = "partial sum", "drift", "shifted", "between layers"
_VERDICT_FAULTS = {PARTIAL: 4, IN_BETWEEN: 1, DRIFTED: 6}
_WRONG_POINT, _TOKEN_SHIFT = 5, 14


@dataclass(frozen=True)
class SlotDifference:
    """One slot: the trained boundary, the served one (None: unknown), names of what differs and fault numbers.

    `names` is ("same",) if nothing differs. `served` is also set for a partial sum (the upper boundary) and for drift
    (the nearest boundary).
    """

    slot: int
    trained: int | None
    served: int | None
    names: tuple[str, ...]
    kinds: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class LayoutDifference:
    """All slots of one phase. `names` is ("same",) and `kinds` is empty if the phase is served as trained."""

    trained: Layout
    served: tuple[int | None, ...]
    slots: tuple[SlotDifference, ...]
    names: tuple[str, ...]
    kinds: tuple[int, ...]
    text: str

    @property
    def same(self) -> bool:
        """Whether every slot holds its trained boundary."""
        return self.names == (SAME,)


def diff_layouts(trained: Layout, matches: Sequence[SlotMatch], num_layers: int | None = None) -> LayoutDifference:
    """Name how the served slots of one phase differ from the trained layout.

    `num_layers` is the target's number of layers, needed to recognize the default layers; by default the deepest
    compared boundary.
    """
    trained = tuple(trained)
    slots = tuple(_slot(i, trained, matches) for i in range(max(len(trained), len(matches))))
    served = tuple(slot.served for slot in slots[: len(matches)])
    if len(served) == len(trained) and None in served:  # each known slot counts by itself
        found = [(slot.names, slot.kinds) for slot in slots if slot.names != (SAME,)]
    else:
        depth = num_layers or max((b for match in matches for b in match.boundaries), default=0)
        fault = classify_layout(trained, served, depth)
        whole = [(_layout_names(trained, served, fault, depth), [fault])] if fault else []
        found = whole + [_state(match) for match in matches[: len(trained)]]
    names = tuple(dict.fromkeys(name for some, _ in found for name in some))
    kinds = tuple(dict.fromkeys(kind for _, some in found for kind in some))
    if not names:
        return LayoutDifference(trained, served, slots, (SAME,), kinds, f"as trained: {trained}")
    shown = ", ".join("?" if boundary is None else str(boundary) for boundary in served)
    text = f"trained {trained}, served ({shown}): {', '.join(names)}"
    return LayoutDifference(trained, served, slots, names, kinds, text)


def _slot(index: int, trained: Layout, matches: Sequence[SlotMatch]) -> SlotDifference:
    if index >= len(matches):
        fault = (LayoutFault.COUNT_OR_ORDER,)
        return SlotDifference(index, trained[index], None, (SLOT_COUNT,), fault, f"slot {index} is trained, not served")
    match = matches[index]
    served = _served_boundary(match)
    if index >= len(trained):
        fault = (LayoutFault.COUNT_OR_ORDER,)
        return SlotDifference(index, None, served, (SLOT_COUNT,), fault, f"slot {index} is served, not trained")
    expected = trained[index]
    names, kinds = _state(match)
    if served is not None and (fault := classify_layout((expected,), (served,))):
        names = [{1: OFF_UP, -1: OFF_DOWN}.get(served - expected, OTHER), *names]
        kinds = [fault, *kinds]
    text = f"slot {match.slot}: trained on boundary {expected}, served "
    if served is None and expected in match.alike and len(match.alike) > 1:
        text += f"one of {', '.join(map(str, match.alike))}, which include the trained one; {match.reason}"
    else:
        text += f"{'unknown' if served is None else served}; {match.reason}"
    return SlotDifference(index, expected, served, tuple(names) or (SAME,), tuple(dict.fromkeys(kinds)), text)


def _served_boundary(match: SlotMatch) -> int | None:
    if match.verdict == BETWEEN and match.between and match.between[1] == match.between[0] + 1:
        return match.between[1]
    return match.nearest if match.verdict == DRIFT else match.boundary


def _state(match: SlotMatch) -> tuple[list[str], list[int]]:
    """Return names and faults of the slot's state, whatever boundary it holds."""
    if match.verdict not in (EQUALS, BETWEEN, DRIFT):
        return [UNDECIDED], []
    names, kinds = [], []
    if match.verdict != EQUALS:
        partial = PARTIAL if _served_boundary(match) is not None else IN_BETWEEN
        names.append(DRIFTED if match.verdict == DRIFT else partial)
        kinds.append(_VERDICT_FAULTS[names[0]])
    if match.transform != RAW:
        names.append(match.transform)
        kinds.append(_WRONG_POINT)
    if match.shift:
        names.append(f"{SHIFTED} {match.shift:+d}")
        kinds.append(_TOKEN_SHIFT)
    return names, kinds


def _layout_names(trained: Layout, served: Layout, fault: LayoutFault, depth: int) -> list[str]:
    """Describe a layout that differs and has only known slots, or another number of slots."""
    if len(trained) != len(served):
        return [SLOT_COUNT]
    moved = [(before, after) for before, after in zip(trained, served, strict=True) if before != after]
    names = [DEFAULT] if is_default_layout(served, depth) else []
    if fault is LayoutFault.OFF_BY_ONE:
        names.append(OFF_UP if moved[0][1] > moved[0][0] else OFF_DOWN)
    elif fault is LayoutFault.COUNT_OR_ORDER:
        rotations = [trained[k:] + trained[:k] for k in range(1, len(trained))]
        names.append(SWAPPED if len(moved) == 2 else ROTATED if served in rotations else PERMUTED)
    elif len(trained) > 1 and (served[:-1] == trained[1:] or served[1:] == trained[:-1]):
        names.append(MOVED)
    if 0 in trained and 0 in served and trained.index(0) != served.index(0):
        names.append(EMBEDDING_MOVED)
    return names or [OTHER]
