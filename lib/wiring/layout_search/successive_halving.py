"""Successive halving: few rows for all layouts, many rows for the few that remain.

Each level takes about four times as many rows as the one before, of twice as many documents, and keeps a sixteenth of
the layouts, so the first level costs the most. Levels use the searched half of the documents. A level keeps a fixed
share, so the result reports the rank of the winner at each level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wiring.layout_search.layout_losses import Extent, Losses

GROWTH = 4  # rows from one level to the next
LEVELS = 4  # at most, before all documents
SHARE = 16  # a level keeps one of this many layouts
LEAST = 16  # minimum of layouts that a level keeps


@dataclass(frozen=True)
class Level:
    """One level: `layouts` compared on `rows` counted rows of `documents` documents; the winner had `rank`."""

    layouts: int
    documents: int
    rows: int
    rank: int


def extents(losses: Losses, first_rows: int, documents: int) -> list[Extent]:
    """Return extents of about first_rows, GROWTH first_rows, .. counted rows, of the first 2, 4, .. documents."""
    counts = losses.data.counted.long()  # [D, T]
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
    """Halve layouts [B, n] over `levels`. Return, best first, the layouts that remain, and the order at each level."""
    ranked = []
    for number, extent in enumerate(levels):
        progress(f"level {number + 1} of {len(levels)}: {len(layouts)} layouts")
        order = losses.means(layouts, extent).argsort(stable=True)
        layouts = layouts[order]
        ranked.append((extent, layouts))
        layouts = layouts[: max(len(layouts) // share, least)]
    return layouts, ranked


def levels_of(losses: Losses, ranked: list[tuple[Extent, Tensor]], winner: Tensor) -> tuple[Level, ...]:
    """Return the levels with the rank of `winner` [n] from 1; 0 where it was not among the layouts."""
    levels = []
    for extent, layouts in ranked:
        at = (layouts == winner).all(1).nonzero()
        rank = int(at[0, 0]) + 1 if len(at) else 0
        levels.append(Level(len(layouts), extent.documents, int(losses.rows(extent).sum()), rank))
    return tuple(levels)


def all_layouts(num_layers: int, slots: int) -> Tensor:
    """Return all (L+1)^n ordered layouts [., n]."""
    every = torch.arange(num_layers + 1)
    return torch.cartesian_prod(*[every] * slots).view(-1, slots)
