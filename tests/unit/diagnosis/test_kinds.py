"""The declared knowledge hangs together: kinds, symptoms and checks name each other, and nothing is left over."""

from wiring.diagnosis.faults import KINDS
from wiring.diagnosis.next_checks import CHECKS
from wiring.diagnosis.symptoms import SYMPTOMS
from wiring.diagnosis.symptoms.contrasts import CONTRASTS
from wiring.diagnosis.symptoms.facts import ROWS
from wiring.engines.faults import FAULTS

CAUSED = {name for kind in KINDS.values() for name in kind.causes}


def test_every_fault_has_one_entry_with_all_that_a_reader_needs():
    assert list(KINDS) == list(FAULTS)
    for number, kind in KINDS.items():
        assert (kind.number, kind.name) == (number, FAULTS[number])
        assert all((kind.mechanism, kind.where, kind.remedy, kind.reports, kind.check.text))


def test_kinds_name_symptoms_that_exist_and_never_one_in_two_ways():
    for kind in KINDS.values():
        assert kind.causes | set(kind.excludes) <= set(SYMPTOMS), kind.number
        assert not kind.causes & set(kind.excludes), kind.number
        assert not set(kind.expects) & set(kind.may), kind.number
        assert len(set(kind.may)) == len(kind.may), kind.number


def test_every_symptom_speaks_for_some_kind():
    assert set(SYMPTOMS) - CAUSED == set()


def test_every_symptom_of_a_contrast_or_a_fact_exists():
    names = {c.symptom for c in CONTRASTS} | {c.same for c in CONTRASTS if c.same} | {row.symptom for row in ROWS}
    assert names <= set(SYMPTOMS)


def test_every_kind_can_be_told_by_a_check():
    for kind in KINDS.values():
        assert set(kind.check.decides) & kind.causes, kind.number


def test_checks_decide_symptoms_that_exist_and_leave_only_lint_of_unlinted_kinds_out():
    decided = {name for check in CHECKS.values() for name in check.decides}
    assert decided <= set(SYMPTOMS)
    assert {name for name in SYMPTOMS if not name.startswith("lint_")} - decided == set()


def test_no_two_kinds_look_the_same():
    signatures = [frozenset(n for n in kind.causes if not n.startswith("lint_")) for kind in KINDS.values()]
    assert len(set(signatures)) == len(signatures)
