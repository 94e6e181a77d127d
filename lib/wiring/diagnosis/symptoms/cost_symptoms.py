"""R: what a round costs in plain steps, and speed at equal acceptance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import mean

from wiring.diagnosis.symptoms.estimates import pool
from wiring.diagnosis.symptoms.headline_acceptance import SPLITS, main, steps_of
from wiring.diagnosis.symptoms.prediction import predictions
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Acceptance, Evidence, Speed, Value

# A draft step runs one layer and the head, under a tenth of a plain step on targets of some 30 layers; as much again
# is allowed for what verifying one token more costs. Beyond some ten requests verify is bound by arithmetic, not by
# memory, and a dear round is no fault.
STEP_SHARE = 0.2
TOLERANCE = 1.15
BATCH = 8
SLOWER = 0.97
SAME_LENGTH = 0.03
FASTER = 1.08
_NOT_ALIKE = SPLITS | {"steps", "topk", "draft_tokens", "head", "temperature", "template"}  # these change the work

Speedups = Mapping[int, float | None]  # by the id of the row


@dataclass(frozen=True)
class RoundCost:
    """The price of a round in plain decode steps (`ratio`, also the accept length at which it breaks even)."""

    ratio: float
    steps: int | None
    speedup: float | None
    accept_length: float | None
    how: str
    row: Speed

    @property
    def allowed(self) -> float | None:
        """What `steps` draft steps account for, in plain steps."""
        return None if self.steps is None else 1 + STEP_SHARE * self.steps


def round_costs(evidence: Evidence) -> tuple[RoundCost, ...]:
    """The round cost of every arm with a draft for which it can be told."""
    measured = main(evidence)
    lengths, (plains, only) = _lengths(evidence), _plains(evidence)
    found = []
    for row in evidence.speed:
        if row.arm == "plain":
            continue
        steps = row.condition.get("steps")
        if steps is None:
            steps = steps_of(evidence, measured)
        length = row.accept_length
        if length is None and row.arm == "draft":
            own = measured.length if measured is not None and not row.condition else None
            length = lengths.get(_key(row.condition), own)
        plain = _plain(plains, row) or only
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
        found.append(RoundCost(ratio, int(steps) if steps is not None else None, speedup, length, how, row))
    return tuple(found)


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Dear rounds, slow rounds with good acceptance, and arms that are faster at the same accept length."""
    costs = round_costs(evidence)
    for cost in costs:
        yield from _dear(cost, evidence)
    speedups = {id(cost.row): cost.speedup for cost in costs}
    yield from _slower(evidence, speedups)
    yield from _slow(evidence, speedups)
    yield from _equal_acceptance(evidence)
    yield from _by_batch(evidence)


def _key(condition: Mapping[str, Value]) -> frozenset:
    """Equal for equal conditions: a log has thousands of records, which must not be held against each other."""
    return frozenset(condition.items())


def _plains(evidence: Evidence) -> tuple[dict[frozenset, Speed], Speed | None]:
    """The plain arms by their condition; and the only one."""
    plain = sorted((r for r in evidence.speed if r.arm == "plain"), key=lambda r: r.model_dump_json())
    only = plain[0] if len(plain) == 1 else None
    return {_key(row.condition): row for row in reversed(plain)}, only  # of one condition the first


def _plain(plains: Mapping[frozenset, Speed], row: Speed) -> Speed | None:
    """The plain arm of the same condition, but for what only a draft has."""
    shared = {name: value for name, value in row.condition.items() if name in ("batch", "temperature", "prompts")}
    return plains.get(_key(shared))


def _lengths(evidence: Evidence) -> dict[frozenset, float]:
    """Accept lengths by the condition that they were measured under."""
    records: dict[frozenset, list[Acceptance]] = defaultdict(list)
    for record in evidence.acceptance:
        records[_key(record.condition)].append(record)
    return {key: pooled.length for key, found in records.items() if (pooled := pool(found)) is not None}


def _batch(row: Speed, evidence: Evidence) -> int:
    return int(row.condition.get("batch") or evidence.setting.batch or 1)


def _dear(cost: RoundCost, evidence: Evidence) -> Iterator[Symptom]:
    text = f"a round costs {cost.ratio:.2f} plain steps ({cost.how})"
    if cost.steps == 0:
        yield Symptom(
            "dear_without_drafts", cost.ratio > TOLERANCE, 1.0, "R", f"without drafts {text}", cost.row.source
        )
        return
    if cost.allowed is None or _batch(cost.row, evidence) > BATCH:
        return
    text += f"; with {cost.steps} draft steps up to {cost.allowed:.1f} is ordinary. "
    text += f"Break-even is accept length {cost.ratio:.2f}"
    if cost.ratio > TOLERANCE * cost.allowed:
        yield Symptom("round_dear", True, 1.0, "R", text, cost.row.source)
    elif cost.ratio <= cost.allowed:
        yield Symptom("round_dear", False, 1.0, "R", text, cost.row.source)


