"""P by itself: nothing accepted, everything accepted, capped, impossible, in contradiction."""

from __future__ import annotations

from collections.abc import Iterator

from wiring.diagnosis.symptoms.estimates import UNCOUNTED, certainty
from wiring.diagnosis.symptoms.headline_acceptance import OWN_SHAPE, main
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Acceptance, Evidence

HARDLY, FINE = 0.1, 0.3  # drafts a round: hardly anything is accepted, and clearly something is
ROUNDING = 1e-6  # 1.1 - 1 is more than 0.1
ENOUGH = 50  # rounds from which an exact figure is no chance


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """What the records say without any other measurement."""
    for record in evidence.acceptance:
        yield from _impossible(record, evidence.setting.steps)
        yield from _contradiction(record)
    measured = main(evidence)
    if measured is None:
        return
    drafts, source = measured.drafts, measured.source
    text = f"accept length {measured.length:.3g}"
    if drafts.value <= HARDLY + ROUNDING and drafts.high < FINE:
        yield Symptom("nothing_accepted", True, certainty(drafts), "P", text, source)
    elif drafts.low >= FINE:
        yield Symptom("nothing_accepted", False, certainty(drafts), "P", text, source)
    elif drafts.counted:  # between the two: to count again tells no more
        yield Symptom("nothing_accepted", False, 0.0, "P", text, source)
    if drafts.high < min(1, measured.proposed or 1):
        yield Symptom("all_accepted", False, 1.0, "P", text, source)
    elif measured.proposed and measured.rounds and measured.rounds >= ENOUGH:
        every = drafts.value >= measured.proposed - 1e-3
        said = f"{text} at {measured.proposed} drafts a round, {measured.rounds} rounds"
        yield Symptom("all_accepted", every, 1.0, "P", said, source)
    yield from _capped(evidence)


def _impossible(record: Acceptance, steps: int | None) -> Iterator[Symptom]:
    """`steps`: draft steps of the case, for a record that does not say how many drafts a round has."""
    problem, most = record.impossible, record.proposed or record.condition.get("steps")
    if not most and steps and not OWN_SHAPE & set(record.condition):
        most = max(steps, len(record.by_position))
    if not problem and record.accept_length is not None:
        if record.accept_length < 1:
            problem = f"accept length {record.accept_length:.3g} is below 1: a round gives at least its own token"
        elif most and record.accept_length > most + 1.001:
            problem = f"accept length {record.accept_length:.3g} with {most} drafts a round"
    positions = record.by_position
    if not problem and any(b > a + 1e-6 for a, b in zip(positions, positions[1:], strict=False)):
        problem = "acceptance by position rises: these are conditional shares, not shares of all rounds"
    if problem:
        yield Symptom("impossible_figure", True, 1.0, "P", problem, record.source)
    elif record.accept_length is not None:
        yield Symptom("impossible_figure", False, 1.0, "P", "within what its definition allows", record.source)


def _contradiction(record: Acceptance) -> Iterator[Symptom]:
    """1 + the sum over all positions is the accept length; figures are printed with two digits."""
    if record.accept_length is None or not record.by_position or record.impossible:
        return
    if record.proposed and len(record.by_position) < record.proposed:
        return
    total = 1 + sum(record.by_position)
    apart = abs(total - record.accept_length)
    text = f"accept length {record.accept_length:.3g}, 1 + acceptance by position gives {total:.3g}"
    if apart > 0.01 + 0.006 * len(record.by_position) + 0.01 * total:
        if record.by_position[0] >= 0.995 and abs(total - 1 - record.accept_length) < 0.1:
            text += ": the first position is the bonus token"
        yield Symptom("counts_disagree", True, 1.0, "P", text, record.source)
    else:
        yield Symptom("counts_disagree", False, 1.0, "P", text, record.source)


def _capped(evidence: Evidence) -> Iterator[Symptom]:
    """Fewer drafts a round than were asked for, or an end after a position that was still good."""
    asked = evidence.setting.steps
    if not asked:
        return
    for record in evidence.acceptance:
        if "steps" in record.condition:
            continue
        if record.proposed and record.proposed < asked:
            text = f"{record.proposed} drafts a round, {asked} were asked for"
            yield Symptom("capped", True, 1.0, "P", text, record.source)
        reached = sum(p > 0 for p in record.by_position)
        end = 0 < reached < min(len(record.by_position), asked) and record.by_position[reached - 1] >= 0.3
        if end and (record.rounds or ENOUGH) >= ENOUGH:
            text = f"no round accepts more than {reached} drafts, and {record.by_position[reached - 1]:.2f} of them do"
            sure = 1.0 if record.rounds else UNCOUNTED
            yield Symptom("capped", True, sure, "P", text, record.source)
        elif record.proposed == asked and record.by_position and record.by_position[-1] > 0:
            yield Symptom("capped", False, 1.0, "P", f"{asked} drafts a round, as asked", record.source)
