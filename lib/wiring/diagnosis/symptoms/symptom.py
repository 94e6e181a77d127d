"""A symptom: one yes-or-no reading of the evidence, with how certain it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Letter = Literal["L", "T", "S", "C", "P", "R"]


@dataclass(frozen=True)
class Symptom:
    """One thing that the evidence decides: there (`present`), or looked for and not there.

    `name` is one of `catalogue.SYMPTOMS`. `certainty` 0..1 scales its weight: 1 where counts or a file decide it, less
    where a figure came without them, 0 where it was looked at and cannot be told. `letter` is the kind of evidence,
    `text` the reading in a sentence with its figures, `source` the record that it was read from. What is not decided
    is no symptom at all.
    """

    name: str
    present: bool
    certainty: float
    letter: Letter
    text: str
    source: str

    @property
    def state(self) -> Literal["present", "absent"]:
        """`present` as a word."""
        return "present" if self.present else "absent"


def merge(symptoms: Iterable[Symptom]) -> tuple[Symptom, ...]:
    """One symptom of each name, sorted by name, whatever the order and however often each reading came.

    A fault that shows in one place is there, so present goes before absent; then the most certain reading counts.
    """
    kept: dict[str, Symptom] = {}
    for symptom in symptoms:
        known = kept.get(symptom.name)
        if known is None or _rank(symptom) > _rank(known):
            kept[symptom.name] = symptom
    return tuple(kept[name] for name in sorted(kept))


def _rank(symptom: Symptom) -> tuple[bool, float, str, str]:
    return symptom.present, symptom.certainty, symptom.text, symptom.source
