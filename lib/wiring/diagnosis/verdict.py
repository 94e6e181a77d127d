"""The verdict: faults ranked by what counts for and against each, and the check that distinguishes the rest.

A fault's score is a sum of bits: symptoms that it causes and that are present, minus symptoms that count against it and
are present, minus symptoms that it always causes and that are absent. Bits belong to the symptom (`symptom_table`), so
one more symptom of a fault raises every fault that causes it by the same amount and never lowers the fault's own rank.

A fault is named where its score is at least `NAMED` and exceeds every other explanation of the same symptoms by
`MARGIN`. What a named fault causes is then explained, and the rest is weighed again, so several simultaneous faults are
named one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from pydantic import ConfigDict

from wiring.diagnosis.fault_catalogue import FAULT_CATALOGUE, Fault
from wiring.diagnosis.find_symptoms import normalise_evidence, symptoms_of
from wiring.diagnosis.next_checks import CHECKS, NextCheck
from wiring.diagnosis.prediction import AcceptancePrediction, predictions
from wiring.diagnosis.symptom_table import SYMPTOMS, Symptom, merge
from wiring.logs.evidence import Evidence

NAMED = 4.0  # bits: sixteen times likelier with the fault than without it
MARGIN = 1.5  # bits between a fault and the next explanation of the same symptoms: about three times likelier
RIVALS = 3.0  # bits behind the first within which a fault is still a candidate
PROVEN = 5.0  # bits of one symptom from which a fault needs no further check
TELLING = 3.0  # bits from which a symptom is worth a measurement to distinguish faults
_PREDICTED = ("accept_below_training", "accept_below_served_states")


@dataclass(frozen=True)
class WeighedSymptom:
    """A symptom and the bits that it counts for one fault."""

    symptom: Symptom
    bits: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        s = self.symptom
        return {"symptom": s.name, "bits": self.bits, "letter": s.letter, "text": s.text, "source": s.source}


@dataclass(frozen=True)
class RankedFault:
    """A fault with what counts for and against it; `score` in bits."""

    fault: int
    name: str
    score: float
    speaks_for: tuple[WeighedSymptom, ...]
    speaks_against: tuple[WeighedSymptom, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        sides = {"for": self.speaks_for, "against": self.speaks_against}
        weighed = {side: [one.as_json() for one in symptoms] for side, symptoms in sides.items()}
        return {"kind": self.fault, "name": self.name, "score": self.score, **weighed}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The part of a diagnosis that artefacts and summaries keep.

    `named`: the faults found, in the order in which they explain. `candidates`: faults that the rest does not
    distinguish. `enough_evidence`: a fault is named, or health is shown. `next_check`: what to measure next, in words.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # where an artefact is read

    named: tuple[int, ...]
    candidates: tuple[int, ...]
    enough_evidence: bool
    summary: str
    next_check: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Verdict):
    """A verdict with its reasons.

    `ranking`: every fault that has more for it than against it, best first. `residual`: symptoms that no named fault
    explains. `check`: what to measure next (None: nothing, or fix first). `healthy`: acceptance is as predicted and
    nothing is named. `predictions`: expected accept lengths with the measured one.
    """

    ranking: tuple[RankedFault, ...]
    residual: tuple[Symptom, ...]
    check: NextCheck | None
    healthy: bool
    symptoms: tuple[Symptom, ...]
    predictions: tuple[AcceptancePrediction, ...] = ()

    def shown(self, rows: int) -> tuple[RankedFault, ...]:
        """Return the first `rows` of the ranking, and the named faults after them."""
        return tuple(one for place, one in enumerate(self.ranking) if place < rows or one.fault in self.named)

    def as_json(self) -> dict[str, Any]:
        """Return one JSON object."""
        return {
            "ranking": [candidate.as_json() for candidate in self.ranking],
            "next_check": self.next_check,
            "enough_evidence": self.enough_evidence,
            "named": list(self.named),
            "candidates": list(self.candidates),
            "healthy": self.healthy,
            "summary": self.summary,
            "remedies": {str(number): FAULT_CATALOGUE[number].remedy for number in self.named},
            "reports": {str(number): list(FAULT_CATALOGUE[number].reports) for number in self.named},
            "residual": [symptom.text for symptom in self.residual],
            "expected": [prediction.as_json() for prediction in self.predictions],
        }


def diagnose(evidence: Evidence) -> Diagnosis:
    """Weigh the evidence. Raises WiringError as the readers of log lines do."""
    evidence = normalise_evidence(evidence)
    return judge(symptoms_of(evidence), predictions(evidence))


def judge(symptoms: Iterable[Symptom], predicted: tuple[AcceptancePrediction, ...] = ()) -> Diagnosis:
    """Weigh symptoms, in any order."""
    symptoms = merge(symptoms)
    named, left = _name(symptoms)
    scores = {n: score(fault, symptoms, left) for n, fault in FAULT_CATALOGUE.items() if n not in named}
    top = max(scores.values())
    candidates = tuple(
        n for n in sorted(scores, key=lambda n: (-scores[n], n)) if left and scores[n] > 0 and scores[n] > top - RIVALS
    )
    right = any(s.name in _PREDICTED and not s.present for s in symptoms)
    fine = not named and top < NAMED and right
    more = next((p for p in predicted if p.above), None) if fine else None
    healthy = fine and more is None
    if more is not None:
        check, words = (
            None,
            "measure the draft's accuracy on the text that the server decoded (`wiring accuracy --help`)",
        )
    elif healthy and not any(scores[n] >= TELLING for n in candidates):
        check, words = None, "none: nothing points to a fault"
    else:
        check, words = _next(named, candidates, scores, symptoms)
    residual = tuple(s for s in symptoms if s.name in left)
    unexplained = "; ".join(s.text for s in residual)
    cost = "".join(f" {s.text[0].upper()}{s.text[1:]}." for s in symptoms if s.name == "round_dear")
    rest = f"{cost} Not explained: {unexplained}." if candidates and residual else cost
    if healthy:
        summary = f"No fault is named: the wiring is right, and {_as_predicted(predicted)}.{rest}"
    elif more is not None:
        summary = (
            f"Nothing points to a fault, but more is accepted than the draft alone predicts: accept length "
            f"{more.measured.length:.2f}, expected {more.expected}. Either the served text is easier (does it loop?), "
            f"or the two figures are not of one draft.{rest}"
        )
    elif not symptoms:
        summary = "There is no evidence, so there is no verdict."
    elif not named:
        possible = ", ".join(f"{n} ({FAULT_CATALOGUE[n].name})" for n in candidates)
        summary = "Not enough evidence to name a fault." + (f" Possible: fault {possible}." if possible else "")
    elif named == (24,) and right:
        summary = f"The wiring is right; the rest is round cost (fault 24).{cost}"
    else:
        summary = "; ".join(f"{'fault' if i else 'Fault'} {n}, {FAULT_CATALOGUE[n].name}" for i, n in enumerate(named))
        summary += f". Not explained by it: {unexplained}." if residual else "."
    return Diagnosis(
        named=named,
        candidates=candidates,
        enough_evidence=bool(named) or healthy,
        summary=summary,
        next_check=words,
        ranking=_ranking(symptoms),
        residual=residual,
        check=check,
        healthy=healthy,
        symptoms=symptoms,
        predictions=predicted,
    )


def score(fault: Fault, symptoms: Iterable[Symptom], explain: Collection[str] | None = None) -> float:
    """Return the fault's bits; `explain` limits what counts for it to symptoms of these names."""
    bits = ((_bits(fault, symptom), symptom.name) for symptom in symptoms)
    return round(sum(b for b, name in bits if b < 0 or explain is None or name in explain), 6)


