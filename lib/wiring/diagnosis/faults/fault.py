"""What a kind of fault is: declared, not computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from wiring.diagnosis.next_checks import CHECKS, Check
from wiring.diagnosis.symptoms.catalogue import lint_error, lint_warning
from wiring.engines.faults import FAULTS


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault and its signature over the six kinds of evidence.

    `expects`: symptoms that it always causes where they can be measured, so that their absence speaks against it.
    `may`: symptoms that it causes in some forms or strengths. `excludes`: symptoms that speak against it. `check` names
    the cheapest check that confirms it (`next_checks.CHECKS`), `reports` are public threads, owner/repository#number.
    `slows`: it can make the draft slower than plain decoding by itself. `causes`: all that it can cause.
    """

    number: int
    mechanism: str
    where: str
    expects: tuple[str, ...]
    may: tuple[str, ...]
    check_name: str
    remedy: str
    reports: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    slows: bool = True
    causes: frozenset[str] = field(init=False)

    def __post_init__(self):
        of_all = {lint_error(self.number), lint_warning(self.number)} | ({"slower_than_plain"} if self.slows else set())
        object.__setattr__(self, "causes", frozenset({*self.expects, *self.may, *of_all}))

    @property
    def name(self) -> str:
        """The kind's name in the one numbering of faults."""
        return FAULTS[self.number]

    @property
    def check(self) -> Check:
        """The cheapest check that confirms it."""
        return CHECKS[self.check_name]
