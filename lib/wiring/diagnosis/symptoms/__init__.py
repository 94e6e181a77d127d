"""From evidence to symptoms: pure readings, one file for each kind of evidence, no fault known here."""

from __future__ import annotations

from wiring.diagnosis.symptoms import acceptance_symptoms as acceptance
from wiring.diagnosis.symptoms import accuracy_symptoms as accuracy
from wiring.diagnosis.symptoms import combined, contrasts, facts, prediction
from wiring.diagnosis.symptoms import cost_symptoms as cost
from wiring.diagnosis.symptoms import excluded_conditions as unused
from wiring.diagnosis.symptoms import lint_symptoms as lint
from wiring.diagnosis.symptoms import slot_symptoms as slots
from wiring.diagnosis.symptoms.catalogue import SYMPTOMS, Meaning
from wiring.diagnosis.symptoms.normalise import complete
from wiring.diagnosis.symptoms.symptom import Letter, Symptom, merge
from wiring.logs.evidence import Evidence

__all__ = ["SYMPTOMS", "Letter", "Meaning", "Symptom", "complete", "symptoms_of"]

_READERS = (lint, facts, accuracy, slots, acceptance, prediction, contrasts, cost, unused)


def symptoms_of(evidence: Evidence) -> tuple[Symptom, ...]:
    """Every symptom that the evidence decides, one of each name, sorted by name.

    Neither the order of the records nor a record that comes twice changes anything. Raises WiringError as the
    readers of log lines do.
    """
    whole = complete(evidence)
    found = merge(symptom for reader in _READERS for symptom in reader.symptoms(whole))
    return merge((*found, *combined.symptoms(found)))
