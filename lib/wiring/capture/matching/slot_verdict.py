"""The verdict on one slot, with its reason.

The error of a slot against a candidate is the largest, over rows, of ||served - candidate|| / ||candidate||.

- At most `MAX_ERROR`. bfloat16 rounds by up to 2^-8 at each of the 2 L additions to the residual stream; as a random
  walk that is 0.04 at 61 layers, and 0.1 leaves room for other kernels. Another norm, scale or shift is far above.
  float16 has eight times finer steps, so the same bound holds for it.
- At least `MIN_MARGIN` times smaller than against any other boundary or shift. If the slot differs from its boundary by
  e and that boundary from another by d, the second error is at most d + e; being 3 e or more means d >= 2 e: what the
  two engines differ by is no more than half the way to the nearest other boundary, so it cannot have been mistaken for
  it. Transforms of one state may be alike (a norm whose weights are all one): the plainer one is named.
- The states of wrong positions (several seeded orders) must be as clearly worse, or the slot would match whatever the
  token, and nothing has been seen of positions. Pairs whose states are the same (repeated tokens) do not count.
- A shift is claimed only where rows tell it from none: `MIN_TELLING` rows or more whose states differ by more than
  twice `MAX_ERROR` between the two positions, and on these the shift must win by the margin too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wiring.capture.matching.candidate_scan import Norm, Scan, transformed
from wiring.capture.matching.layer_steps import Between, between
from wiring.capture.matching.match_result import BETWEEN, EQUALS, RAW, UNDECIDED, SlotMatch, name_candidate
from wiring.layers import Layout

MAX_ERROR = 0.1
MIN_MARGIN = 3.0
MIN_TELLING = 8
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95)
_PARALLEL = 0.99  # cosine above which a slot that misses by length is called scaled
_EXACT = 1e-12  # errors below are taken as this, so that an exact match has a finite margin


@dataclass(frozen=True)
class Slot:
    """One slot's rows [M, H] with everything that they are compared with."""

    index: int
    states: Tensor
    reference: Tensor | Sequence[Tensor]
    scanned: Scan
    shifts: tuple[int, ...]
    transforms: tuple[str, ...]
    boundaries: Layout
    norm: Norm | None
    spoilt: float

    def rows(self, shift: int) -> tuple[Tensor, Tensor]:
        """(served rows, reference rows), int64, that are partners under the shift of this index."""
        partner = self.scanned.partner[shift]
        keep = (partner >= 0).nonzero()[:, 0]
        return keep, partner[keep]

    def candidate(self, place: int, transform: str, rows: Tensor) -> Tensor:
        """Rows [m] of a boundary, transformed, float64."""
        boundary = self.reference[place]
        return transformed(boundary[rows.to(boundary.device)], transform, self.norm)

    def errors(self, place: int, shift: int, transform: str) -> Tensor:
        """The exact errors of all partners [m]."""
        mine, theirs = self.rows(shift)
        return relative(self.states[mine.to(self.states.device)], self.candidate(place, transform, theirs))

    def name(self, place: int, shift: int, transform: str) -> str:
        """The candidate in words."""
        return name_candidate(self.boundaries[place], self.shifts[shift], transform)


def spoilt_rows(count: int, share: float) -> int:
    """How many of `count` rows may be off."""
    return int(count * share)


def relative(states: Tensor, candidate: Tensor) -> Tensor:
    """||states - candidate|| / ||candidate|| per row [m]; NaN counts as infinitely far."""
    states = states.to(candidate.device, torch.float64)
    distance = (states - candidate).norm(dim=-1) / candidate.norm(dim=-1).clamp_min(_EXACT)
    return distance.nan_to_num(nan=torch.inf, posinf=torch.inf).cpu()


