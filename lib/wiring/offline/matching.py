"""Which boundary does each served slot hold? Compared with every boundary of a reference on the same tokens.

The error of a slot against a boundary is the largest, over positions, of ||served - reference|| / ||reference||.

- At most `MAX_ERROR`. bfloat16 rounds by up to 2^-8 at each of the 2 L additions to the residual stream; as a random
  walk that is 0.04 at 61 layers, and 0.1 leaves room for other kernels. Another norm, scale or shift is far above.
- At least `MIN_MARGIN` times smaller than against any other boundary. If the slot differs from its boundary by e and
  that boundary from another by d, the second error is at most d + e; being 3 e or more means d >= 2 e: what the two
  engines differ by is no more than half the way to the nearest other boundary, so it cannot have been mistaken for it.
- The states of wrong positions (a seeded shuffle of the reference) must be as clearly worse, or the slot would match
  whatever the token, and nothing has been seen of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wiring.errors import WiringError

MAX_ERROR = 0.1
MIN_MARGIN = 3.0
EQUALS, UNDECIDED = "equals", "undecided"
_PARALLEL = 0.99  # cosine above which a slot that misses by length is called scaled
_EXACT = 1e-12  # errors below are taken as this, so that an exact match has a finite margin


@dataclass(frozen=True)
class SlotMatch:
    """One slot's comparison. `boundary` is set when the verdict is "equals".

    relative_error: largest over positions against the nearest boundary; runner_up, runner_up_error: the next best;
    margin = runner_up_error / relative_error; cosine: median over positions; null_error: median error against the
    nearest boundary at wrong positions; reason: why, in words.
    """

    slot: int
    boundary: int | None
    relative_error: float
    runner_up: int
    runner_up_error: float
    margin: float
    cosine: float
    null_error: float
    verdict: str
    reason: str


@torch.no_grad()
def match_slots(served: Tensor, reference: Tensor, seed: int = 0) -> tuple[SlotMatch, ...]:
    """Match served [M, n, H] with reference [L+1, M, H], row m of both at the same position of the same text.

    Raises WiringError when the shapes do not belong together, or for fewer than two positions or boundaries.
    """
    if served.dim() != 3 or reference.dim() != 3 or served.shape[::2] != reference.shape[1:]:
        raise WiringError(
            "served and reference states do not belong together",
            expected="served [M, n, H] and reference [L+1, M, H]",
            found=f"{list(served.shape)} and {list(reference.shape)}",
        )
    if served.shape[0] < 2 or reference.shape[0] < 2:
        raise WiringError(
            "matching needs at least two positions and two boundaries",
            found=f"{served.shape[0]} positions, {reference.shape[0]} boundaries",
        )
    reference = reference.float()
    shuffled = torch.from_numpy(_derangement(reference.shape[1], seed)).to(reference.device)
    return tuple(
        _match(i, served[:, i].float().to(reference.device), reference, shuffled) for i in range(served.shape[1])
    )


@torch.no_grad()
def error_curves(served: Tensor, reference: Tensor) -> Tensor:
    """The error of each slot against each boundary [n, L+1], largest over positions; shapes as in `match_slots`."""
    reference = reference.float()
    slots = served.float().to(reference.device).unbind(1)
    return torch.stack([torch.stack([_relative(states, b).max() for b in reference]) for states in slots])


def matched_layout(matches: tuple[SlotMatch, ...]) -> tuple[int, ...] | None:
    """The layout that the slots hold, or None when a slot is undecided."""
    layout = tuple(m.boundary for m in matches)
    return None if None in layout else layout  # type: ignore[return-value]


def _match(slot: int, states: Tensor, reference: Tensor, shuffled: Tensor) -> SlotMatch:
    errors = torch.stack([_relative(states, boundary) for boundary in reference])  # [L+1, M]
    worst, typical = errors.max(1).values, errors.median(1).values  # [L+1]
    nearest = int(typical.argmin())  # a few spoilt rows must not hide which boundary the others show
    others = worst.clone()
    others[nearest] = torch.inf
    runner_up = int(others.argmin())
    error, second = float(worst[nearest]), float(worst[runner_up])
    margin = max(second, _EXACT) / max(error, _EXACT)
    null_error = float(_relative(states, reference[nearest, shuffled]).median())
    cosine = float(torch.cosine_similarity(states, reference[nearest], dim=-1).median())
    doubt = _doubt(states, reference, errors, nearest, runner_up, margin, null_error)
    return SlotMatch(
        slot=slot,
        boundary=None if doubt else nearest,
        relative_error=error,
        runner_up=runner_up,
        runner_up_error=second,
        margin=margin,
        cosine=cosine,
        null_error=null_error,
        verdict=UNDECIDED if doubt else EQUALS,
        reason=doubt or f"differs from boundary {nearest} by {error:.2g}, from the next, {runner_up}, by {second:.2g}",
    )


def _doubt(
    states: Tensor, reference: Tensor, errors: Tensor, nearest: int, runner_up: int, margin: float, null_error: float
) -> str:
    """Why the nearest boundary is not accepted, or ""."""
    if not bool(states.isfinite().all()):
        return "the slot holds NaN or infinity"
    if not bool(states.any()):
        return "the slot is all zeros"
    error = float(errors[nearest].max())
    if error > MAX_ERROR:
        off = int((errors[nearest] > MAX_ERROR).sum())
        if off <= errors.shape[1] // 2:
            first = int((errors[nearest] > MAX_ERROR).nonzero()[0])
            return f"most rows equal boundary {nearest}, but {off} of {errors.shape[1]} do not (first: row {first})"
        cosines = torch.stack([torch.cosine_similarity(states, b, dim=-1).median() for b in reference])
        like = int(cosines.argmax())
        if float(cosines[like]) > _PARALLEL:
            scale = float((states.norm(dim=-1) / reference[like].norm(dim=-1).clamp_min(_EXACT)).median())
            return f"parallel to boundary {like} but {scale:.3g} times as long: a norm or a scale lies between"
        return f"no boundary is near: the nearest, {nearest}, differs by {error:.2g} (accepted: {MAX_ERROR})"
    if margin < MIN_MARGIN:
        return (
            f"boundaries {nearest} and {runner_up} are too alike to tell apart here: the errors are "
            f"{error:.2g} and {float(errors[runner_up].max()):.2g} (needed: {MIN_MARGIN:g} times)"
        )
    if null_error < MIN_MARGIN * max(error, _EXACT):
        return f"boundary {nearest} matches as well at wrong positions: all rows are alike"
    return ""


def _relative(states: Tensor, boundary: Tensor) -> Tensor:
    """||states - boundary|| / ||boundary|| per row [M]; NaN counts as infinitely far."""
    distance = (states - boundary).norm(dim=-1) / boundary.norm(dim=-1).clamp_min(_EXACT)
    return distance.nan_to_num(nan=torch.inf)


def _derangement(count: int, seed: int) -> np.ndarray:
    """A random order in which no row stays in its place."""
    order = np.random.default_rng(seed).permutation(count)
    wrong = np.empty(count, dtype=np.int64)
    wrong[order] = np.roll(order, 1)  # one cycle through all rows
    return wrong
