"""Decide which boundary one slot holds, with the reason.

The error of a slot against a candidate is the largest, over rows, of ||served - candidate|| / ||candidate||.

- At most `MAX_ERROR`. bfloat16 rounds by up to 2^-8 at each of the 2 L additions to the residual stream; as a random
  walk that is 0.04 at 61 layers, and 0.1 leaves room for other kernels. Another norm, scale or shift is far above.
  float16 has eight times finer steps, so the same bound holds for it.
- At least `MIN_MARGIN` times smaller than against any other boundary or shift. If the slot differs from its boundary by
  e and that boundary from another by d, the second error is at most d + e; 3 e or more means d >= 2 e: the engines
  differ by at most half the distance to the nearest other boundary. Transforms of one state may be alike (a norm with
  all weights one): the simplest is reported.
- The states of wrong positions (several seeded orders) must be as clearly worse, or the slot would match whatever the
  token. Pairs with equal states (repeated tokens) do not count.
- A shift needs `MIN_DISTINCT` rows or more with states that differ by more than twice `MAX_ERROR` between the two
  positions; on these rows the shift must win by the margin too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wiring.capture.matching.candidate_scan import Norm, Scan, transformed
from wiring.capture.matching.layer_steps import Between, between
from wiring.capture.matching.match_result import BETWEEN, EQUALS, RAW, UNDECIDED, SlotComparison, describe_change

MAX_ERROR = 0.1
MIN_MARGIN = 3.0
MIN_DISTINCT = 8
_PARALLEL = 0.99  # cosine from which a slot with another norm is called scaled
_EXACT = 1e-12  # the least error, so that an exact match has a finite margin


class Candidate(NamedTuple):
    """A boundary under a shift (an index of the slot's shifts) and a transform."""

    boundary: int
    shift: int
    transform: str


@dataclass(frozen=True)
class Slot:
    """One slot's rows [M, H] with everything that they are compared with."""

    index: int
    states: Tensor
    reference: Tensor
    scanned: Scan
    shifts: tuple[int, ...]
    transforms: tuple[str, ...]
    norm: Norm | None
    corrupted: float

    def rows(self, shift: int) -> tuple[Tensor, Tensor]:
        """Return (served rows, reference rows), int64, that are partners under the shift of this index."""
        partner = self.scanned.partner[shift]
        keep = (partner >= 0).nonzero()[:, 0]
        return keep, partner[keep]

    def served(self, rows: Tensor) -> Tensor:
        """Return served rows [m, H]."""
        return self.states[rows.to(self.states.device)]

    def expected(self, candidate: Candidate, rows: Tensor) -> Tensor:
        """Return reference rows [m, H] of a candidate, transformed, float64."""
        boundary = self.reference[candidate.boundary]
        return transformed(boundary[rows.to(boundary.device)], candidate.transform, self.norm)

    def errors(self, candidate: Candidate) -> Tensor:
        """Return the exact errors of all partners [m]."""
        served, reference = self.rows(candidate.shift)
        return relative(self.served(served), self.expected(candidate, reference))

    def name(self, candidate: Candidate) -> str:
        """Return "boundary 3" or "boundary 3 (shift +1, normed)"."""
        change = describe_change(self.shifts[candidate.shift], candidate.transform)
        return f"boundary {candidate.boundary}" + (f" ({change})" if change else "")


@dataclass(frozen=True)
class Judged:
    """The nearest candidate and the runner-up with their errors, and errors at wrong positions."""

    nearest: Candidate
    errors: Tensor
    worst: float
    second: Candidate
    second_error: float
    null: np.ndarray

    @property
    def needed(self) -> float:
        """The least error that others need."""
        return MIN_MARGIN * max(self.worst, _EXACT)

    @property
    def rows_off(self) -> int:
        """Number of rows above the accepted error."""
        return int((self.errors > MAX_ERROR).sum())


def relative(states: Tensor, candidate: Tensor) -> Tensor:
    """Return ||states - candidate|| / ||candidate|| per row [m]; NaN counts as infinitely far."""
    states = states.to(candidate.device, torch.float64)
    distance = (states - candidate).norm(dim=-1) / candidate.norm(dim=-1).clamp_min(_EXACT)
    return distance.nan_to_num(nan=torch.inf, posinf=torch.inf).cpu()


def largest_error(errors: Tensor, corrupted: float) -> Tensor:
    """Return the largest of errors [..., m] without a share of `corrupted` rows: [...]."""
    return errors.kthvalue(errors.shape[-1] - int(errors.shape[-1] * corrupted), -1).values


def judge(slot: Slot, rank: np.ndarray, error: np.ndarray, wrong: Sequence[np.ndarray]) -> SlotComparison:
    """Decide from rank and error [shifts, transforms, B] of all candidates; `wrong` orders give the null."""
    nearest = _nearest(slot, rank, error)
    others = np.where(np.isnan(error), np.inf, error)
    others[nearest.shift, :, nearest.boundary] = np.inf
    s, t, b = np.unravel_index(int(others.argmin()), others.shape)
    second = Candidate(int(b), int(s), slot.transforms[t])
    errors = slot.errors(nearest)
    worst = float(largest_error(errors, slot.corrupted))
    second_error = float(largest_error(slot.errors(second), slot.corrupted))
    judged = Judged(nearest, errors, worst, second, second_error, _null_errors(slot, nearest, wrong))
    near = np.flatnonzero((others < judged.needed).any(axis=(0, 1))) if worst <= MAX_ERROR else ()
    inside = None
    if nearest.transform == RAW and bool(slot.states.isfinite().all()) and bool(slot.states.any()):
        inside = between(slot.states, slot.reference, slot.scanned.partner[nearest.shift], nearest.boundary)
    doubt = "" if inside else _doubt(slot, judged)
    verdict = BETWEEN if inside else UNDECIDED if doubt else EQUALS
    every, cosine, ratio = slot.scanned.candidate(slot.index, nearest.shift, nearest.transform)
    return SlotComparison(
        slot=slot.index,
        boundary=nearest.boundary if verdict == EQUALS else None,
        relative_error=worst,
        runner_up=second.boundary,
        runner_up_error=second_error,
        cosine=float(cosine[nearest.boundary].median()),
        null_error=float(np.median(judged.null)),
        verdict=verdict,
        reason=_describe_step(inside) if inside else doubt or _describe_match(slot, judged),
        nearest=nearest.boundary,
        shift=slot.shifts[nearest.shift],
        transform=nearest.transform,
        norm_ratio=float(ratio[nearest.boundary].median()),
        rows=len(errors),
        null_low=float(np.quantile(judged.null, 0.05)),
        alike=tuple(sorted({nearest.boundary, *(int(b) for b in near)})),
        between=(inside.low, inside.low + 1) if inside else None,
        share=inside.share if inside else None,
        errors=tuple(every.median(1).values.tolist()),
    )


def _nearest(slot: Slot, rank: np.ndarray, error: np.ndarray) -> Candidate:
    """Return the nearest candidate; of transforms that are alike the simplest."""
    ranked = np.where(np.isnan(rank), np.inf, rank)
    s, t, b = (int(i) for i in np.unravel_index(int(ranked.argmin()), ranked.shape))
    bound = min(MIN_MARGIN * max(float(error[s, t, b]), _EXACT), MAX_ERROR)
    if error[s, t, b] <= MAX_ERROR:
        t = next(i for i in range(len(slot.transforms)) if i == t or error[s, i, b] <= bound)
    return Candidate(b, s, slot.transforms[t])


def _null_errors(slot: Slot, nearest: Candidate, wrong: Sequence[np.ndarray]) -> np.ndarray:
    """Return errors against the nearest candidate at wrong positions; one zero if all positions hold the same state."""
    served, reference = slot.rows(nearest.shift)
    right = slot.expected(nearest, reference)
    found = []
    for order in wrong:
        other = right[torch.from_numpy(order[order < len(served)]).to(right.device)]
        found.append(relative(slot.served(served), other)[relative(other, right) > MAX_ERROR])
    errors = torch.cat(found).numpy()
    errors = errors[np.isfinite(errors)]
    return errors if len(errors) else np.zeros(1)


def _doubt(slot: Slot, judged: Judged) -> str:
    """Return why the nearest candidate is not accepted, or ""."""
    nearest, second = judged.nearest, judged.second
    if not bool(slot.states.isfinite().all()):
        return "the slot holds NaN or infinity"
    if not bool(slot.states.any()):
        return "the slot is all zeros"
    named = slot.name(nearest)
    if judged.worst > MAX_ERROR:
        return _too_far(slot, named, judged)
    if judged.second_error < judged.needed:
        return (
            f"{named} and {slot.name(second)} are too alike: the errors are {judged.worst:.2g} and "
            f"{judged.second_error:.2g} (needed: {MIN_MARGIN:g} times)"
        )
    if slot.shifts[nearest.shift] and (doubt := _doubtful_shift(slot, nearest)):
        return doubt
    if float(np.median(judged.null)) < judged.needed:
        return f"{named} matches equally well at wrong positions: all rows are alike"
    return ""


def _too_far(slot: Slot, named: str, judged: Judged) -> str:
    rows = len(judged.errors)
    if judged.rows_off <= rows // 2:
        first = int((judged.errors > MAX_ERROR).nonzero()[0])
        return f"most rows equal {named}, but {judged.rows_off} of {rows} do not (first: row {first})"
    _, cosine, ratio = slot.scanned.candidate(slot.index, 0, RAW)
    like = int(cosine.median(1).values.argmax())
    angle, length = float(cosine[like].median()), float(ratio[like].median())
    if angle > _PARALLEL and abs(length - 1) > MAX_ERROR / 2:
        return f"parallel to boundary {like} but {length:.3g} times as long, as after a norm or a scale"
    return f"no boundary is near: the nearest, {named}, differs by {judged.worst:.2g} (accepted: {MAX_ERROR})"


def _doubtful_shift(slot: Slot, nearest: Candidate) -> str:
    """Return why a shift is not clearly better than none on the rows that differ between the two, or ""."""
    none, moved = slot.scanned.partner[slot.shifts.index(0)], slot.scanned.partner[nearest.shift]
    rows = ((none >= 0) & (moved >= 0)).nonzero()[:, 0]
    here, there = slot.expected(nearest, none[rows]), slot.expected(nearest, moved[rows])
    distinct = relative(here, there) > 2 * MAX_ERROR
    shift, count = f"shift {slot.shifts[nearest.shift]:+d}", int(distinct.sum())
    if count < MIN_DISTINCT:
        return (
            f"{shift} and no shift are too alike: boundary {nearest.boundary} differs between the two in {count} of "
            f"{len(rows)} rows (needed: {MIN_DISTINCT})"
        )
    states = slot.served(rows)
    with_shift, without = relative(states, there)[distinct].median(), relative(states, here)[distinct].median()
    if float(without) < MIN_MARGIN * max(float(with_shift), _EXACT):
        return f"{shift} fits no better than none on the {count} rows that differ between the two"
    return ""


def _describe_match(slot: Slot, judged: Judged) -> str:
    off = f" in all but {judged.rows_off} of {len(judged.errors)} rows" if judged.rows_off else ""
    return (
        f"differs from {slot.name(judged.nearest)} by {judged.worst:.2g}{off}, from the next, "
        f"{slot.name(judged.second)}, by {judged.second_error:.2g}"
    )


def _describe_step(found: Between) -> str:
    times = f"{found.explained / found.other:.2g} times" if found.other else "far"
    return (
        f"between boundaries {found.low} and {found.low + 1}, at {found.share:.0%} of the step, which explains the "
        f"deviation {times} better than any other, so a part of that layer's sum is missing"
    )
