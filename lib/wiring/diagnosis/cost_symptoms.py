"""Symptoms of speed: the cost of a round in plain decode steps, and speed at equal acceptance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import mean

from wiring.diagnosis.acceptance_symptoms import SPLITS, headline_acceptance, steps_of
from wiring.diagnosis.estimates import pool
from wiring.diagnosis.prediction import predictions
from wiring.diagnosis.symptom_table import Symptom, decide
from wiring.logs.evidence import AcceptanceRecord, Evidence, SpeedRecord, Value

# A draft step runs one layer and the head, under a tenth of a plain step on targets of some 30 layers; the same again
# is allowed for verifying one more token. Beyond some ten requests verify is bound by arithmetic instead of memory, and
# an expensive round is not a fault.
STEP_SHARE = 0.2
TOLERANCE = 1.15
BATCH = 8
SLOWER, FASTER = 0.97, 1.08
SAME_LENGTH = 0.03
_OTHER_WORK = SPLITS | {"steps", "topk", "draft_tokens", "head", "temperature", "template"}
_OF_PLAIN = ("batch", "temperature", "prompts")  # conditions that plain decoding shares with an arm with a draft


@dataclass(frozen=True)
class RoundCost:
    """Cost of a round in plain decode steps (`ratio`), which is also the accept length at which it breaks even."""

    ratio: float
    steps: int | None
    speedup: float | None
    how: str
    row: SpeedRecord


def round_costs(evidence: Evidence) -> Iterator[RoundCost]:
    """Yield the round cost of every arm with a draft for which it can be computed."""
    measured = headline_acceptance(evidence)
    lengths = _lengths(evidence)
    plains = sorted((row for row in evidence.speed if row.arm == "plain"), key=lambda row: row.model_dump_json())
    by_condition = {_key(row.condition): row for row in reversed(plains)}
    for row in evidence.speed:
        if row.arm == "plain":
            continue
        shared = {name: value for name, value in row.condition.items() if name in _OF_PLAIN}
        plain = by_condition.get(_key(shared)) or (plains[0] if len(plains) == 1 else None)
        steps = row.condition.get("steps", steps_of(evidence, measured))
        length = row.accept_length
        if length is None and row.arm == "draft":
            own = measured.length if measured is not None and not row.condition else None
            length = lengths.get(_key(row.condition), own)
        speedup = row.speedup
        if speedup is None and row.tok_per_s and plain is not None and plain.tok_per_s:
            speedup = row.tok_per_s / plain.tok_per_s
        if row.round_steps is not None:
            ratio, how = row.round_steps, "as given"
        elif row.round_s and plain is not None and plain.step_s:
            ratio, how = row.round_s / plain.step_s, f"{row.round_s * 1e3:.3g} ms over {plain.step_s * 1e3:.3g} ms"
        elif speedup and length:
            ratio, how = length / speedup, f"accept length {length:.2f} over speed-up {speedup:.2f}"
        else:
            continue
        yield RoundCost(ratio, None if steps is None else int(steps), speedup, how, row)


def cost_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield expensive rounds, slow decoding, and arms that are faster at the same accept length."""
    costs = tuple(round_costs(evidence))
    for cost in costs:
        yield from _expensive(cost, evidence)
    yield from _slow(evidence, {id(cost.row): cost.speedup for cost in costs})
    yield from _equal_acceptance(evidence)
    yield from _by_batch(evidence, costs)


def _key(condition: Mapping[str, Value]) -> frozenset:
    return frozenset(condition.items())


def _lengths(evidence: Evidence) -> dict[frozenset, float]:
    """Accept lengths by the condition that they were measured under."""
    records: dict[frozenset, list[AcceptanceRecord]] = defaultdict(list)
    for record in evidence.acceptance:
        records[_key(record.condition)].append(record)
    return {key: pooled.length for key, found in records.items() if (pooled := pool(found)) is not None}


def _batch(row: SpeedRecord, evidence: Evidence) -> int:
    return int(row.condition.get("batch") or evidence.setting.batch or 1)


