"""From evidence to symptoms: pure readings, one file for each kind of evidence, no fault known here."""

from __future__ import annotations

from wiring.diagnosis.evidence import Evidence
from wiring.diagnosis.symptoms import (
    acceptance,
    accuracy,
    combined,
    contrasts,
    cost,
    facts,
    lint,
    prediction,
    slots,
    unused,
)
from wiring.diagnosis.symptoms.catalogue import SYMPTOMS, Meaning
from wiring.diagnosis.symptoms.completion import complete
from wiring.diagnosis.symptoms.symptom import Letter, Symptom, merge

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
