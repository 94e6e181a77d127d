"""Drift of the target's numbers: slots at their own places whose errors grow with depth, one after the other.

One slot alone cannot show it: noise of any cause looks the same at one depth. So the verdict needs two depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wiring.capture.matching.match_result import DRIFT, EQUALS, RAW, UNDECIDED, SlotMatch

# A target in bfloat16 differs by 0.02 after 61 layers (median over rows, tiny target); what is called drift is more.
MIN_DRIFT = 0.03
_STEADY = 4.0  # largest row over median row: drift touches all rows
_OVER_NULL = 1.5  # nearly all wrong positions must be that much farther
_NOT_FALLING = 0.8  # errors with depth may fall by this factor where the slots' estimates scatter
_GROWS = 1.5  # the deepest over the shallowest


def drift_like(match: SlotMatch, worst: float) -> bool:
    """Whether an undecided slot could be its nearest boundary with noise on it; `worst` is its largest error."""
    median = match.errors[match.boundaries.index(match.nearest)]
    low = dict(match.null_quantiles).get(0.05, 0.0)
    # Noise of relative size e makes a state longer by the root of 1 + e^2 at most, and never shorter.
    within = 0.95 <= match.norm_ratio <= 1.05 * (1 + median**2) ** 0.5
    return (
        match.verdict == UNDECIDED
        and (match.transform, match.shift) == (RAW, 0)
        and median >= MIN_DRIFT
        and worst <= _STEADY * median
        and low >= _OVER_NULL * median
        and within
    )


def with_drift(matches: Sequence[SlotMatch]) -> tuple[tuple[SlotMatch, ...], tuple[tuple[int, float], ...]]:
    """Call drift what shows it, and give the curve (boundary, median error) over the slots at their own places."""
    own = [m for m in matches if (m.transform, m.shift) == (RAW, 0) and (m.verdict == EQUALS or _like(m))]
    points = sorted({(m.nearest, m.errors[m.boundaries.index(m.nearest)]) for m in own})
    depths = len({boundary for boundary, _ in points})
    errors = [error for _, error in points]
    grows = depths >= 2 and all(b >= _NOT_FALLING * a for a, b in zip(errors, errors[1:], strict=False))
    grows = grows and errors[-1] >= _GROWS * errors[0]
    if not grows:
        return tuple(matches), tuple(points)
    curve = ", ".join(f"{error:.2g} at {boundary}" for boundary, error in points)
    told = tuple(
        replace(
            m,
            verdict=DRIFT,
            reason=f"nearest to boundary {m.nearest}, in every row, with an error that grows with depth: {curve}",
        )
        if _like(m)
        else m
        for m in matches
    )
    return told, tuple(points)


def _like(match: SlotMatch) -> bool:
    return drift_like(match, match.relative_error)
