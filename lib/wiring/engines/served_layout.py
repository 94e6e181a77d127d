"""What a rule answers: the layout that an engine serves in each phase, and the notes that matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wiring.layers import Layout, Phase

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Note:
    """One thing worth knowing about how a layout is served.

    `kind` is the fault number of `wiring.engines.faults.FAULTS` that it belongs to; severity "note" only states
    which rule was used. `phases` are the phases that it concerns, empty for all.
    """

    kind: int
    severity: Severity
    text: str
    remedy: str = ""
    phases: tuple[Phase, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ServedLayout:
    """The boundaries that fill the draft's slots in each phase, in the order of the slots.

    None stands for a phase in which the server would fail, or in which what it feeds is no set of boundaries; a note
    then says why.
    """

    prefill: Layout | None
    verify: Layout | None
    draft_extend: Layout | None
    notes: tuple[Note, ...] = ()

    def __getitem__(self, phase: Phase) -> Layout | None:
        return getattr(self, Phase(phase).value)

    @property
    def errors(self) -> tuple[Note, ...]:
        """The notes of severity "error"."""
        return tuple(note for note in self.notes if note.severity == "error")
