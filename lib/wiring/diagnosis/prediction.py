"""The accept length that the draft's own accuracy predicts, compared with the server's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from wiring.diagnosis.acceptance_symptoms import headline_acceptance, is_chain, steps_of
from wiring.diagnosis.accuracy_curves import OTHER_TEXT, Curve, best_curve
from wiring.diagnosis.estimates import OTHER_PROMPTS, SAME_PROMPTS, Accepted, Bounded, above, below, certainty, share
from wiring.diagnosis.symptom_table import Symptom, decide
from wiring.logs.evidence import Evidence

DEEPER = 0.5  # of the first draft's acceptance: the least for later drafts where accuracy by depth is unknown


@dataclass(frozen=True)
class AcceptancePrediction:
    """The accept length (bonus token included) that one curve predicts, and the server's.

    `margin`: share of the expected drafts down to which fewer are attributed to the text. `below`: the server's are
    significantly fewer than that; None where undecided. `above`: they are significantly more, in a chain; a tree has
    several drafts per position and accepts more than the curve of its first ones predicts.
    """

    by: Curve
    steps: int
    expected: Bounded
    measured: Accepted
    below: bool | None
    above: bool
    margin: float

    @property
    def as_predicted(self) -> bool:
        """Whether the two intervals overlap."""
        drafts = self.measured.drafts
        return 1 + drafts.high >= self.expected.low and 1 + drafts.low <= self.expected.high

    @property
    def residual(self) -> float:
        """Measured minus expected accept length, in tokens per round."""
        return self.measured.length - self.expected.value

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        drafts = self.measured.drafts
        return {
            "by": self.by.side,
            "from": self.by.name,
            "steps": self.steps,
            "expected": self.expected.value,
            "expected_low": self.expected.low,
            "expected_high": self.expected.high,
            "measured": self.measured.length,
            "measured_low": 1 + drafts.low,
            "measured_high": 1 + drafts.high,
            "residual": self.residual,
            "below": self.below,
            "above": self.above,
            "margin": self.margin,
            "assumed": not self.expected.counted,
        }


def predictions(evidence: Evidence) -> tuple[AcceptancePrediction, ...]:
    """Return what T and S predict, each where it was measured and the number of draft steps is known."""
    steps = steps_of(evidence, headline_acceptance(evidence))
    found = []
    for curve in (best_curve(evidence, "T"), best_curve(evidence, "S")):
        measured = headline_acceptance(evidence, _design(curve))
        if not steps or curve is None or measured is None:
            continue
        expected = curve.accept_length(steps)
        drafts = Bounded(expected.value - 1, expected.low - 1, expected.high - 1, expected.counted)
        margin = OTHER_TEXT if evidence.setting.temperature else curve.margin
        low = below(measured.drafts, drafts, margin)
        high = is_chain(evidence, steps) and above(measured.drafts, drafts, margin)
        found.append(AcceptancePrediction(curve, steps, expected, measured, low, high, margin))
    return tuple(found)


def prediction_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield the symptoms of accept length, first position and later positions against the draft's own accuracy."""
    heat = evidence.setting.temperature
    sampled = f"; sampled at temperature {heat:g}, while accuracy counts most likely tokens" if heat else ""
    for one in predictions(evidence):
        name = "accept_below_training" if one.by.side == "T" else "accept_below_served_states"
        text = f"accept length {one.measured.length:.2f}, {one.by.name} predicts {one.expected} at {one.steps} steps "
        sure = certainty(one.measured.drafts, one.expected)
        yield from decide(name, one.below, f"{text}({one.residual:+.2f}){sampled}", one.measured.source, sure)
    curve = best_curve(evidence, "T", "S")
    measured = headline_acceptance(evidence, _design(curve))
    if measured is None:
        return
    first = list(_first(measured, curve))
    yield from first
    if not any(symptom.present for symptom in first):
        yield from _later(measured, curve)
    elif len(measured.by_position) > 1:
        text = "the first draft is already low, which does not say anything about later ones"
        yield from decide("later_positions_low", False, text, measured.source, 0.0)


def _design(curve: Curve | None) -> float:
    return SAME_PROMPTS if curve is not None and curve.same_text else OTHER_PROMPTS


def _first(measured: Accepted, curve: Curve | None) -> Iterator[Symptom]:
    """The first position against the draft's own accuracy; without that, only a good first position is decided."""
    first, most = measured.first, measured.first_at_most
    if curve is None:
        if first is not None and first.low >= 0.5:
            text = f"the first draft is accepted in {first} of the rounds"
            yield from decide("first_position_low", False, text, measured.source, 0.8)
        return
    found = below(most, curve.at(0), curve.margin)
    if found or first is not None:
        shown = f"{first}" if first is not None else f"at most {most.value:.3g}"
        text = f"the first draft is accepted in {shown} of the rounds; {curve.name}: {curve.at(0)}"
        yield from decide("first_position_low", found, text, measured.source, certainty(most, curve.at(0)))


def _later(measured: Accepted, curve: Curve | None) -> Iterator[Symptom]:
    """Drafts 2, 3, ... together, among the rounds that accepted the draft before."""
    p = measured.by_position
    reached = sum(p[:-1])
    if len(p) < 2 or not reached:
        return
    rows = None if measured.rounds is None else int(measured.rounds * reached)
    conditional = share(min(1.0, sum(p[1:]) / reached), rows, design=measured.design)
    if curve is not None and len(curve.depths) > 1:
        weights = [(p[k], curve.at(k + 1)) for k in range(len(p) - 1)]
        bounds = (sum(w * getattr(e, bound) for w, e in weights) / reached for bound in ("value", "low", "high"))
        expected = Bounded(*bounds, counted=all(e.counted for _, e in weights))
        found, against = below(conditional, expected, curve.margin), f"{curve.name}: {expected}"
    else:
        expected = share(p[0], measured.rounds, design=measured.design)
        if expected.value < 0.15:  # too little to fall from
            return
        found, against = True if conditional.high < DEEPER * expected.low else None, f"the first {expected}"
        if conditional.value >= 0.8 * expected.value:
            found = False
    shares = ", ".join(f"{after / before:.2f}" for before, after in pairwise(p) if before)
    text = f"later drafts are accepted in {conditional} of the rounds that reach them ({shares}); {against}"
    yield from decide("later_positions_low", found, text, measured.source, certainty(conditional, expected))
