"""Compare every served slot with every boundary, shift and transform of a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from wiring.capture.matching.candidate_scan import Norm, Scan, TextRows, partners, scan
from wiring.capture.matching.match_result import (
    DRIFT,
    EQUALS,
    NORMED,
    RAW,
    TRANSFORMS,
    UNDECIDED,
    PhaseComparison,
    SlotComparison,
)
from wiring.capture.matching.slot_verdict import Slot, judge, largest_error
from wiring.errors import WiringError

SHIFTS = (-2, -1, 0, 1, 2)
CORRUPTED = 0.02  # share of rows that may be off: a router's tie resolved the other way changes a whole row
_DERANGEMENTS = 4  # orders of wrong positions for the null distribution
_CLIP = 1.0
# A target in bfloat16 differs by 0.02 after 61 layers (median over rows, tiny target); drift is more.
MIN_DRIFT = 0.03
_STEADY = 4.0  # largest row over median row: drift affects all rows
_OVER_NULL = 1.5  # nearly all wrong positions must be that much farther
_NOT_FALLING = 0.8  # errors with depth may fall by this factor, because the slots' estimates scatter
_GROWS = 1.5  # the deepest over the shallowest


@torch.no_grad()
def compare_slots(
    served: Tensor,
    reference: Tensor,
    *,
    served_rows: TextRows | None = None,
    reference_rows: TextRows | None = None,
    norm: Norm | None = None,
    shifts: Sequence[int] = SHIFTS,
    transforms: Sequence[str] = TRANSFORMS,
    corrupted: float = CORRUPTED,
    seed: int = 0,
) -> PhaseComparison:
    """Match served [M, n, H] with reference [L+1, N, H] of the same texts, any float type.

    served_rows, reference_rows: positions and texts of the M and N rows; without them the rows are positions 0.. of one
    text on both sides (M = N). Give the reference at all positions of the texts, or shifts have few rows.
    norm: the target's final norm; without it "normed" is not compared. shifts, transforms: what is compared besides the
    unchanged state at its own position; the served row at position p is compared with position p + shift.
    corrupted: share of rows that may be off. seed: draws the wrong positions of the null distribution.

    Memory: 256 MiB of reference rows in float64, and 80 bytes for each row, boundary and slot at five shifts.
    Raises WiringError if widths or rows do not match, or for fewer than two rows or boundaries.
    """
    served_rows = served_rows or TextRows(torch.arange(len(served)))
    reference_rows = reference_rows or TextRows(torch.arange(reference.shape[1]))
    rows = (len(served_rows.positions), len(reference_rows.positions))
    if served.shape[-1] != reference.shape[-1] or rows != (len(served), reference.shape[1]):
        raise WiringError(
            "served and reference states do not match",
            code="states-do-not-match",
            expected="served [M, n, H] and reference [L+1, N, H], with positions of M and N rows",
            found=f"{list(served.shape)} and {list(reference.shape)}, rows {rows}",
        )
    shifts = tuple(sorted(dict.fromkeys((0, *shifts)), key=lambda s: (abs(s), s)))
    transforms = tuple(t for t in TRANSFORMS if t == RAW or (t in transforms and not (t == NORMED and norm is None)))
    partner = [partners(served_rows, reference_rows, shift) for shift in shifts]
    counts = [int((p >= 0).sum()) for p in partner]
    if counts[0] < 2 or len(reference) < 2:
        raise WiringError(
            "too few states to match",
            code="too-few-states-to-match",
            expected="two positions that served and reference states share, and two boundaries",
            found=f"{counts[0]} of {len(served)} positions, {len(reference)} boundaries",
        )
    if reference.device.type == "mps":  # has no float64
        reference = reference.cpu()
    scanned = scan(served, reference, partner, norm)
    usable = [shift == 0 or count >= max(2, counts[0] // 2) for shift, count in zip(shifts, counts, strict=True)]
    wrong = [_derangement(len(served), [seed, i]) for i in range(_DERANGEMENTS)]
    matches = []
    for index in range(served.shape[1]):
        rank, error = _statistics(scanned, index, usable, transforms, corrupted)
        slot = Slot(index, served[:, index], reference, scanned, shifts, transforms, norm, corrupted)
        matches.append(judge(slot, rank, error, wrong))
    return _with_drift(matches)


def match_slots(served: Tensor, reference: Tensor, seed: int = 0) -> tuple[SlotComparison, ...]:
    """Match served [M, n, H] with reference [L+1, M, H], row m of both at the same position of the same text.

    Compares the unchanged boundaries at their own positions only, and no row may be off. Raises WiringError as
    `compare_slots`.
    """
    return compare_slots(served, reference, shifts=(0,), transforms=(RAW,), corrupted=0.0, seed=seed).matches


def _statistics(
    scanned: Scan, slot: int, usable: list[bool], transforms: Sequence[str], corrupted: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rank, largest error) of one slot, each [shifts, transforms, B]; the smallest rank is the nearest."""
    shape = (len(usable), len(transforms), scanned.norm.shape[2])
    ranks, errors = np.full(shape, np.nan), np.full(shape, np.nan)
    for s in np.flatnonzero(usable):
        for t, transform in enumerate(transforms):
            error, _, ratio = scanned.candidate(slot, int(s), transform)
            errors[s, t] = largest_error(error, corrupted)
            # Relative to the served row's own norm, or under much noise the longest candidate would come first. A few
            # corrupted rows do not change the median; if a text repeats itself the median is equal for a shift and for
            # none, and the small bounded mean decides.
            distance = (error / ratio).nan_to_num(nan=torch.inf, posinf=torch.inf)
            ranks[s, t] = distance.median(1).values + 0.1 * distance.clamp(max=_CLIP).mean(1)
    return ranks, errors


