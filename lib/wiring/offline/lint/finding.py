"""What lint says: findings by fault kind, and what it could not look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from wiring.files.findings import Severity


@dataclass(frozen=True)
class LintFinding:
    """One thing that is, or may be, wrong with how a draft is served.

    `kind` is the number of the fault in `wiring.rules.faults.FAULTS`. An "error" makes the draft's proposals wrong or
    keeps the server from starting, a "warning" may, a "note" is good to know. `where` names file and field or tensor,
    `evidence` what was found against what was expected, `remedy` the next thing to do.
    """

    kind: int
    severity: Severity
    where: str
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.evidence}"
        return f"{text}. {self.remedy}" if self.remedy else text

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
