"""Coordinate search: one slot at a time over all boundaries, from several starts, until no slot changes.

k (L+1) layouts for a round instead of (L+1)^k. A slot that is right while others are wrong does not always look right,
so there are several starts: evenly spread boundaries, the same in reverse, and random ones, until two end alike. From
the best end all orders of its boundaries are tried, and pairs of slots together around them; a change starts the rounds
again. All layouts that differ in one slot from where this ends are then compared on all documents, and again around the
best of these, until it is the best of its own neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from wiring.layers import Layout
from wiring.layout_search.layout_losses import Extent, Losses
from wiring.layout_search.successive_halving import survivors

STARTS = 8
_ROUNDS = 6
_KEPT = 6  # layouts of a sweep that a level keeps at least
_SWEEP_SHARE = 8
_NEAR = 2  # layers around a found pair that are tried together


def coordinate_search(
    losses: Losses,
    num_layers: int,
    levels: Sequence[Extent],
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Layout, list[Layout]]:
    """The layout found, and where each start ended. levels: growing extents.

    Starts are walked on the first two levels, until two of them end alike, STARTS of them at most.
    """
    walk, few = Walk(losses, num_layers), list(levels[:2])
    ends: list[Layout] = []
    for number, start in enumerate(first_layouts(num_layers, losses.products.slots, STARTS, seed)):
        progress(f"start {number + 1}")
        ends.append(walk.rounds(start, few))
        if ends[-1] in ends[:-1]:
            break
    progress("finishing")
    return walk.finish(walk.best(ends)(list(levels)), list(levels)), ends


class Walk:
    """Moves from layout to layout, on one draft and material."""

    def __init__(self, losses: Losses, num_layers: int):
        self.losses, self.boundaries = losses, range(num_layers + 1)

    def rounds(self, layout: Layout, levels: list[Extent]) -> Layout:
        """Sweep slot after slot until a whole round changes nothing."""
        unchanged, slot = 0, 0
        for _ in range(_ROUNDS * len(layout)):
            found = self.best((*layout[:slot], b, *layout[slot + 1 :]) for b in self.boundaries)(levels)
            unchanged = unchanged + 1 if found == layout else 1
            layout = found
            if unchanged >= len(layout):
                break
            slot = (slot + 1) % len(layout)
        return layout

    def finish(self, layout: Layout, levels: list[Extent]) -> Layout:
        """Rounds, then orders and near pairs, until neither changes the layout."""
        for _ in range(_ROUNDS):
            before = layout = self.rounds(layout, levels)
            layout = self.best({*itertools.permutations(layout), *near_pairs(layout, self.boundaries[-1])})(levels)
            if layout == before:
                break
        return layout

    def best(self, layouts) -> Callable[[list[Extent]], Layout]:
        """The best of `layouts` by halving over the levels."""
        tensor = torch.tensor(sorted(set(layouts)))
        return lambda levels: tuple(survivors(self.losses, tensor, levels, _KEPT, _SWEEP_SHARE)[0][0].tolist())


def first_layouts(num_layers: int, slots: int, count: int, seed: int) -> list[Layout]:
    """`count` starts: evenly spread boundaries, the same in reverse, and random ones."""
    spread = tuple(round(i * num_layers / max(slots - 1, 1)) for i in range(slots))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, num_layers + 1, (count, slots), generator=generator).tolist()
    return list(dict.fromkeys([spread, spread[::-1], *map(tuple, drawn)]))[:count]


def around(layout: Layout, num_layers: int) -> set[Layout]:
    """The layout, all that differ from it in one slot, and those in which two slots move a little."""
    found = near_pairs(layout, num_layers)
    for slot in range(len(layout)):
        found |= {(*layout[:slot], b, *layout[slot + 1 :]) for b in range(num_layers + 1)}
    return found


def near_pairs(layout: Layout, num_layers: int) -> set[Layout]:
    """The layout, and those in which two slots move by up to _NEAR layers at once."""
    steps = range(-_NEAR, _NEAR + 1)
    found = {layout}
    for a, b in itertools.combinations(range(len(layout)), 2):
        for da, db in itertools.product(steps, steps):
            moved = list(layout)
            moved[a], moved[b] = moved[a] + da, moved[b] + db
            if all(0 <= boundary <= num_layers for boundary in moved):
                found.add(tuple(moved))
    return found
