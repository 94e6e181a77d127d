"""Search the trained layout: candidates, halving, a ranking with intervals, and a test whether the best one fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from wiring.accuracy.stats import paired_differences
from wiring.errors import WiringError
from wiring.layers import Layout
from wiring.layout_search.coordinate_search import around, coordinate_search
from wiring.layout_search.data import SearchData
from wiring.layout_search.layout_losses import TEMPERATURE, CachedLosses, Extent, Losses
from wiring.layout_search.null_controls import NullControl, controls, verdict
from wiring.layout_search.successive_halving import SHARE, Level, all_layouts, extents, levels_of, survivors

if TYPE_CHECKING:
    from wiring.model.eagle3 import Eagle3Draft

RULE = (
    f"mean cross-entropy in nats (logits divided by {TEMPERATURE:g}) of the draft's first step against the target's "
    "own choice, on rows where the text goes on with that choice (saved states: where their mask counts) and the "
    "draft's vocabulary holds it"
)
FEW_SHARE = 4  # a larger share for the few hundred layouts of a coordinate search, all of them likely
NEXT = 2  # layers, over all slots together
AGAIN = 6  # maximum of comparisons around the best layout
FIRST_ROWS = 16  # counted rows of the first level
AFFORDABLE = 2e13  # multiply-adds of an exhaustive first level: some ten minutes on two cores


@dataclass(frozen=True)
class RankedLayout:
    """A layout, its mean cross-entropy, and the difference to the best layout with a 95 % interval.

    In nats, logits divided by TEMPERATURE; `plain` is the cross-entropy at temperature 1.
    """

    layout: Layout
    cross_entropy: float
    difference: float
    low: float
    high: float
    plain: float


@dataclass(frozen=True)
class SearchResult:
    """`ranking`, best first. `fits`: whether the best layout beats every control, and `reason` in words.

    alike: layouts of the ranking with 0 in their interval, not distinguishable from the best; controls: see
    `null_controls`; method "exhaustive" or "coordinate"; compared: number of layouts; documents, rows: of the ranking;
    outside: rows with a label outside the draft's vocabulary; levels: of the halving; ends: of the coordinate search.
    """

    ranking: tuple[RankedLayout, ...]
    fits: bool
    reason: str
    alike: tuple[Layout, ...]
    controls: tuple[NullControl, ...]
    method: str
    compared: int
    documents: int
    rows: int
    outside: int
    levels: tuple[Level, ...]
    ends: tuple[Layout, ...]
    seconds: float

    @property
    def layout(self) -> Layout | None:
        """The trained layout, or None where none fits."""
        return self.ranking[0].layout if self.fits else None

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {**asdict(self), "rule": RULE, "temperature": TEMPERATURE}


def search(
    draft: Eagle3Draft,
    data: SearchData,
    *,
    exhaustive: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> SearchResult:
    """Rank layouts of `draft` on `data`: all (L+1)^n if `exhaustive`, else candidates of a coordinate search.

    Raises WiringError when `exhaustive` would take too long.
    """
    began = time.monotonic()
    known, held_out = halves(len(data.tokens))
    data = data.documents([*known, *held_out])
    losses = (Losses if exhaustive else CachedLosses)(draft, data)
    slots, num_layers = draft.config.num_slots, data.num_layers
    levels = extents(losses, FIRST_ROWS, len(known))
    if exhaustive:
        check_affordable(draft, num_layers)
        candidates, ends = all_layouts(num_layers, slots), []
        left, ranked, sums, plain = _compared(losses, candidates, levels, SHARE, progress)
    else:
        winner, ends = coordinate_search(losses, num_layers, levels, seed=seed, progress=progress)
        for _ in range(AGAIN):  # until the best one on all documents has no better neighbor
            near = around(winner, num_layers)
            candidates = torch.tensor(sorted({*near, *ends}))
            # Few rows do not separate neighbors of the winner.
            always = {one for one in near if sum(abs(a - b) for a, b in zip(one, winner, strict=True)) <= NEXT}
            left, ranked, sums, plain = _compared(losses, candidates, levels, FEW_SHARE, progress, always)
            before, winner = winner, tuple(left[0].tolist())
            if winner == before:
                break
    rows = losses.rows(losses.whole).numpy()  # [D], as all sums: the searched documents first
    ranking = tuple(
        RankedLayout(
            tuple(layout),
            cross_entropy=float(one.sum() / rows.sum()),
            difference=float(difference),
            low=float(low),
            high=float(high),
            plain=float(same.sum() / rows.sum()),
        )
        for layout, one, (difference, low, high), same in zip(
            left.tolist(), sums, paired_differences(sums, sums[0], rows, seed), plain, strict=True
        )
    )
    chosen = tuple(left[sums[:, : len(known)].sum(1).argmin()].tolist())  # the best on the searched documents alone
    searched, others = slice(len(known)), slice(len(known), None)
    held = controls(draft, chosen, data.documents(searched), data.documents(others), seed)
    fits, reason = verdict(held)
    return SearchResult(
        ranking=ranking,
        fits=fits,
        reason=reason,
        alike=tuple(row.layout for row in ranking[1:] if row.low <= 0),
        controls=held,
        method="exhaustive" if exhaustive else "coordinate",
        compared=len(candidates),
        documents=len(data.tokens),
        rows=int(np.sum(rows)),
        outside=data.outside,
        levels=levels_of(losses, ranked, left[0]),
        ends=tuple(ends),
        seconds=time.monotonic() - began,
    )


def _compared(
    losses: Losses,
    candidates: Tensor,
    levels: list[Extent],
    share: int,
    progress: Callable[[str], None],
    always: Collection[Layout] = (),
) -> tuple[Tensor, list[tuple[Extent, Tensor]], np.ndarray, np.ndarray]:
    """Halve, then compare the survivors and `always` on all documents.

    Return, best first, layouts [B, n], the order at each level, and summed losses [B, D] at TEMPERATURE and at 1.
    """
    left, ranked = survivors(losses, candidates, levels, share=share, progress=progress)
    left = torch.tensor(list(dict.fromkeys([*map(tuple, left.tolist()), *sorted(always)])))
    progress(f"all documents: {len(left)} layouts")
    sums, plain = losses.sums(left, losses.whole, (TEMPERATURE, 1.0)).numpy()
    if not np.isfinite(sums).all():
        raise WiringError(
            "the draft's forward pass gives losses that are not finite",
            code="losses-not-finite",
            where="search",
            expected="finite losses",
            found="nan or infinity under some layouts",
            remedy="Check the draft's config and weights with `wiring lint`",
        )
    order = sums.sum(1).argsort(kind="stable")
    return left[torch.from_numpy(order)], ranked, sums[order], plain[order]


def halves(documents: int) -> tuple[list[int], list[int]]:
    """Split document numbers into searched and held-out ones by the Thue-Morse sequence (see `frequency_baselines`)."""
    odd = [number for number in range(documents) if number.bit_count() % 2]
    return [number for number in range(documents) if number not in odd], odd


def check_affordable(draft: Eagle3Draft, num_layers: int) -> None:
    """Raise WiringError when comparing all layouts would take too long."""
    layouts = (num_layers + 1) ** draft.config.num_slots
    weights = sum(parameter.numel() for parameter in draft.parameters()) - draft.fc.weight.numel()
    if (work := layouts * FIRST_ROWS * weights) > AFFORDABLE:
        raise WiringError(
            f"comparing all {layouts:,} layouts of this draft takes too long",
            code="exhaustive-too-expensive",
            where="--exhaustive",
            expected=f"up to {AFFORDABLE:.0e} multiply-adds",
            found=f"{work:.0e}",
            remedy="Leave out --exhaustive: the coordinate search takes a few hundred comparisons",
        )