def judge(slot: Slot, rank: np.ndarray, error: np.ndarray, wrong: Sequence[np.ndarray]) -> SlotMatch:
    """The verdict from the statistics [shifts, transforms, B] of all candidates; `wrong` orders give the null."""
    place, shift, transform = _nearest(slot, rank, error)
    errors = slot.errors(place, shift, transform)
    worst = _largest(errors, slot.spoilt)
    others = np.where(np.isnan(error), np.inf, error)
    others[shift, :, place] = np.inf
    s, t, b = np.unravel_index(int(others.argmin()), others.shape)
    second = (int(b), int(s), slot.transforms[t])
    second_error = _largest(slot.errors(*second), slot.spoilt)
    margin = max(second_error, _EXACT) / max(worst, _EXACT) if np.isfinite(worst) else 0.0
    null = _null(slot, place, shift, transform, wrong)
    alike = [place] if worst > MAX_ERROR else _alike(others, worst, place)
    inside = None
    if transform == RAW and bool(slot.states.isfinite().all()) and bool(slot.states.any()):
        inside = between(slot.states, slot.reference, slot.scanned.partner[shift], place)
    doubt = _doubt(slot, place, shift, transform, errors, second, worst, second_error, null)
    verdict = BETWEEN if inside else UNDECIDED if doubt else EQUALS
    if inside:
        reason = _inside(slot, inside)
    else:
        reason = doubt or _equal(slot, (place, shift, transform), errors, worst, second, second_error)
    every, cosine, ratio = slot.scanned.candidate(slot.index, shift, transform)
    return SlotMatch(
        slot=slot.index,
        boundary=slot.boundaries[place] if verdict == EQUALS else None,
        relative_error=worst,
        runner_up=slot.boundaries[second[0]],
        runner_up_error=second_error,
        margin=margin,
        cosine=float(cosine[place].median()),
        null_error=float(np.median(null)),
        verdict=verdict,
        reason=reason,
        nearest=slot.boundaries[place],
        shift=slot.shifts[shift],
        transform=transform,
        norm_ratio=float(ratio[place].median()),
        runner_up_shift=slot.shifts[second[1]],
        runner_up_transform=second[2],
        rows=len(errors),
        rows_off=int((errors > MAX_ERROR).sum()),
        null_quantiles=tuple((q, float(np.quantile(null, q))) for q in QUANTILES),
        alike=tuple(slot.boundaries[b] for b in alike),
        between=(slot.boundaries[inside.low], slot.boundaries[inside.low + 1]) if inside else None,
        share=inside.share if inside else None,
        boundaries=slot.boundaries,
        errors=tuple(every.median(1).values.tolist()),
        cosines=tuple(cosine.median(1).values.tolist()),
    )


def _nearest(slot: Slot, rank: np.ndarray, error: np.ndarray) -> tuple[int, int, str]:
    """(place, shift, transform) of the nearest candidate; among transforms that are alike the plainest."""
    ranked = np.where(np.isnan(rank), np.inf, rank)
    s, t, b = (int(i) for i in np.unravel_index(int(ranked.argmin()), ranked.shape))
    bound = MIN_MARGIN * max(float(error[s, t, b]), _EXACT)
    if error[s, t, b] <= MAX_ERROR:
        t = next(i for i in range(len(slot.transforms)) if i == t or error[s, i, b] <= min(bound, MAX_ERROR))
    return b, s, slot.transforms[t]


def _alike(others: np.ndarray, worst: float, place: int) -> list[int]:
    """Places that the margin does not tell from `place`, it included."""
    near = np.nonzero((others < MIN_MARGIN * max(worst, _EXACT)).any(axis=(0, 1)))[0]
    return sorted({place, *(int(b) for b in near)})


def _null(slot: Slot, place: int, shift: int, transform: str, wrong: Sequence[np.ndarray]) -> np.ndarray:
    """Errors against the nearest candidate at wrong positions; one zero where all positions hold the same state."""
    mine, theirs = slot.rows(shift)
    right = slot.candidate(place, transform, theirs)
    found = []
    for order in wrong:
        order = torch.from_numpy(order[order < len(mine)]) if len(order) != len(mine) else torch.from_numpy(order)
        other = right[order.to(right.device)]
        different = relative(other, right) > MAX_ERROR
        found.append(relative(slot.states[mine.to(slot.states.device)], other)[different])
    errors = torch.cat(found).numpy() if found else np.zeros(0)
    errors = errors[np.isfinite(errors)]
    return errors if len(errors) else np.zeros(1)


def _largest(errors: Tensor, share: float) -> float:
    return float(errors.kthvalue(len(errors) - spoilt_rows(len(errors), share)).values)