def _bits(fault: Fault, symptom: Symptom) -> float:
    row = SYMPTOMS[symptom.name]
    if symptom.present:
        sign = (symptom.name in fault.causes) - (symptom.name in fault.against)
        return sign * row.present * symptom.certainty
    return -row.absent * symptom.certainty if symptom.name in fault.always else 0.0


def _ranking(symptoms: tuple[Symptom, ...]) -> tuple[RankedFault, ...]:
    """Every fault with more for it than against it; of equals the one with the cheaper check comes first."""
    found = []
    for number, fault in FAULT_CATALOGUE.items():
        weighed = [WeighedSymptom(s, round(_bits(fault, s), 2)) for s in symptoms]
        weighed.sort(key=lambda one: (-abs(one.bits), one.symptom.name))
        sides = (tuple(one for one in weighed if sign * one.bits > 0) for sign in (1, -1))
        if (total := score(fault, symptoms)) > 0:
            found.append(RankedFault(number, fault.name, round(total, 2), *sides))
    return tuple(sorted(found, key=lambda c: (-c.score, FAULT_CATALOGUE[c.fault].check.cost, c.fault)))


def _name(symptoms: tuple[Symptom, ...]) -> tuple[tuple[int, ...], frozenset[str]]:
    """The faults that are named, and the names of the symptoms that they leave unexplained."""
    named: list[int] = []
    left = frozenset(s.name for s in symptoms if s.present)
    while True:
        others = [fault for number, fault in FAULT_CATALOGUE.items() if number not in named]
        for fault in sorted(others, key=lambda fault: (-score(fault, symptoms, left), fault.number)):
            own = left & fault.causes
            best = score(fault, symptoms, own)
            if best < NAMED:
                return tuple(named), left
            if best - max(score(rival, symptoms, own) for rival in others if rival is not fault) >= MARGIN:
                named.append(fault.number)
                left -= fault.causes
                break
        else:
            return tuple(named), left


