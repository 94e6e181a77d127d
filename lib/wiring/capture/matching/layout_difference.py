"""Name how the served slots of one phase differ from the trained layout.

Layout faults come from `wiring.layers.classify_layout`, and names such as "swapped" describe them. The states of single
slots may add faults: a partial sum, a norm or a scale, a shift by tokens, drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wiring.capture.matching.match_result import BETWEEN, DRIFT, RAW, UNDECIDED, SlotComparison
from wiring.layers import Layout, LayoutFault, classify_layout, is_default_layout

SAME = "same"
DEFAULT, OFF_UP, OFF_DOWN = "default layers", "off by one up", "off by one down"
SWAPPED, ROTATED, MOVED, PERMUTED = "swapped", "rotated", "moved by one slot", "permuted"
EMBEDDING_MOVED, SLOT_COUNT, OTHER = "embedding in the wrong slot", "slot count", "other layers"
_VERDICTS = {BETWEEN: ("partial sum", 4), DRIFT: ("drift", 6)}
_WRONG_POINT, _TOKEN_SHIFT = 5, 14
Named = tuple[list[str], list[int]]  # names and fault numbers


@dataclass(frozen=True)
class LayoutDifference:
    """The trained and the served boundaries (None: unknown), names of what differs and fault numbers.

    `served` holds the upper boundary for a partial sum and the nearest one for drift. `names` is ("same",) and `kinds`
    is empty if the phase is served as trained.
    """

    trained: Layout
    served: tuple[int | None, ...]
    names: tuple[str, ...]
    kinds: tuple[int, ...]
    text: str


def diff_layouts(trained: Layout, matches: Sequence[SlotComparison], num_layers: int | None = None) -> LayoutDifference:
    """Name how the served slots of one phase differ from the trained layout.

    `num_layers` is the target's number of layers, needed to recognize the default layers; by default the deepest
    compared boundary.
    """
    trained = tuple(trained)
    served = tuple(match.between[1] if match.between else _boundary(match) for match in matches)
    if len(served) == len(trained) and None in served:  # each known slot counts by itself
        found = [_slot(*slot) for slot in zip(trained, served, matches, strict=True)]
    else:
        depth = num_layers or max((len(match.errors) - 1 for match in matches), default=0)
        found = [_layout(trained, served, depth), *map(_state, matches[: len(trained)])]
    names = tuple(dict.fromkeys(name for some, _ in found for name in some))
    kinds = tuple(dict.fromkeys(kind for _, some in found for kind in some))
    if not names:
        return LayoutDifference(trained, served, (SAME,), kinds, f"as trained: {trained}")
    shown = ", ".join("?" if boundary is None else str(boundary) for boundary in served)
    return LayoutDifference(trained, served, names, kinds, f"trained {trained}, served ({shown}): {', '.join(names)}")


def _boundary(match: SlotComparison) -> int | None:
    return match.nearest if match.verdict == DRIFT else match.boundary


def _slot(trained: int, served: int | None, match: SlotComparison) -> Named:
    names, kinds = _state(match)
    if served is None or served == trained:
        return names, kinds
    fault = classify_layout((trained,), (served,))
    assert fault is not None, "the boundaries differ"
    return [{1: OFF_UP, -1: OFF_DOWN}.get(served - trained, OTHER), *names], [fault, *kinds]


def _state(match: SlotComparison) -> Named:
    """Name what differs in the slot's state, whatever boundary it holds."""
    if match.verdict == UNDECIDED:
        return [UNDECIDED], []
    found = [_VERDICTS[match.verdict]] if match.verdict in _VERDICTS else []
    found += [(match.transform, _WRONG_POINT)] if match.transform != RAW else []
    found += [(f"shifted {match.shift:+d}", _TOKEN_SHIFT)] if match.shift else []
    return [name for name, _ in found], [kind for _, kind in found]


def _layout(trained: Layout, served: tuple[Any, ...], depth: int) -> Named:
    """Name a layout of known slots, or of another number of slots."""
    fault = classify_layout(trained, served, depth)
    if fault is None:
        return [], []
    if len(trained) != len(served):
        return [SLOT_COUNT], [fault]
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
    return names or [OTHER], [fault]
