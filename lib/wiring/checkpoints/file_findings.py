"""What a check found in a file, for every reader; lint's own name faults by number."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.engines.served_layout import Severity


@dataclass(frozen=True)
class Finding:
    """One thing worth saying about a file.

    `kind` groups findings of one cause; an "error" makes numbers wrong or impossible, a "warning" may, a "note" is good
    to know. `where` names file and field or tensor, `evidence` what was seen against what was expected, `remedy` the
    next thing to do.
    """

    kind: str | int
    severity: Severity
    where: str
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.evidence}"
        return f"{text}. {self.remedy}" if self.remedy else text
