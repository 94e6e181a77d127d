"""What lint says: findings by fault kind, and what it could not look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from wiring.checkpoints.file_findings import Finding

NO_FAULT = 0  # the kind of a note that only says which rule was used, or what is not known


@dataclass(frozen=True)
class LintFinding(Finding):
    """One thing that is, or may be, wrong with how a draft is served.

    `kind` is the number of the fault in `wiring.engines.faults.FAULTS`, or `NO_FAULT`. An "error" makes the draft's
    proposals wrong or keeps the server from starting.
    """

    kind: int

    def as_json(self) -> dict[str, Any]:
        """The five fields, as JSON holds them."""
        return asdict(self)


@dataclass(frozen=True)
class NotChecked:
    """A check that could not be made, and what it lacked."""

    check: str
    why: str

    def as_json(self) -> dict[str, str]:
        """Both fields, as JSON holds them."""
        return asdict(self)
