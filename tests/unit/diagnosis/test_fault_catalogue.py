"""The tables of faults, symptoms and checks refer to each other, and every entry is used."""

from wiring.diagnosis.contrasts import CONTRASTS
from wiring.diagnosis.fact_symptoms import BOOLEANS, HIGH, LOW
from wiring.diagnosis.fault_catalogue import FAULT_CATALOGUE
from wiring.diagnosis.next_checks import CHECKS
from wiring.diagnosis.symptom_table import SYMPTOMS
from wiring.engines.faults import FAULTS
from wiring.logs.evidence import CONDITIONS, FACTS


def test_every_fault_has_one_complete_entry():
    assert list(FAULT_CATALOGUE) == list(FAULTS)
    for number, fault in FAULT_CATALOGUE.items():
        assert (fault.number, fault.name) == (number, FAULTS[number])
        assert all((fault.mechanism, fault.where, fault.remedy, fault.reports, fault.check.text))
        assert fault.check.decides & fault.causes, number  # its own check can confirm it


def test_symptoms_name_faults_and_checks_that_exist_and_no_fault_in_two_ways():
    for name, row in SYMPTOMS.items():
        faults = (*row.always, *row.may, *row.against)
        assert len(set(faults)) == len(faults) and set(faults) <= set(FAULTS), name
        assert row.checks or name.startswith("lint_"), name
        assert set(row.checks) <= set(CHECKS), name
        assert row.always or row.may or name == "slower_than_plain", name


def test_contrasts_and_facts_name_symptoms_conditions_and_facts_that_exist():
    names = {name for c in CONTRASTS for name in (c.symptom, c.same, c.first_rounds) if name}
    assert names | {row[0] for row in (*BOOLEANS, *HIGH, *LOW)} <= set(SYMPTOMS)
    assert {c.condition for c in CONTRASTS} <= set(CONDITIONS)
    assert {row[1] for row in (*BOOLEANS, *HIGH, *LOW)} <= set(FACTS)


def test_no_two_faults_cause_the_same_symptoms():
    causes = [frozenset(n for n in fault.causes if not n.startswith("lint_")) for fault in FAULT_CATALOGUE.values()]
    assert len(set(causes)) == len(causes)
