"""Symptoms of acceptance alone, and the choice of the record that a case is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from wiring.diagnosis.estimates import OTHER_PROMPTS, UNCOUNTED, Accepted, certainty, pool
from wiring.diagnosis.symptom_table import Symptom, decide
from wiring.logs.evidence import AcceptanceRecord, Evidence

# Conditions that split one measurement; any other condition makes an arm of its own.
SPLITS = frozenset(
    {"cached", "prompt_tokens", "hours", "after_chunk", "first_round", "domain", "images", "prompts", "batch"}
)
OWN_SHAPE = frozenset({"steps", "topk", "draft_tokens", "engine", "head"})  # an arm with its own shape of speculation
_CHAINS = ("vllm", "llama.cpp")  # engines that draft chains with EAGLE
HARDLY, FINE = 0.1, 0.3  # drafts per round: hardly anything is accepted, and clearly something is
ROUNDING = 1e-6  # 1.1 - 1 is more than 0.1
ENOUGH = 50  # rounds from which an exact figure is not chance
MOST_ROUNDS = 0.995  # share of rounds that marks a position as the bonus token


def headline_acceptance(evidence: Evidence, design: float = OTHER_PROMPTS) -> Accepted | None:
    """Return the acceptance that the case is about; None without a figure.

    It is acceptance without a condition where given, else the splits pooled, else the worst arm. Raw prompts and
    sampled tokens are other text and are taken only where there is nothing else.
    """
    plain = [record for record in evidence.acceptance if not record.condition]
    if plain and (pooled := pool(plain, design)) is not None:
        return pooled
    arms: dict[str, list[AcceptanceRecord]] = defaultdict(list)
    for record in evidence.acceptance:
        arm = {name: value for name, value in record.condition.items() if name not in SPLITS}
        arms[repr(sorted(arm.items()))].append(record)
    found = []
    for _, records in sorted(arms.items()):
        condition, pooled = records[0].condition, pool(records, design)
        if pooled is not None:
            other_text = condition.get("template") is False, float(condition.get("temperature", 0.0))
            found.append((*other_text, pooled.drafts.value, pooled))
    return min(found, key=lambda one: one[:-1])[-1] if found else None


def steps_of(evidence: Evidence, accepted: Accepted | None = None) -> int | None:
    """Return the drafts per round along one path: measured, else resolved, else as in the setting."""
    if accepted is not None and accepted.proposed:
        return accepted.proposed
    for row in sorted(evidence.arguments, key=lambda a: a.name):
        if "steps" in row.name and isinstance(row.resolved, int) and not isinstance(row.resolved, bool):
            return row.resolved
    if evidence.setting.steps:
        return evidence.setting.steps
    return len(accepted.by_position) if accepted is not None and len(accepted.by_position) > 1 else None


def is_chain(evidence: Evidence, steps: int) -> bool:
    """Return whether drafts are known to be a chain: by top-k, by draft tokens, or by an engine without trees."""
    setting = evidence.setting
    if setting.topk is not None:
        return setting.topk == 1
    return setting.draft_tokens == steps + 1 or setting.engine in _CHAINS


def acceptance_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield what acceptance decides without any other measurement."""
    for record in evidence.acceptance:
        yield from _impossible(record, evidence.setting.steps)
        yield from _contradiction(record)
    measured = headline_acceptance(evidence)
    if measured is None:
        return
    for record in evidence.acceptance:
        yield from _capped(record, evidence.setting.steps)
    drafts, text = measured.drafts, f"accept length {measured.length:.3g}"
    nothing, sure = None, certainty(drafts)
    if drafts.value <= HARDLY + ROUNDING and drafts.high < FINE:
        nothing = True
    elif drafts.low >= FINE:
        nothing = False
    elif drafts.counted:  # between the two: counting again would not decide it
        nothing, sure = False, 0.0
    yield from decide("nothing_accepted", nothing, text, measured.source, sure)
    proposed, rounds = measured.proposed, measured.rounds
    if drafts.high < min(1, proposed or 1):
        yield from decide("all_accepted", False, text, measured.source)
    elif proposed and rounds and rounds >= ENOUGH:
        text += f" at {proposed} drafts a round, {rounds} rounds"
        yield from decide("all_accepted", drafts.value >= proposed - 1e-3, text, measured.source)


def _impossible(record: AcceptanceRecord, steps: int | None) -> Iterator[Symptom]:
    """`steps`: draft steps of the case, for a record that does not say how many drafts a round has."""
    length, positions = record.accept_length, record.by_position
    own_steps = record.condition.get("steps")
    most = record.proposed or (own_steps if isinstance(own_steps, int | float) else None)
    if not most and steps and not OWN_SHAPE & set(record.condition):
        most = max(steps, len(positions))
    problem = record.impossible
    if not problem and length is not None and length < 1:
        problem = f"accept length {length:.3g} is below 1, but every round gives at least its own token"
    if not problem and length is not None and most and length > most + 1.001:
        problem = f"accept length {length:.3g} with {most} drafts a round"
    if not problem and any(after > before + 1e-6 for before, after in pairwise(positions)):
        problem = "acceptance by position rises: these are conditional shares, not shares of all rounds"
    if problem or length is not None:
        text = problem or "within what its definition allows"
        yield from decide("impossible_figure", bool(problem), text, record.source)


def _contradiction(record: AcceptanceRecord) -> Iterator[Symptom]:
    """The accept length is 1 + the sum over all positions; figures are printed with two digits."""
    length, positions = record.accept_length, record.by_position
    if length is None or not positions or record.impossible or len(positions) < (record.proposed or 0):
        return
    total = 1 + sum(positions)
    differ = abs(total - length) > 0.01 + 0.006 * len(positions) + 0.01 * total
    text = f"accept length {length:.3g}, 1 + acceptance by position gives {total:.3g}"
    if differ and positions[0] >= MOST_ROUNDS and abs(total - 1 - length) < 0.1:
        text += ": the first position is the bonus token"
    yield from decide("counts_disagree", differ, text, record.source)


def _capped(record: AcceptanceRecord, asked: int | None) -> Iterator[Symptom]:
    """Fewer drafts per round than requested, or an end after a position that was still good."""
    if not asked or "steps" in record.condition:
        return
    positions = record.by_position
    if record.proposed and record.proposed < asked:
        text = f"{record.proposed} drafts a round, {asked} were requested"
        yield from decide("capped", True, text, record.source)
    reached = sum(p > 0 for p in positions)
    end = 0 < reached < min(len(positions), asked) and positions[reached - 1] >= 0.3
    if end and (record.rounds or ENOUGH) >= ENOUGH:
        text = f"no round accepts more than {reached} drafts, and {positions[reached - 1]:.2f} of them accept {reached}"
        yield from decide("capped", True, text, record.source, 1.0 if record.rounds else UNCOUNTED)
    elif record.proposed == asked and positions and positions[-1] > 0:
        yield from decide("capped", False, f"{asked} drafts a round, as requested", record.source)
