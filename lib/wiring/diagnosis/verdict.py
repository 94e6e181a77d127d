"""The verdict: kinds of fault ranked by what speaks for and against each, and the check that tells the rest apart.

A kind's score is a sum of bits: what it causes and is there, less what it excludes and is there, less what it always
causes and is not there. Bits belong to the symptom, the same for every kind (`symptoms.catalogue`). So one more symptom
of a fault lifts every kind that causes it by as much, and the fault's own place never falls by it; and a sum does not
depend on an order.

A kind is named where its score is at least `NAMED` and leads every other explanation of the same symptoms by `MARGIN`.
What a named kind causes is then explained, and the rest is looked at again: several faults at once are named one after
the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from wiring.diagnosis.faults import KINDS, FaultKind
from wiring.diagnosis.next_checks import CHECKS, Check
from wiring.diagnosis.symptoms import SYMPTOMS, Symptom, complete, symptoms_of
from wiring.diagnosis.symptoms.prediction import Prediction, predictions
from wiring.diagnosis.symptoms.symptom import merge
from wiring.logs.evidence import Evidence

NAMED = 4.0  # bits: sixteen times likelier with the fault than without it
MARGIN = 1.5  # bits between a kind and the next explanation of the same symptoms: about three times likelier
RIVALS = 3.0  # bits behind the first within which a kind is still a candidate
PROVEN = 5.0  # bits of one symptom from which a kind needs no further check
TELLING = 3.0  # bits from which a symptom is worth a measurement that is to tell kinds apart
_PREDICTED = ("accept_below_training", "accept_below_served_states")
_MORE_NEXT = "measure the draft's accuracy on the text that the server decoded (`wiring accuracy --help`)"


@dataclass(frozen=True)
class Said:
    """A symptom and the bits that it counts for one kind."""

    symptom: Symptom
    bits: float

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        s = self.symptom
        return {"symptom": s.name, "bits": self.bits, "letter": s.letter, "text": s.text, "source": s.source}


@dataclass(frozen=True)
class Candidate:
    """A kind of fault with what speaks for and against it; `score` in bits."""

    kind: int
    name: str
    score: float
    speaks_for: tuple[Said, ...]
    speaks_against: tuple[Said, ...]


@dataclass(frozen=True)
class Verdict:
    """What the evidence amounts to.

    `ranking`: every kind for which more speaks than against, best first. `named`: the faults that are found, in the
    order in which they explain. `candidates`: kinds that what is left does not tell apart. `residual`: symptoms that
    no named fault explains. `check`: what to measure next (None: nothing, or a cure first), `next_check` the same in
    words.
    `enough_evidence`: a fault is named, or health is shown (`healthy`: acceptance is as predicted, and nothing named).
    `predictions`: expected accept lengths beside the measured one.
    """

    ranking: tuple[Candidate, ...]
    named: tuple[int, ...]
    candidates: tuple[int, ...]
    residual: tuple[Symptom, ...]
    check: Check | None
    next_check: str
    enough_evidence: bool
    healthy: bool
    summary: str
    symptoms: tuple[Symptom, ...]
    predictions: tuple[Prediction, ...] = ()

    def shown(self, rows: int) -> tuple[Candidate, ...]:
        """The first `rows` of the ranking, and each named kind behind them."""
        return tuple(one for place, one in enumerate(self.ranking) if place < rows or one.kind in self.named)

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "ranking": [
                {
                    "kind": c.kind,
                    "name": c.name,
                    "score": c.score,
                    "for": [said.as_json() for said in c.speaks_for],
                    "against": [said.as_json() for said in c.speaks_against],
                }
                for c in self.ranking
            ],
            "next_check": self.next_check,
            "enough_evidence": self.enough_evidence,
            "named": list(self.named),
            "candidates": list(self.candidates),
            "healthy": self.healthy,
            "summary": self.summary,
            "remedies": {str(kind): KINDS[kind].remedy for kind in self.named},
            "reports": {str(kind): list(KINDS[kind].reports) for kind in self.named},
            "residual": [symptom.text for symptom in self.residual],
            "expected": [prediction.as_json() for prediction in self.predictions],
        }


def diagnose(evidence: Evidence) -> Verdict:
    """Weigh the evidence. Raises WiringError as the readers of log lines do."""
    whole = complete(evidence)
    return judge(symptoms_of(whole), predictions(whole))


def judge(symptoms: Iterable[Symptom], predicted: tuple[Prediction, ...] = ()) -> Verdict:
    """Weigh symptoms, whatever their order."""
    symptoms = merge(symptoms)
    ranking = _ranking(symptoms)
    named, left = _name(symptoms)
    scores = {k: score(kind, symptoms, left) for k, kind in KINDS.items() if k not in named}
    top = max(scores.values())
    open_ = tuple(
        k for k in sorted(scores, key=lambda k: (-scores[k], k)) if left and scores[k] > 0 and scores[k] > top - RIVALS
    )
    absent = {s.name for s in symptoms if not s.present}
    more = next((p for p in predicted if p.above), None)
    fine = not named and top < NAMED and any(name in absent for name in _PREDICTED)
    healthy = fine and more is None
    check, words = (None, _MORE_NEXT) if fine and more else _next(named, open_, scores, symptoms, healthy)
    residual = tuple(s for s in symptoms if s.name in left)
    return Verdict(
        ranking=ranking,
        named=named,
        candidates=open_,
        residual=residual,
        check=check,
        next_check=words,
        enough_evidence=bool(named) or healthy,
        healthy=healthy,
        summary=_summary(named, open_, residual, symptoms, predicted, healthy, more if fine else None),
        symptoms=symptoms,
        predictions=predicted,
    )


def score(kind: FaultKind, symptoms: Iterable[Symptom], explain: Collection[str] | None = None) -> float:
    """The kind's bits; `explain` limits what speaks for it to symptoms of these names."""
    total = 0.0
    for symptom in symptoms:
        bits = _bits(kind, symptom)
        if bits < 0 or explain is None or symptom.name in explain:
            total += bits
    return round(total, 6)


