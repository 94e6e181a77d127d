"""Expected against measured: the accept length that T and S predict, beside the server's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wiring.diagnosis.symptoms.accuracy_symptoms import OTHER_TEXT, SAME_TEXT
from wiring.diagnosis.symptoms.estimates import (
    OTHER_PROMPTS,
    SAME_PROMPTS,
    Accepted,
    Estimate,
    above,
    below,
    certainty,
    share,
)
from wiring.diagnosis.symptoms.headline_acceptance import is_chain, main, steps_of
from wiring.diagnosis.symptoms.reference_accuracy import Curve, best
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Evidence

DEEPER = 0.5  # of P0: the least that a next draft is accepted where no accuracy by depth is known


@dataclass(frozen=True)
class Prediction:
    """The accept length (bonus included) that one curve predicts, and what the server has.

    `margin`: the share of the expected drafts down to which fewer are put down to the text. `below`: the server's are
    fewer than margin and intervals explain; None where they leave it open. `above`: they are as clearly more, in a
    chain; a tree has several drafts for a place, so that it accepts more than the curve of its first ones says.
    """

    by: Curve
    steps: int
    expected: Estimate
    measured: Accepted
    below: bool | None
    above: bool
    margin: float

    @property
    def as_predicted(self) -> bool:
        """Whether the two intervals meet."""
        drafts = self.measured.drafts
        return 1 + drafts.high >= self.expected.low and 1 + drafts.low <= self.expected.high

    @property
    def residual(self) -> float:
        """Measured less expected accept length, in tokens a round."""
        return self.measured.length - self.expected.value

    def as_json(self) -> dict[str, object]:
        """Plain numbers."""
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


def predictions(evidence: Evidence) -> tuple[Prediction, ...]:
    """What T and what S predict, each where there is one and the number of draft steps is known."""
    steps = steps_of(evidence, main(evidence))
    if not steps:
        return ()
    found = []
    for curve in (best(evidence, "T"), best(evidence, "S")):
        measured = main(evidence, _design(curve))
        if curve is None or measured is None:
            continue
        expected = curve.accept_length(steps)
        drafts = Estimate(expected.value - 1, expected.low - 1, expected.high - 1, expected.counted)
        margin = OTHER_TEXT if evidence.setting.temperature else _margin(curve)
        low = below(measured.drafts, drafts, margin)
        high = is_chain(evidence, steps) and above(measured.drafts, drafts, margin)
        found.append(Prediction(curve, steps, expected, measured, low, high, margin))
    return tuple(found)


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Accept length, first position and later positions against the draft alone."""
    heat = evidence.setting.temperature
    sampled = f"; sampled at temperature {heat:g}, while accuracy counts most likely tokens" if heat else ""
    for prediction in predictions(evidence):
        if prediction.below is None:
            continue
        name = "accept_below_training" if prediction.by.side == "T" else "accept_below_served_states"
        text = (
            f"accept length {prediction.measured.length:.2f}, {prediction.by.name} predicts {prediction.expected} "
            f"at {prediction.steps} steps ({prediction.residual:+.2f}){sampled}"
        )
        sure = certainty(prediction.measured.drafts, prediction.expected)
        yield Symptom(name, prediction.below, sure, "P", text, prediction.measured.source)
    curve = best(evidence, "T") or best(evidence, "S")
    measured = main(evidence, _design(curve))
    if measured is None:
        return
    first = _first(measured, curve)
    if first is not None:
        yield first
    if first is None or not first.present:
        yield from _later(measured, curve)
    elif len(measured.by_position) > 1:
        text = "the first draft is low already, which tells nothing of the later ones"
        yield Symptom("later_positions_low", False, 0.0, "P", text, measured.source)


def _margin(curve: Curve) -> float:
    return SAME_TEXT if curve.same_text and not curve.claimed else OTHER_TEXT


def _design(curve: Curve | None) -> float:
    return SAME_PROMPTS if curve is not None and curve.same_text else OTHER_PROMPTS


def _first(measured: Accepted, curve: Curve | None) -> Symptom | None:
    """P0 against the draft alone; without one, a good P0 is all that can be told."""
    first = measured.first
    if curve is None:
        if first is None or first.low < 0.5:
            return None
        return Symptom(
            "first_position_low", False, 0.8, "P", f"the first draft is accepted in {first}", measured.source
        )
    found = below(measured.first_at_most, curve.at(0), _margin(curve))
    if found is None or (not found and first is None):
        return None
    told = f"{first}" if first is not None else f"at most {measured.first_at_most.value:.3g}"
    text = f"the first draft is accepted in {told} of the rounds; {curve.name}: {curve.at(0)}"
    sure = certainty(measured.first_at_most, curve.at(0))
    return Symptom("first_position_low", found, sure, "P", text, measured.source)


def _later(measured: Accepted, curve: Curve | None) -> Iterator[Symptom]:
    """Drafts 2, 3, ... among the rounds that accepted the one before, all together."""
    p = measured.by_position
    reached = sum(p[:-1])
    if len(p) < 2 or not reached:
        return
    told = ", ".join(f"{b / a:.2f}" for a, b in zip(p, p[1:], strict=False) if a)
    rows = None if measured.rounds is None else int(measured.rounds * reached)
    conditional = share(min(1.0, sum(p[1:]) / reached), rows, design=measured.design)
    known = curve is not None and len(curve.depths) > 1
    if known:
        weights = [(p[k], curve.at(k + 1)) for k in range(len(p) - 1)]
        expected = Estimate(
            *(sum(w * getattr(e, bound) for w, e in weights) / reached for bound in ("value", "low", "high")),
            counted=all(e.counted for _, e in weights),
        )
        found, against = below(conditional, expected, _margin(curve)), f"{curve.name}: {expected}"
    else:
        base = measured.first or share(p[0], measured.rounds, design=measured.design)
        if base.value < 0.15:  # little to fall from
            return
        expected, against = base, f"the first {base}"
        found = True if conditional.high < DEEPER * base.low else None
        if conditional.value >= 0.8 * base.value:
            found = False
    if found is not None:
        text = f"later drafts are accepted in {conditional} of the rounds that got there ({told}); {against}"
        sure = certainty(conditional, expected)
        yield Symptom("later_positions_low", found, sure, "P", text, measured.source)
