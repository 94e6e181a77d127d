"""Results of comparing served slots with the boundaries of a reference: plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from wiring.layers import Layout

EQUALS, BETWEEN, DRIFT, UNDECIDED = "equals", "between", "drift", "undecided"
RAW, NORMED, RMS_SCALED, EMBEDDING_SCALED = "raw", "normed", "rms-scaled", "embedding-scaled"
TRANSFORMS = (RAW, NORMED, RMS_SCALED, EMBEDDING_SCALED)


@dataclass(frozen=True)
class SlotMatch:
    """The boundary that one served slot holds, as artefacts store it.

    boundary: set if the verdict is "equals". shift: the served row at position p holds the state of position p + shift.
    transform: the operation applied to that state, of `TRANSFORMS`.

    relative_error: ||served - candidate|| / ||candidate||, the largest over rows, without the share of rows that may be
    corrupted; runner_up, runner_up_error: the next best boundary or shift; cosine, norm_ratio (served over candidate):
    medians over rows; null_error: median error against the nearest boundary at wrong positions. reason: a sentence.
    """

    slot: int
    boundary: int | None
    relative_error: float
    runner_up: int | None
    runner_up_error: float
    cosine: float
    null_error: float
    verdict: str
    reason: str = ""
    shift: int = 0
    transform: str = RAW
    norm_ratio: float | None = None

    def summary(self) -> dict[str, Any]:
        """Return the fields that artefacts store."""
        return {field.name: getattr(self, field.name) for field in fields(SlotMatch)}


@dataclass(frozen=True, kw_only=True)
class SlotComparison(SlotMatch):
    """A slot's match with the statistics behind it.

    nearest: the best candidate's boundary, whatever the verdict; rows: number of compared rows; null_low: the error
    that 95 % of wrong positions exceed; alike: the boundaries that the margin does not separate from the nearest;
    between, share: the state is boundary between[0] plus `share` of the step to between[1]; errors: median errors
    against each boundary, at this shift and transform.
    """

    norm_ratio: float = 1.0
    nearest: int
    rows: int
    null_low: float
    alike: tuple[int, ...]
    between: tuple[int, int] | None
    share: float | None
    errors: tuple[float, ...]

    @property
    def boundaries(self) -> Layout:
        """The compared boundaries, one for each of `errors`."""
        return tuple(range(len(self.errors)))

    @property
    def seen_as(self) -> str:
        """Shift and transform ("shift +1, normed"); "" for the unchanged state at its own position."""
        return describe_change(self.shift, self.transform)

    def row(self) -> dict[str, Any]:
        """Return the fields without the curve of errors, as the row of a table."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "errors"}


@dataclass(frozen=True)
class PhaseComparison:
    """All slots of one phase."""

    matches: tuple[SlotComparison, ...]

    @property
    def layout(self) -> Layout | None:
        """The layout that the slots hold; None if a slot is undecided."""
        return matched_layout(self.matches)


def matched_layout(matches: Sequence[SlotMatch]) -> Layout | None:
    """Return the layout that the slots hold; None if a slot is undecided."""
    layout = tuple(match.boundary for match in matches if match.boundary is not None)
    return layout if len(layout) == len(matches) else None


def describe_change(shift: int, transform: str) -> str:
    """Return shift and transform as text; "" for neither."""
    return ", ".join(([f"shift {shift:+d}"] if shift else []) + ([transform] if transform != RAW else []))