def _bits(kind: FaultKind, symptom: Symptom) -> float:
    meaning = SYMPTOMS[symptom.name]
    if symptom.present:
        sign = (symptom.name in kind.causes) - (symptom.name in kind.excludes)
        return sign * meaning.present * symptom.certainty
    return -meaning.absent * symptom.certainty if symptom.name in kind.expects else 0.0


def _ranking(symptoms: tuple[Symptom, ...]) -> tuple[Candidate, ...]:
    """Every kind for which more speaks than against; of equals the one whose check is cheaper comes first."""
    found = []
    for number, kind in KINDS.items():
        said = [Said(s, round(_bits(kind, s), 2)) for s in symptoms]
        said.sort(key=lambda one: (-abs(one.bits), one.symptom.name))
        speaks_for = tuple(one for one in said if one.bits > 0)
        if score(kind, symptoms) > 0:
            against = tuple(one for one in said if one.bits < 0)
            found.append(Candidate(number, kind.name, round(score(kind, symptoms), 2), speaks_for, against))
    return tuple(sorted(found, key=lambda c: (-c.score, KINDS[c.kind].check.cost, c.kind)))


def _name(symptoms: tuple[Symptom, ...]) -> tuple[tuple[int, ...], frozenset[str]]:
    """The kinds that are named, and the symptoms that they leave unexplained."""
    named: list[int] = []
    left = frozenset(s.name for s in symptoms if s.present)
    while True:
        others = [kind for number, kind in KINDS.items() if number not in named]
        for kind in sorted(others, key=lambda kind: (-score(kind, symptoms, left), kind.number)):
            own = left & kind.causes
            best = score(kind, symptoms, own)
            if best < NAMED:
                return tuple(named), left
            if best - max(score(rival, symptoms, own) for rival in others if rival is not kind) >= MARGIN:
                named.append(kind.number)
                left -= kind.causes
                break
        else:
            return tuple(named), left


def _next(
    named: tuple[int, ...],
    open_: tuple[int, ...],
    scores: Mapping[int, float],
    symptoms: tuple[Symptom, ...],
    healthy: bool,
) -> tuple[Check | None, str]:
    """The cheapest check that tells most among what is open; after that confirm and cure what is named."""
    if healthy and not any(scores[k] >= TELLING for k in open_):
        return None, "none: nothing points to a fault"
    if named and not open_:
        return _cure(named[0], symptoms)
    decided = {s.name for s in symptoms}
    check = _telling(open_ or tuple(KINDS), scores, decided)
    if check is None and open_:
        check = _confirming(KINDS[open_[0]], decided)
    if check is None:
        return _cure(named[0], symptoms) if named else (None, "none of the known checks tells these apart")
    return check, str(check)


