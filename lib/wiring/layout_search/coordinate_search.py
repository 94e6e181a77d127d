"""Coordinate search: optimize one slot at a time over all boundaries, from several starts, until no slot changes.

A round takes k (L+1) layouts instead of (L+1)^k. The best boundary of a slot depends on the other slots, so there are
several starts (evenly spread boundaries, the same reversed, random ones) until two end at the same layout. From the
best end, all orders of its boundaries and small moves of two slots are tried; a change starts the rounds again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch

from wiring.layers import Layout
from wiring.layout_search.layout_losses import Extent, Losses
from wiring.layout_search.successive_halving import survivors

STARTS = 8
_ROUNDS = 6
_KEPT = 6  # minimum of layouts that a level keeps
_SWEEP_SHARE = 8
_NEAR = 2  # layers by which two slots move together


def coordinate_search(
    losses: Losses,
    num_layers: int,
    levels: Sequence[Extent],
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Layout, list[Layout]]:
    """Return the layout found, and the end of each start. levels: growing extents.

    Starts use the first two levels; there are at most STARTS, fewer once two of them end at the same layout.
    """
    walk, few = Walk(losses, num_layers), list(levels[:2])
    ends: list[Layout] = []
    for number, start in enumerate(first_layouts(num_layers, losses.contributions.slots, STARTS, seed)):
        progress(f"start {number + 1}")
        ends.append(walk.rounds(start, few))
        if ends[-1] in ends[:-1]:
            break
    progress("finishing")
    return walk.finish(walk.best(ends, list(levels)), list(levels)), ends


class Walk:
    """Moves from layout to layout on one draft and its data."""

    def __init__(self, losses: Losses, num_layers: int):
        self.losses, self.boundaries = losses, range(num_layers + 1)

    def rounds(self, layout: Layout, levels: list[Extent]) -> Layout:
        """Optimize slot after slot until a whole round changes nothing."""
        unchanged, slot = 0, 0
        for _ in range(_ROUNDS * len(layout)):
            found = self.best(((*layout[:slot], b, *layout[slot + 1 :]) for b in self.boundaries), levels)
            unchanged = unchanged + 1 if found == layout else 1
            layout = found
            if unchanged >= len(layout):
                break
            slot = (slot + 1) % len(layout)
        return layout

    def finish(self, layout: Layout, levels: list[Extent]) -> Layout:
        """Repeat rounds, orders and near pairs until they do not change the layout."""
        for _ in range(_ROUNDS):
            before = layout = self.rounds(layout, levels)
            near = near_pairs(layout, self.boundaries[-1])
            layout = self.best({*itertools.permutations(layout), *near}, levels)
            if layout == before:
                break
        return layout

    def best(self, layouts: Iterable[Layout], levels: list[Extent]) -> Layout:
        """Return the best of `layouts` by halving over the levels."""
        tensor = torch.tensor(sorted(set(layouts)))
        return tuple(survivors(self.losses, tensor, levels, _KEPT, _SWEEP_SHARE)[0][0].tolist())


def first_layouts(num_layers: int, slots: int, count: int, seed: int) -> list[Layout]:
    """Return `count` starts: evenly spread boundaries, the same reversed, and random ones."""
    spread = tuple(round(i * num_layers / max(slots - 1, 1)) for i in range(slots))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, num_layers + 1, (count, slots), generator=generator).tolist()
    return list(dict.fromkeys([spread, spread[::-1], *map(tuple, drawn)]))[:count]


def around(layout: Layout, num_layers: int) -> set[Layout]:
    """Return the layout, all that differ from it in one slot, and its `near_pairs`."""
    found = near_pairs(layout, num_layers)
    for slot in range(len(layout)):
        found |= {(*layout[:slot], b, *layout[slot + 1 :]) for b in range(num_layers + 1)}
    return found


def near_pairs(layout: Layout, num_layers: int) -> set[Layout]:
    """Return the layout, and those in which two slots differ by up to _NEAR layers."""
    steps = range(-_NEAR, _NEAR + 1)
    found = {layout}
    for a, b in itertools.combinations(range(len(layout)), 2):
        for da, db in itertools.product(steps, steps):
            moved = list(layout)
            moved[a], moved[b] = moved[a] + da, moved[b] + db
            if all(0 <= boundary <= num_layers for boundary in moved):
                found.add(tuple(moved))
    return found
