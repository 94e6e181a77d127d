"""Claims about the two verdicts of a case, as served and fixed."""

from __future__ import annotations

from wiring.diagnosis.verdict import Verdict
from wiring.workbook.check import Claim, equals
from wiring.workbook.profile import Expected


def verdict_claims(as_served: Verdict, cured: Verdict, expected: Expected) -> tuple[Claim, Claim]:
    """Return the claims that the faults are named as served and gone after the fix; order does not matter."""
    text, named = "kinds of fault named in the draft as served", tuple(sorted(as_served.named))
    if expected.faults is None:
        found = Claim(claim=text, expected="one or more", actual=str(named or "none"), holds=bool(named))
    else:
        found = equals(text, expected=tuple(sorted(expected.faults)), actual=named)
    gone = equals(
        "control: kinds named in the cured draft",
        expected=tuple(sorted(expected.faults_cured)),
        actual=tuple(sorted(cured.named)),
    )
    return found, gone