def _slower(evidence: Evidence, speedups: Speedups) -> Iterator[Symptom]:
    """The complaint itself: no kind is told by it, but something is to be found."""
    for row in evidence.speed:
        told = _speedup(row, speedups)
        if row.arm == "draft" and not row.condition and told is not None:
            slower, text = told[0] < SLOWER or (told[1] and told[0] <= 1), f"speed-up {_at_most(told)}"
            yield Symptom("slower_than_plain", slower, 1.0, "R", text, row.source)


def _speedup(row: Speed, speedups: Speedups) -> tuple[float, bool] | None:
    """The speed-up over plain decoding, or its upper bound (true)."""
    told = row.speedup if row.speedup is not None else speedups.get(id(row))
    if told is not None:
        return told, False
    return (row.high, True) if row.high is not None else None


def _at_most(told: tuple[float, bool]) -> str:
    return f"{'at most ' if told[1] else ''}{told[0]:.2f}"


def _slow(evidence: Evidence, speedups: Speedups) -> Iterator[Symptom]:
    """Slower than plain although drafts are accepted: half of them, or as many as the draft alone predicts."""
    measured = main(evidence)
    if measured is None:
        return
    steps = steps_of(evidence, measured)
    fine = measured.length >= 2 or (steps and measured.drafts.value / steps >= 0.5)
    if any(p.below for p in predictions(evidence)) or not fine:
        return
    for row in evidence.speed:
        if row.arm != "draft" or row.condition:
            continue
        told = _speedup(row, speedups)
        if told is None:
            continue
        text = f"speed-up {_at_most(told)} at accept length {measured.length:.2f}"
        if told[0] < SLOWER or (told[1] and told[0] <= 1):
            yield Symptom("slow_though_accepted", True, 1.0, "R", text, row.source)
        elif not told[1] and told[0] > 1.1:
            yield Symptom("slow_though_accepted", False, 1.0, "R", text, row.source)


def _equal_acceptance(evidence: Evidence) -> Iterator[Symptom]:
    """Two arms with a draft that accept alike, differ in one condition of the server, and differ in speed."""
    arms: dict[str, list[Speed]] = defaultdict(list)
    for row in evidence.speed:
        if row.arm == "draft" and row.tok_per_s and row.accept_length:
            arms[repr(row.condition)].append(row)
    means = sorted(
        (
            (mean(r.tok_per_s for r in rows), mean(r.accept_length for r in rows), rows[0])
            for _, rows in sorted(arms.items())
        ),
        key=lambda one: one[:2],
    )
    alike = defaultdict(list)  # what does other work is not compared: the hours and batches of a log are thousands
    for one in means:
        alike[_key({n: v for n, v in one[-1].condition.items() if n in _NOT_ALIKE})].append(one)
    pairs = chain.from_iterable(combinations(group, 2) for group in alike.values())
    for (slow, length, row), (fast, other, faster) in pairs:
        a, b = row.condition, faster.condition
        differs = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
        if len(differs) != 1 or abs(length - other) > SAME_LENGTH * other:
            continue
        if fast >= FASTER * slow:
            name = differs[0]
            text = (
                f"accept length {length:.2f} in both, {fast:.4g} tok/s at {name} {b.get(name)}, "
                f"{slow:.4g} at {a.get(name)}"
            )
            yield Symptom("slower_at_equal_acceptance", True, 1.0, "R", text, row.source)


def _by_batch(evidence: Evidence) -> Iterator[Symptom]:
    """The speed-up at the smallest batch against the one at the largest."""
    rows = sorted(
        (
            (_batch(c.row, evidence), c.speedup, c.row.source)
            for c in round_costs(evidence)
            if c.speedup and "batch" in c.row.condition
        ),
        key=lambda one: (one[0], -one[1], one[2]),
    )
    if len(rows) < 2 or rows[0][0] == rows[-1][0]:
        return
    (small, best, _), (large, worst, source) = rows[0], rows[-1]
    text = f"speed-up {best:.2f} at batch {small}, {worst:.2f} at batch {large}"
    yield Symptom("speedup_falls_with_batch", worst < 0.8 * best, 1.0, "R", text, source)
