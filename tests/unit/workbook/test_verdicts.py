"""What an artefact keeps of a verdict and a ladder, and when their claims hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from wiring.bench.round_cost import Estimate
from wiring.bench.speedup_breakdown import Served, ladder
from wiring.diagnosis.verdict import Verdict, diagnose
from wiring.engines.sglang import Speculation
from wiring.logs.evidence import Evidence
from wiring.workbook.profile import Expected
from wiring.workbook.verdicts import rung_rows, verdict_claims


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


def test_rungs_keep_their_setting_and_rates():
    built = ladder(
        plain_tok_per_s=90.0,
        setting=Speculation(5, 1, 6),
        price=Estimate(2.96, 0.0),
        today=Served(1.53, 46.7),
        cured=Served(1.8, 54.8),
        draft_share=1 / 61,
    )
    today, cured, *_ = rung_rows(built)
    assert (today.name, today.steps, today.tok_per_s, today.measured) == ("today", 5, 46.7, True)
    assert cured.speedup == pytest.approx(54.8 / 90.0)