def _cure(kind: int, symptoms: tuple[Symptom, ...]) -> tuple[Check | None, str]:
    """What to do about a named kind; where nothing proves it alone, its own check first."""
    words = f"Cure kind {kind}: {KINDS[kind].remedy}. Then measure again: what is left shows only then"
    check = KINDS[kind].check
    proven = any(_bits(KINDS[kind], s) >= PROVEN for s in symptoms)
    if proven or not (set(check.decides) - {s.name for s in symptoms}) & KINDS[kind].causes:
        return None, words
    return check, f"{words}. To be sure before: {check.text[0].lower()}{str(check)[1:]}"


def _confirming(kind: FaultKind, decided: Collection[str]) -> Check | None:
    """The kind's own check while it is open, else the cheapest that decides something that it causes."""
    useful = [c for c in CHECKS.values() if (set(c.decides) - set(decided)) & kind.causes]
    if kind.check in useful:
        return kind.check
    return min(useful, key=lambda c: (c.cost, c.name), default=None)


def _telling(kinds: tuple[int, ...], scores: Mapping[int, float], decided: Collection[str]) -> Check | None:
    """The check with most expected bits between these kinds, for its cost. Kinds weigh by their scores."""
    weights = {k: 2.0 ** scores.get(k, 0.0) for k in kinds}
    whole = sum(weights.values())
    best, most = None, 0.0
    for check in CHECKS.values():
        undecided = {n for n in check.decides if n not in decided and SYMPTOMS[n].present >= TELLING}
        groups: dict[frozenset[str], float] = defaultdict(float)
        for k, weight in weights.items():
            groups[frozenset(undecided & KINDS[k].causes)] += weight / whole
        bits = -sum(p * log2(p) for p in groups.values()) / check.cost
        if bits > most + 1e-9:
            best, most = check, bits
    return best


def _summary(
    named: tuple[int, ...],
    open_: tuple[int, ...],
    residual: tuple[Symptom, ...],
    symptoms: tuple[Symptom, ...],
    predicted: tuple[Prediction, ...],
    healthy: bool,
    more: Prediction | None,
) -> str:
    """The verdict in one or two sentences; `more`: what is exceeded where nothing else is to be said."""
    right = any(s.name in _PREDICTED and not s.present for s in symptoms)
    left = f" Not explained: {'; '.join(s.text for s in residual)}." if open_ and residual else ""
    cost = "".join(f" {s.text[0].upper()}{s.text[1:]}." for s in symptoms if s.name == "round_dear")
    if healthy:
        return f"No fault is named: the wiring is right, and {_as_predicted(predicted)}.{cost}{left}"
    if more is not None:
        return (
            f"Nothing points to a fault, but more is accepted than the draft alone predicts: accept length "
            f"{more.measured.length:.2f}, expected {more.expected}. Either the served text is easier (does it "
            f"loop?), or the two figures are not of one draft.{cost}{left}"
        )
    if not named:
        if not symptoms:
            return "There is no evidence, and so no verdict."
        told = ", ".join(f"{k} ({KINDS[k].name})" for k in open_)
        return "Not enough evidence to name a fault." + (f" It may be kind {told}." if told else "")
    if named == (24,) and right:
        return f"The wiring is right; the rest is round cost (kind 24).{cost}"
    text = "; ".join(f"kind {k}, {KINDS[k].name}" for k in named)
    text = f"{text[0].upper()}{text[1:]}."
    if residual:
        text += f" Not explained by it: {'; '.join(s.text for s in residual)}."
    return text


def _as_predicted(predicted: tuple[Prediction, ...]) -> str:
    """How acceptance stands to the prediction that it is farthest below, where nothing calls it lower."""
    apart = [p for p in predicted if p.below is False and not p.as_predicted]
    lowest = min(apart, key=lambda p: p.residual, default=None)
    if lowest is None or lowest.residual > 0:
        than = "as" if lowest is None else "no lower than"
        return f"acceptance is {than} the draft alone predicts"
    part = lowest.measured.drafts.value / (lowest.expected.value - 1)
    return (
        f"{part:.0%} of the drafts that the draft alone predicts are accepted "
        f"(down to {lowest.margin:.0%} is put down to the text)"
    )