def _next(
    named: tuple[int, ...], candidates: tuple[int, ...], scores: Mapping[int, float], symptoms: tuple[Symptom, ...]
) -> tuple[NextCheck | None, str]:
    """The cheapest check that best distinguishes the candidates; without any, confirm and fix what is named."""
    decided = {s.name for s in symptoms}
    check = None
    if candidates or not named:
        check = _distinguishing(candidates or tuple(FAULT_CATALOGUE), scores, decided)
    if check is None and candidates:
        check = _confirming(FAULT_CATALOGUE[candidates[0]], decided)
    if check is not None:
        return check, str(check)
    if not named:
        return None, "none of the known checks distinguishes these"
    fault = FAULT_CATALOGUE[named[0]]
    words = f"Fix fault {fault.number}: {fault.remedy}. Then measure again: other faults may show only then"
    proven = any(_bits(fault, s) >= PROVEN for s in symptoms)
    if proven or not (fault.check.decides - decided) & fault.causes:
        return None, words
    return fault.check, f"{words}. To be sure before: {fault.check.text[0].lower()}{str(fault.check)[1:]}"


def _confirming(fault: Fault, decided: Collection[str]) -> NextCheck | None:
    """The fault's own check while it is undecided, else the cheapest that decides something that the fault causes."""
    useful = [check for check in CHECKS.values() if (check.decides - set(decided)) & fault.causes]
    own = [check for check in useful if check is fault.check]
    return min(own or useful, key=lambda check: (check.cost, check.name), default=None)


def _distinguishing(faults: tuple[int, ...], scores: Mapping[int, float], decided: Collection[str]) -> NextCheck | None:
    """The check with most expected bits between these faults for its cost; faults weigh by their scores."""
    weights = {n: 2.0 ** scores.get(n, 0.0) for n in faults}
    total = sum(weights.values())
    best, most = None, 0.0
    for check in CHECKS.values():
        undecided = {name for name in check.decides if name not in decided and SYMPTOMS[name].present >= TELLING}
        groups: dict[frozenset[str], float] = defaultdict(float)
        for n, weight in weights.items():
            groups[frozenset(undecided & FAULT_CATALOGUE[n].causes)] += weight / total
        bits = -sum(p * log2(p) for p in groups.values()) / check.cost
        if bits > most + 1e-9:
            best, most = check, bits
    return best


def _as_predicted(predicted: tuple[AcceptancePrediction, ...]) -> str:
    """Acceptance against the prediction that it is farthest below, where nothing counts it as lower."""
    apart = [p for p in predicted if p.below is False and not p.as_predicted]
    lowest = min(apart, key=lambda p: p.residual, default=None)
    if lowest is None or lowest.residual > 0:
        return f"acceptance is {'as' if lowest is None else 'no lower than'} the draft alone predicts"
    part = lowest.measured.drafts.value / (lowest.expected.value - 1)
    return (
        f"{part:.0%} of the drafts that the draft alone predicts are accepted "
        f"(down to {lowest.margin:.0%} is attributed to the text)"
    )
