"""What an artefact keeps of a verdict, and when its claims hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from wiring.diagnosis.verdict import Verdict, diagnose
from wiring.logs.evidence import Evidence
from wiring.workbook.profile import Expected
from wiring.workbook.verdicts import verdict_claims


def _named(*kinds: int):
    return SimpleNamespace(named=kinds)


@pytest.mark.parametrize(
    ("as_served", "cured", "expected", "holds"),
    [
        ((21, 1), (), Expected(faults=(1, 21)), (True, True)),
        ((1,), (), Expected(faults=(1, 21)), (False, True)),
        ((), (), Expected(), (False, True)),
        ((8,), (24,), Expected(), (True, False)),
        ((8,), (24,), Expected(faults_cured=(24,)), (True, True)),
        ((), (), Expected(faults=()), (True, True)),
    ],
)
def test_claims_hold_when_the_named_kinds_are_the_expected_ones(as_served, cured, expected, holds):
    claims = verdict_claims(_named(*as_served), _named(*cured), expected)
    assert tuple(claim.holds for claim in claims) == holds


def test_an_artefact_keeps_the_verdict_without_its_reasons():
    kept = TypeAdapter(Verdict).dump_python(diagnose(Evidence()), mode="json")
    assert list(kept) == ["named", "candidates", "enough_evidence", "summary", "next_check"]
    assert (kept["named"], kept["enough_evidence"]) == ([], False) and kept["next_check"]
    with pytest.raises(ValidationError):
        TypeAdapter(Verdict).validate_python({**kept, "from_another_release": 1})
