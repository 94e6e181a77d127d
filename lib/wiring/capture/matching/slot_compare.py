"""Compare every slot with every boundary, shift and transform."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wiring.capture.matching.candidate_scan import Norm, Scan, scan
from wiring.capture.matching.drift import with_drift
from wiring.capture.matching.match_result import NORMED, RAW, TRANSFORMS, Comparison, Grid, SlotMatch
from wiring.capture.matching.row_alignment import Rows, partners
from wiring.capture.matching.slot_verdict import Slot, judge, spoilt_rows
from wiring.errors import WiringError
from wiring.layers import Layout

SHIFTS = (-2, -1, 0, 1, 2)
GRID = ("cosine", "norm_ratio", "median_error", "error")
SPOILT = 0.02  # share of rows that may miss: a router's tie that falls the other way changes a row altogether
_CLIP = 1.0


@torch.no_grad()
def compare_slots(
    served: Tensor,
    reference: Tensor | Sequence[Tensor],
    *,
    served_rows: Rows | None = None,
    reference_rows: Rows | None = None,
    boundaries: Layout | None = None,
    norm: Norm | None = None,
    shifts: Sequence[int] = SHIFTS,
    transforms: Sequence[str] = TRANSFORMS,
    spoilt: float = SPOILT,
    derangements: int = 4,
    seed: int = 0,
) -> Comparison:
    """Match served [M, n, H] with reference [B, N, H] (or B tensors [N, H]) of the same texts, any float type.

    served_rows, reference_rows: positions and texts of the M and N rows; without them the rows are positions 0.. of one
    text on both sides (M = N). Give the reference at all positions of the texts, or shifts have few rows to go by.
    boundaries: what the reference holds, where it is not 0..L (another server's dump). norm: the target's final norm;
    without it "normed" is not tried. shifts, transforms: what is tried besides the state itself at its own position;
    the served row at position p is compared with position p + shift. spoilt: share of rows that may be off.
    derangements: orders of wrong positions, drawn from `seed`, for the null distribution.

    Memory: 256 MiB of reference rows in float64, and 80 bytes for each row, boundary and slot at five shifts.
    Raises WiringError when shapes, rows or labels do not belong together, or for fewer than two rows or boundaries.
    """
    served_rows, reference_rows, boundaries = _checked(served, reference, served_rows, reference_rows, boundaries)
    shifts = tuple(sorted(dict.fromkeys((0, *shifts)), key=lambda s: (abs(s), s)))
    transforms = tuple(t for t in TRANSFORMS if t == RAW or (t in transforms and not (t == NORMED and norm is None)))
    partner = [partners(served_rows, reference_rows, shift) for shift in shifts]
    if int((partner[0] >= 0).sum()) < 2:
        raise WiringError(
            "the reference does not hold the served rows' positions",
            expected="at least two common positions",
            found=f"{int((partner[0] >= 0).sum())} of {len(served)}",
        )
    if isinstance(reference, Tensor) and reference.device.type == "mps":  # has no float64
        reference = reference.cpu()
    scanned = scan(served, reference, partner, norm)
    usable = [
        shift == 0 or int((p >= 0).sum()) >= max(2, int((partner[0] >= 0).sum()) // 2)
        for shift, p in zip(shifts, partner, strict=True)
    ]
    wrong = [_derangement(len(served), [seed, i]) for i in range(derangements)]
    matches, grids = [], []
    for slot in range(served.shape[1]):
        grid = _statistics(scanned, slot, usable, transforms, spoilt)
        one = Slot(slot, served[:, slot], reference, scanned, shifts, transforms, boundaries, norm, spoilt)
        matches.append(judge(one, grid["rank"], grid["error"], wrong))
        grids.append(grid)
    told, curve = with_drift(matches)
    stacked = {name: np.stack([grid[name] for grid in grids]) for name in GRID}
    return Comparison(told, Grid(shifts, transforms, boundaries, **stacked), curve)


def match_slots(served: Tensor, reference: Tensor, seed: int = 0) -> tuple[SlotMatch, ...]:
    """Match served [M, n, H] with reference [L+1, M, H], row m of both at the same position of the same text.

    Only the boundaries as they are, without shifts and transforms, and no row may be off. Raises WiringError when the
    shapes do not belong together, or for fewer than two positions or boundaries.
    """
    return compare_slots(served, reference, shifts=(0,), transforms=(RAW,), spoilt=0.0, seed=seed).matches


def _statistics(
    scanned: Scan, slot: int, usable: list[bool], transforms: Sequence[str], spoilt: float
) -> dict[str, np.ndarray]:
    """Arrays [shifts, transforms, B] of one slot. `rank` orders candidates: the smallest is the nearest."""
    shape = (len(usable), len(transforms), scanned.norm.shape[2])
    out = {name: np.full(shape, np.nan) for name in (*GRID, "rank")}
    for s in range(len(usable)):
        if not usable[s]:
            continue
        for t, transform in enumerate(transforms):
            error, cosine, ratio = scanned.candidate(slot, s, transform)
            out["median_error"][s, t] = error.median(1).values
            out["cosine"][s, t], out["norm_ratio"][s, t] = cosine.median(1).values, ratio.median(1).values
            out["error"][s, t] = error.kthvalue(error.shape[1] - spoilt_rows(error.shape[1], spoilt), 1).values
            # By the served row's own length, or under much noise the longest candidate would come first. The median is
            # not moved by a few spoilt rows, but where a text repeats itself it is the same for a shift and for none:
            # the mean, small and bounded, decides then.
            distance = (error / ratio).nan_to_num(nan=torch.inf, posinf=torch.inf)
            out["rank"][s, t] = distance.median(1).values + 0.1 * distance.clamp(max=_CLIP).mean(1)
    return out


def _checked(
    served: Tensor,
    reference: Tensor | Sequence[Tensor],
    served_rows: Rows | None,
    reference_rows: Rows | None,
    boundaries: Layout | None,
) -> tuple[Rows, Rows, Layout]:
    count = len(reference)
    shape = [count, *(reference[0].shape if count else ())]
    fits = served.dim() == 3 and len(shape) == 3 and served.shape[2] == shape[2]
    if fits and served_rows is None and reference_rows is None:
        fits = served.shape[0] == shape[1]
    if not fits:
        raise WiringError(
            "served and reference states do not belong together",
            expected="served [M, n, H] and reference [L+1, M, H]",
            found=f"{list(served.shape)} and {shape}",
        )
    if served.shape[0] < 2 or count < 2:
        raise WiringError(
            "matching needs at least two positions and two boundaries",
            found=f"{served.shape[0]} positions, {count} boundaries",
        )
    served_rows = served_rows or Rows(torch.arange(served.shape[0]))
    reference_rows = reference_rows or Rows(torch.arange(shape[1]))
    for name, rows, states in (("served", served_rows, served.shape[0]), ("reference", reference_rows, shape[1])):
        if len(rows) != states:
            raise WiringError(f"the {name} rows and states differ in number", expected=states, found=len(rows))
    labels = tuple(range(count)) if boundaries is None else tuple(boundaries)
    if len(labels) != count or list(labels) != sorted(set(labels)):
        raise WiringError(
            "the reference's boundaries are not told",
            expected=f"{count} different boundaries in ascending order",
            found=labels,
        )
    return served_rows, reference_rows, labels


def _derangement(count: int, seed: list[int]) -> np.ndarray:
    """A random order in which no row stays in its place."""
    order = np.random.default_rng(seed).permutation(count)
    wrong = np.empty(count, dtype=np.int64)
    wrong[order] = np.roll(order, 1)  # one cycle through all rows
    return wrong