def _doubt(
    slot: Slot,
    place: int,
    shift: int,
    transform: str,
    errors: Tensor,
    second: tuple[int, int, str],
    worst: float,
    second_error: float,
    null: np.ndarray,
) -> str:
    """Why the nearest candidate is not accepted, or ""."""
    if not bool(slot.states.isfinite().all()):
        return "the slot holds NaN or infinity"
    if not bool(slot.states.any()):
        return "the slot is all zeros"
    named = slot.name(place, shift, transform)
    if worst > MAX_ERROR:
        return _too_far(slot, named, errors, worst)
    if second_error < MIN_MARGIN * max(worst, _EXACT):
        other = slot.name(*second)
        both = f"{named} and {other}"
        if shift == second[1] == 0 and transform == second[2] == RAW:
            both = f"boundaries {slot.boundaries[place]} and {slot.boundaries[second[0]]}"
        return (
            f"{both} are too alike to tell apart here: the errors are {worst:.2g} and {second_error:.2g} "
            f"(needed: {MIN_MARGIN:g} times)"
        )
    if slot.shifts[shift]:
        untold = _untold(slot, place, shift, transform)
        if untold:
            return untold
    if float(np.median(null)) < MIN_MARGIN * max(worst, _EXACT):
        return f"{named} matches as well at wrong positions: all rows are alike"
    return ""


def _too_far(slot: Slot, named: str, errors: Tensor, worst: float) -> str:
    off = int((errors > MAX_ERROR).sum())
    if off <= len(errors) // 2:
        first = int((errors > MAX_ERROR).nonzero()[0])
        return f"most rows equal {named}, but {off} of {len(errors)} do not (first: row {first})"
    _, cosine, ratio = slot.scanned.candidate(slot.index, 0, RAW)
    like = int(cosine.median(1).values.argmax())
    angle, length = float(cosine[like].median()), float(ratio[like].median())
    if angle > _PARALLEL and abs(length - 1) > MAX_ERROR / 2:
        boundary = slot.boundaries[like]
        return f"parallel to boundary {boundary} but {length:.3g} times as long: a norm or a scale lies between"
    nearest = named.removeprefix("boundary ")
    return f"no boundary is near: the nearest, {nearest}, differs by {worst:.2g} (accepted: {MAX_ERROR})"


def _untold(slot: Slot, place: int, shift: int, transform: str) -> str:
    """Why a shift is not clearly better than none on the rows that tell them apart, or ""."""
    none = slot.scanned.partner[slot.shifts.index(0)]
    moved = slot.scanned.partner[shift]
    rows = ((none >= 0) & (moved >= 0)).nonzero()[:, 0]
    here, there = slot.candidate(place, transform, none[rows]), slot.candidate(place, transform, moved[rows])
    telling = relative(here, there) > 2 * MAX_ERROR
    by, count = slot.shifts[shift], int(telling.sum())
    if count < MIN_TELLING:
        return (
            f"shift {by:+d} and no shift are too alike to tell apart here: boundary {slot.boundaries[place]} differs "
            f"between the two in {count} of {len(rows)} rows (needed: {MIN_TELLING})"
        )
    states = slot.states[rows.to(slot.states.device)]
    with_shift, without = relative(states, there)[telling].median(), relative(states, here)[telling].median()
    if float(without) < MIN_MARGIN * max(float(with_shift), _EXACT):
        return f"shift {by:+d} fits no better than none on the {count} rows that tell them apart"
    return ""


def _equal(
    slot: Slot,
    nearest: tuple[int, int, str],
    errors: Tensor,
    worst: float,
    second: tuple[int, int, str],
    second_error: float,
) -> str:
    named, other = slot.name(*nearest), slot.name(*second).removeprefix("boundary ")
    off = int((errors > MAX_ERROR).sum())
    but = f" in all but {off} of {len(errors)} rows" if off else ""
    return f"differs from {named} by {worst:.2g}{but}, from the next, {other}, by {second_error:.2g}"


def _inside(slot: Slot, found: Between) -> str:
    low, high = slot.boundaries[found.low], slot.boundaries[found.low + 1]
    points = f"{found.explained / found.other:.2g} times" if found.other else "far"
    what = "a part of that layer's sum is missing" if high == low + 1 else "a layer between the two"
    return (
        f"between boundaries {low} and {high}, at {found.share:.0%} of the step: the deviation points along this step "
        f"{points} more than along any other; {what}"
    )