def _expensive(cost: RoundCost, evidence: Evidence) -> Iterator[Symptom]:
    text = f"a round costs {cost.ratio:.2f} plain steps ({cost.how})"
    if cost.steps == 0:
        yield from decide("dear_without_drafts", cost.ratio > TOLERANCE, f"without drafts {text}", cost.row.source)
    elif cost.steps is not None and _batch(cost.row, evidence) <= BATCH:
        allowed = 1 + STEP_SHARE * cost.steps
        state = True if cost.ratio > TOLERANCE * allowed else False if cost.ratio <= allowed else None
        text += f"; with {cost.steps} draft steps up to {allowed:.1f} is ordinary. "
        text += f"Break-even is accept length {cost.ratio:.2f}"
        yield from decide("round_dear", state, text, cost.row.source)


def _slow(evidence: Evidence, speedups: Mapping[int, float | None]) -> Iterator[Symptom]:
    """Slower than plain decoding; and slower although half of the drafts, or as many as predicted, are accepted."""
    measured = headline_acceptance(evidence)
    fine = False
    if measured is not None:
        steps = steps_of(evidence, measured)
        fine = measured.length >= 2 or bool(steps and measured.drafts.value / steps >= 0.5)
        fine = fine and not any(p.below for p in predictions(evidence))
    for row in evidence.speed:
        speedup, bound = row.speedup if row.speedup is not None else speedups.get(id(row)), False
        if speedup is None:
            speedup, bound = row.high, True
        if row.arm != "draft" or row.condition or speedup is None:
            continue
        slower = speedup < SLOWER or (bound and speedup <= 1)
        text = f"speed-up {'at most ' if bound else ''}{speedup:.2f}"
        yield from decide("slower_than_plain", slower, text, row.source)
        if fine and measured is not None:
            state = True if slower else False if not bound and speedup > 1.1 else None
            text += f" at accept length {measured.length:.2f}"
            yield from decide("slow_though_accepted", state, text, row.source)


def _equal_acceptance(evidence: Evidence) -> Iterator[Symptom]:
    """Two arms with a draft that accept alike, differ in one condition of the server, and differ in speed."""
    arms: dict[str, list[tuple[float, float, SpeedRecord]]] = defaultdict(list)  # tok/s, accept length
    for row in evidence.speed:
        if row.arm == "draft" and row.tok_per_s and row.accept_length:
            arms[repr(row.condition)].append((row.tok_per_s, row.accept_length, row))
    means = [
        (mean(r[0] for r in rows), mean(r[1] for r in rows), rows[0][2].condition, rows[0][2].source)
        for _, rows in sorted(arms.items())
    ]
    alike = defaultdict(list)  # arms that do other work are not compared: a log has thousands of hours and batches
    for arm in sorted(means, key=lambda arm: arm[:2]):
        alike[_key({n: v for n, v in arm[2].items() if n in _OTHER_WORK})].append(arm)
    pairs = chain.from_iterable(combinations(group, 2) for group in alike.values())
    for (slow, length, a, source), (fast, other, b, _) in pairs:
        differs = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
        if len(differs) == 1 and abs(length - other) <= SAME_LENGTH * other and fast >= FASTER * slow:
            text = f"accept length {length:.2f} in both, {fast:.4g} tok/s at {differs[0]} {b.get(differs[0])}"
            text += f", {slow:.4g} at {a.get(differs[0])}"
            yield from decide("slower_at_equal_acceptance", True, text, source)


def _by_batch(evidence: Evidence, costs: tuple[RoundCost, ...]) -> Iterator[Symptom]:
    """The speed-up at the smallest batch against the one at the largest."""
    rows = [
        (_batch(cost.row, evidence), -cost.speedup, cost.row.source)
        for cost in costs
        if cost.speedup and "batch" in cost.row.condition
    ]
    (small, best, _), (large, worst, source) = (min(rows), max(rows)) if rows else ((0, 0, ""),) * 2
    if small != large:
        text = f"speed-up {-best:.2f} at batch {small}, {-worst:.2f} at batch {large}"
        yield from decide("speedup_falls_with_batch", -worst < -0.8 * best, text, source)
