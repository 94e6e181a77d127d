"""What a comparison of served slots with reference boundaries gives: plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wiring.layers import Layout

EQUALS, BETWEEN, DRIFT, UNDECIDED = "equals", "between", "drift", "undecided"
RAW, NORMED, RMS_SCALED, EMBEDDING_SCALED = "raw", "normed", "rms-scaled", "embedding-scaled"
TRANSFORMS = (RAW, NORMED, RMS_SCALED, EMBEDDING_SCALED)


@dataclass(frozen=True)
class SlotMatch:
    """One served slot's comparison.

    boundary: set when the verdict is "equals"; nearest: the best candidate's boundary in any case. shift: the served
    row at position p holds the state of position p + shift. transform: what was done to that state (`TRANSFORMS`).

    relative_error: ||served - candidate|| / ||candidate||, largest over the rows (but the share of rows that may be
    spoilt); runner_up, runner_up_error: the next best of another boundary or shift; margin = runner_up_error /
    relative_error; cosine, norm_ratio (served over candidate): medians over rows; rows: compared; rows_off: those that
    miss the accepted error.

    null_error: median error against the nearest boundary at wrong positions, and null_quantiles its distribution as
    (probability, error). alike: boundaries that cannot be told from the nearest one by the margin, it included.
    between, share: the slot lies at `share` of the way from the one boundary to the other. boundaries, errors,
    cosines: medians over rows against each reference boundary, at this shift and transform. reason: why, in words.
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
    nearest: int
    shift: int
    transform: str
    norm_ratio: float
    runner_up_shift: int
    runner_up_transform: str
    rows: int
    rows_off: int
    null_quantiles: tuple[tuple[float, float], ...]
    alike: tuple[int, ...]
    between: tuple[int, int] | None
    share: float | None
    boundaries: Layout
    errors: tuple[float, ...]
    cosines: tuple[float, ...]

    @property
    def seen_as(self) -> str:
        """Shift and transform in words: "shift +1, normed"; "" for the state as it is, at its own position."""
        return _seen_as(self.shift, self.transform)

    def row(self) -> dict[str, object]:
        """The row of a table: numbers and the verdict, without the curves."""
        left_out = ("boundaries", "errors", "cosines", "null_quantiles")
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}


@dataclass(frozen=True, eq=False)
class Grid:
    """Every candidate: arrays [n, shifts, transforms, boundaries], medians over rows; `error` is the largest one.

    nan where a shift has too few rows.
    """

    shifts: tuple[int, ...]
    transforms: tuple[str, ...]
    boundaries: Layout
    cosine: np.ndarray
    norm_ratio: np.ndarray
    median_error: np.ndarray
    error: np.ndarray


@dataclass(frozen=True, eq=False)
class Comparison:
    """All slots of one phase. drift_curve: (boundary, median error) of the slots that hold a boundary at its own place.

    The curve runs with depth; it is what a drift of the target's numbers shows.
    """

    matches: tuple[SlotMatch, ...]
    grid: Grid
    drift_curve: tuple[tuple[int, float], ...]

    @property
    def layout(self) -> Layout | None:
        """The layout that the slots hold, or None when a slot is not decided."""
        return matched_layout(self.matches)


def matched_layout(matches: Sequence[SlotMatch]) -> Layout | None:
    """The layout that the slots hold, or None when a slot is undecided."""
    layout = tuple(m.boundary for m in matches)
    return None if None in layout else layout  # type: ignore[return-value]


def name_candidate(boundary: int, shift: int = 0, transform: str = RAW) -> str:
    """A candidate in words: "boundary 3", "boundary 3 (shift +1, normed)"."""
    seen = _seen_as(shift, transform)
    return f"boundary {boundary}" + (f" ({seen})" if seen else "")


def _seen_as(shift: int, transform: str) -> str:
    return ", ".join(([f"shift {shift:+d}"] if shift else []) + ([transform] if transform != RAW else []))
