"""What is served against what was trained: named slot by slot and as a whole, with the kinds of fault.

Kinds are the numbers of `wiring.engines.faults`: 1 where a boundary is served that was not trained, 3 where the trained
ones come in another order or number, as lint has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wiring.capture.matching.match_result import BETWEEN, DRIFT, EQUALS, RAW, SlotMatch
from wiring.layers import Layout, default_layout

SAME, UNDECIDED = "same", "undecided"
DEFAULT, OFF_UP, OFF_DOWN = "default layers", "off by one up", "off by one down"
SWAPPED, ROTATED, MOVED, PERMUTED = "swapped", "rotated", "moved by one slot", "permuted"
EMBEDDING_MOVED, SLOT_COUNT, OTHER = "embedding in the wrong slot", "slot count", "other layers"
PARTIAL, DRIFTED, SHIFTED, IN_BETWEEN = "partial sum", "drift", "shifted", "between layers"
_KINDS = {
    DEFAULT: 1,
    OTHER: 1,
    MOVED: 1,
    OFF_UP: 2,
    OFF_DOWN: 2,
    SWAPPED: 3,
    ROTATED: 3,
    PERMUTED: 3,
    EMBEDDING_MOVED: 3,
    SLOT_COUNT: 3,
    PARTIAL: 4,
    DRIFTED: 6,
    SHIFTED: 14,
    IN_BETWEEN: 1,
}
_WRONG_POINT = 5  # every transform: the state was taken before or after a norm or a scale


@dataclass(frozen=True)
class SlotDifference:
    """One slot: the trained boundary, the served one (None where it is not known), and names of what differs.

    `names` is ("same",) where nothing does; `kinds` are the faults' numbers. `served` is also set where the verdict is
    not "equals" but says which boundary it should have been: the upper one of a partial sum, the nearest under drift.
    """

    slot: int
    trained: int | None
    served: int | None
    names: tuple[str, ...]
    kinds: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class LayoutDifference:
    """All slots of a phase, and what they amount to. `names` is ("same",) and `kinds` is empty on a healthy server."""

    trained: Layout
    served: tuple[int | None, ...]
    slots: tuple[SlotDifference, ...]
    names: tuple[str, ...]
    kinds: tuple[int, ...]
    text: str

    @property
    def same(self) -> bool:
        """Whether every slot holds what it was trained on."""
        return self.names == (SAME,)


def diff_layouts(trained: Layout, matches: Sequence[SlotMatch], num_layers: int | None = None) -> LayoutDifference:
    """Name how the served slots of one phase differ from the trained layout.

    `num_layers` is the target's L, for the layers served by default; without it the deepest compared boundary is taken.
    """
    slots = tuple(_slot(i, trained, matches) for i in range(max(len(trained), len(matches))))
    served = tuple(slot.served for slot in slots if slot.slot < len(matches))
    depth = num_layers or max((b for match in matches for b in match.boundaries), default=0)
    names = _of_layout(tuple(trained), served, depth)
    whole = bool(names)
    for slot in slots:
        # Where the layout as a whole has a name, a slot's own boundary is not named again.
        names += [n for n in slot.names if n != SAME and not (whole and n in (OFF_UP, OFF_DOWN, OTHER))]
    names = list(dict.fromkeys(names))
    kinds = tuple(dict.fromkeys(kind for name in names if (kind := _kind(name)) is not None))
    names = names or [SAME]
    text = f"as trained: {tuple(trained)}"
    if names != [SAME]:
        text = f"trained {tuple(trained)}, served {_shown(served)}: {', '.join(names)}"
    return LayoutDifference(tuple(trained), served, slots, tuple(names), kinds, text)


def _slot(index: int, trained: Layout, matches: Sequence[SlotMatch]) -> SlotDifference:
    wanted = trained[index] if index < len(trained) else None
    if index >= len(matches) or wanted is None:
        what = "trained but not served" if index >= len(matches) else "served but not trained"
        served = None if index >= len(matches) else matches[index].boundary
        return SlotDifference(index, wanted, served, (SLOT_COUNT,), (3,), f"slot {index} is {what}")
    match = matches[index]
    served, names = _served(match), []
    if match.verdict not in (EQUALS, BETWEEN, DRIFT):
        names.append(UNDECIDED)
    elif match.verdict == BETWEEN:
        names.append(PARTIAL if served is not None else IN_BETWEEN)
    elif match.verdict == DRIFT:
        names.append(DRIFTED)
    if served is not None and served != wanted:
        names.append({1: OFF_UP, -1: OFF_DOWN}.get(served - wanted, OTHER))
    if match.verdict != UNDECIDED and match.transform != RAW:
        names.append(match.transform)
    if match.verdict != UNDECIDED and match.shift:
        names.append(f"{SHIFTED} {match.shift:+d}")
    kinds = tuple(dict.fromkeys(kind for name in names if (kind := _kind(name)) is not None))
    return SlotDifference(index, wanted, served, tuple(names) or (SAME,), kinds, _slot_text(wanted, served, match))


def _served(match: SlotMatch) -> int | None:
    if match.verdict == BETWEEN and match.between and match.between[1] == match.between[0] + 1:
        return match.between[1]
    return match.nearest if match.verdict == DRIFT else match.boundary


def _slot_text(wanted: int, served: int | None, match: SlotMatch) -> str:
    text = f"slot {match.slot}: trained on boundary {wanted}, served "
    if served is None and wanted in match.alike and len(match.alike) > 1:
        return text + f"one of {', '.join(map(str, match.alike))}, the trained one among them; {match.reason}"
    return text + (f"{served}; " if served is not None else "not known; ") + match.reason


def _of_layout(trained: Layout, served: tuple[int | None, ...], depth: int) -> list[str]:
    """Names of the layout as a whole; none where it is as trained, or where a slot is not known."""
    if len(trained) != len(served):
        return [SLOT_COUNT]
    if None in served or served == trained:
        return []
    names = []
    if depth >= 8 and served == default_layout(depth):
        names.append(DEFAULT)
    names += _reordered(trained, served)
    # The embedding and the last boundary have nothing below or above them: they may stay where they are.
    for step, name, stuck in ((1, OFF_UP, depth), (-1, OFF_DOWN, 0)):
        moved = [s - t for t, s in zip(trained, served, strict=True) if not (t == s and t in (0, stuck))]
        if moved and all(by == step for by in moved):
            names.append(name)
    if 0 in trained and 0 in served and trained.index(0) != served.index(0):
        names.append(EMBEDDING_MOVED)
    one_off = any(abs(s - t) == 1 for t, s in zip(trained, served, strict=True))
    return names or ([] if one_off else [OTHER])


def _reordered(trained: Layout, served: tuple[int | None, ...]) -> list[str]:
    slots = len(trained)
    if sorted(served) == sorted(trained):
        if sum(t != s for t, s in zip(trained, served, strict=True)) == 2:
            return [SWAPPED]
        rotations = [trained[k:] + trained[:k] for k in range(1, slots)]
        return [ROTATED if served in rotations else PERMUTED]
    if slots > 1 and (served[:-1] == trained[1:] or served[1:] == trained[:-1]):
        return [MOVED]
    return []


def _kind(name: str) -> int | None:
    if name.startswith(SHIFTED):
        return _KINDS[SHIFTED]
    if name in (UNDECIDED, SAME):
        return None
    return _KINDS.get(name, _WRONG_POINT)


def _shown(served: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("?" if b is None else str(b) for b in served) + ")"