def _derangement(count: int, seed: list[int]) -> np.ndarray:
    """Return a random order in which no row keeps its place."""
    order = np.random.default_rng(seed).permutation(count)
    wrong = np.empty(count, dtype=np.int64)
    wrong[order] = np.roll(order, 1)  # one cycle through all rows
    return wrong


def _with_drift(matches: Sequence[SlotComparison]) -> PhaseComparison:
    """Set the verdict "drift" on undecided slots whose errors grow with depth; one depth alone does not show drift."""
    drifting = {match.slot for match in matches if _resembles_drift(match)}
    unchanged = [m for m in matches if (m.transform, m.shift) == (RAW, 0)]
    own = [m for m in unchanged if m.verdict == EQUALS or m.slot in drifting]
    curve = sorted({(m.nearest, m.errors[m.nearest]) for m in own})
    errors = [error for _, error in curve]
    steady = all(b >= _NOT_FALLING * a for a, b in zip(errors, errors[1:], strict=False))
    if len({boundary for boundary, _ in curve}) >= 2 and steady and errors[-1] >= _GROWS * errors[0]:
        shown = ", ".join(f"{error:.2g} at {boundary}" for boundary, error in curve)
        matches = [
            replace(
                m, verdict=DRIFT, reason=f"nearest to boundary {m.nearest} in every row, with errors by depth {shown}"
            )
            if m.slot in drifting
            else m
            for m in matches
        ]
    return PhaseComparison(tuple(matches))


def _resembles_drift(match: SlotComparison) -> bool:
    """Return whether an undecided slot could be its nearest boundary with noise."""
    median = match.errors[match.nearest]
    return (
        match.verdict == UNDECIDED
        and (match.transform, match.shift) == (RAW, 0)
        and median >= MIN_DRIFT
        and match.relative_error <= _STEADY * median
        and match.null_low >= _OVER_NULL * median
        # Noise of relative size e scales a state's norm by a factor of 1 to sqrt(1 + e^2).
        and 0.95 <= match.norm_ratio <= 1.05 * (1 + median**2) ** 0.5
    )
