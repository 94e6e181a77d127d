"""The result type of all checks of files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from wiring.engines.served_layout import Severity


@dataclass(frozen=True)
class Finding:
    """One problem or remark about a file.

    `kind` is the cause: a name for readers, a fault number for lint. An "error" makes numbers wrong or impossible, a
    "warning" may, a "note" does not. `where` is file and field or tensor, `evidence` what was found and expected,
    `remedy` the next step.
    """

    kind: str | int
    severity: Severity
    where: str
    evidence: str
    remedy: str = ""

    def relative_to(self, folder: Path) -> Finding:
        """Return the finding with its place relative to `folder`, without paths of this machine."""
        return replace(self, where=self.where.replace(f"{folder}/", ""))

    def __str__(self) -> str:
        text = f"{self.where}: {self.evidence}"
        return f"{text}. {self.remedy}" if self.remedy else text
