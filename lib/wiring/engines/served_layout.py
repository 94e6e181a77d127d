"""The result of an engine's rule: the layout in each phase, and notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wiring.layers import Layout, Phase

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Note:
    """A remark about how a layout is served.

    `fault` is its number in `wiring.engines.faults.FAULTS`, 0 for none; severity "note" only states which rule was
    used. `phases` are the phases that it concerns, empty for all.
    """

    fault: int
    severity: Severity
    text: str
    remedy: str = ""
    phases: tuple[Phase, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ServedLayout:
    """The boundaries in the draft's slots in each phase, slot by slot.

    None is a phase in which the server would fail, or in which a slot holds no boundary; a note gives the reason.
    """

    prefill: Layout | None
    verify: Layout | None
    draft_extend: Layout | None
    notes: tuple[Note, ...] = ()

    def __getitem__(self, phase: Phase) -> Layout | None:
        return getattr(self, Phase(phase).value)

    @classmethod
    def in_all_phases(cls, layout: Layout | None, *notes: Note) -> ServedLayout:
        """Return the same layout for every phase."""
        return cls(layout, layout, layout, notes)

    @property
    def errors(self) -> tuple[Note, ...]:
        """The notes of severity "error"."""
        return tuple(note for note in self.notes if note.severity == "error")


def sorted_states(asked: Layout, num_layers: int, wanted: int, first: int = 1, last: int | None = None) -> ServedLayout:
    """Return the layout of an engine that captures `asked` within first..last in ascending order, in all phases.

    None with an error note if other than `wanted` different states are captured.
    """
    last = num_layers if last is None else last
    captured = tuple(sorted({b for b in asked if first <= b <= last}))
    if len(captured) != wanted:
        text = f"{len(captured)} states are captured ({list(captured)}), fc takes {wanted}: the server stops"
        remedy = f"Name as many different layers as fc has slots, within boundaries {first} to {last}"
        return ServedLayout.in_all_phases(None, Note(3, "error", text, remedy))
    return ServedLayout.in_all_phases(captured, *([ASCENDING] if captured != asked else []))


ASCENDING = Note(
    3,
    "warning",
    "states are captured in ascending order whatever the order of the ids",
    "Compare with the order of the slots in training",
)
