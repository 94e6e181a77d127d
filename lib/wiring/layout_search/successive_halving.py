"""Successive halving: few rows for all layouts, many rows for the few that are left.

Every level takes some four times as many rows as the one before it, of twice as many documents, and a sixteenth of the
layouts goes on, so the first level costs nearly all. The levels take documents of the half that is searched; all
documents come last. How many layouts a level keeps is a share, not a test: the result says at which rank the winner
passed each level, so a reader sees how near it came to being dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wiring.layout_search.layout_losses import Extent, Losses

GROWTH = 4  # rows from one level to the next
LEVELS = 4  # at most, before all documents
SHARE = 16  # one of so many layouts goes on
LEAST = 16  # layouts that a level keeps at least


@dataclass(frozen=True)
class Level:
    """One level: `layouts` compared on `rows` counted rows of `documents` documents; the winner came in at `rank`."""

    layouts: int
    documents: int
    rows: int
    rank: int


def extents(losses: Losses, first_rows: int, documents: int) -> list[Extent]:
    """Growing extents of some first_rows, GROWTH first_rows, .. counted rows, of 2, 4, .. of the first `documents`."""
    counts = losses.material.counted.long()  # [D, T]
    found: list[Extent] = []
    wanted, used = first_rows, 2
    while used <= documents and len(found) < LEVELS:
        by_length = counts[:used].sum(0).cumsum(0)  # counted rows of windows of 1, 2, .. rows
        found.append(Extent(used, int((by_length < wanted).sum().clamp(max=counts.shape[1] - 1)) + 1))
        wanted, used = wanted * GROWTH, used * 2
    return found


def survivors(
    losses: Losses,
    layouts: Tensor,
    levels: list[Extent],
    least: int = LEAST,
    share: int = SHARE,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Tensor, list[tuple[Extent, Tensor]]]:
    """Halve layouts [B, n] over all of `levels`. Best first: what the last one keeps, and the order at each."""
    ranked = []
    for number, extent in enumerate(levels):
        progress(f"level {number + 1} of {len(levels)}: {len(layouts)} layouts")
        order = losses.means(layouts, extent).argsort(stable=True)
        layouts = layouts[order]
        ranked.append((extent, layouts))
        layouts = layouts[: max(len(layouts) // share, least)]
    return layouts, ranked


def levels_of(losses: Losses, ranked: list[tuple[Extent, Tensor]], winner: Tensor) -> tuple[Level, ...]:
    """What became of `winner` [n] at each level, ranks from 1; 0 where it was not among the layouts."""
    levels = []
    for extent, layouts in ranked:
        at = (layouts == winner).all(1).nonzero()
        rank = int(at[0, 0]) + 1 if len(at) else 0
        levels.append(Level(len(layouts), extent.documents, int(losses.rows(extent).sum()), rank))
    return tuple(levels)


def all_layouts(num_layers: int, slots: int) -> Tensor:
    """All (L+1)^n ordered layouts [., n]."""
    every = torch.arange(num_layers + 1)
    return torch.cartesian_prod(*[every] * slots).view(-1, slots)
