"""Contrasts: measurements that differ in one condition only, and whether acceptance falls with it.

A contrast that was measured and shows no fall is evidence as well: it counts against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from wiring.diagnosis.estimates import (
    LEAST,
    LEAST_OTHER,
    NO_FALL,
    OTHER_PROMPTS,
    SAME_PROMPTS,
    Accepted,
    fall,
    pool,
)
from wiring.diagnosis.fact_symptoms import PLAIN_DTYPES
from wiring.diagnosis.symptom_table import Symptom, decide
from wiring.logs.evidence import AcceptanceRecord, DifferenceRecord, Evidence, Value

T = TypeVar("T")
Arms = list[tuple[Value, T]]
REAL, SURE = 0.05, 0.005  # p-values: the threshold of `wiring ab`, and the one for small effects on the same text
ANY = 0.02  # the smallest relative effect that counts on the same text
SAME_TEXT, SAME_SET = 0.05, 0.15  # floors: up to SAME_SET both sides decode the same prompts
MANY = 6  # values beyond which thirds are compared instead of single values
# Conditions that change together with another one and do not make a difference of their own.
_COUPLED = {
    "topk": {"draft_tokens"},
    "steps": {"draft_tokens"},
    "engine": {"version"},
    "hours": {"batch", "cuda_graphs"},
    "batch": {"cuda_graphs"},
}
_SAME_ANSWERS = ("first_round", "after_chunk")  # rounds of the same answers, at other places


def _up(value: Value) -> float:
    return float(value)


def _false_last(value: Value) -> bool:
    return value is False


def _narrow_last(value: Value) -> int:
    """Plain dtypes, then 8 bits, then 4, by the digits of names such as fp8, nvfp4, w8a8."""
    text = str(value).lower()
    return 0 if text in PLAIN_DTYPES else 1 if "8" in text else 2


@dataclass(frozen=True)
class Contrast:
    """`condition` decides `symptom` where acceptance falls by the share `floor` or more.

    `order` sorts the values, suspect ones last; None: the best and the worst are compared. `floor` is small where the
    same prompts decode to the same text, and large where the condition changes the text, on which a healthy draft
    is accepted differently. `same`: the symptom where both sides are alike. `first_rounds`: the symptom where only
    first rounds after the prefill are compared; empty: `symptom`.
    """

    condition: str
    symptom: str
    floor: float = SAME_TEXT
    order: Callable[[Value], object] | None = _up
    same: str = ""
    first_rounds: str = ""

    @property
    def design(self) -> float:
        """Design factor of the rounds, small where both sides decode the same text."""
        return SAME_PROMPTS if self.floor <= SAME_SET or self.condition in _SAME_ANSWERS else OTHER_PROMPTS

    @property
    def tolerated(self) -> float:
        """Share that other text alone may cost."""
        return 0.0 if self.floor <= SAME_SET else self.floor / 2


CONTRASTS = (
    Contrast("server", "accept_below_training", first_rounds="first_round_below_training"),
    Contrast("cached", "falls_when_cached"),
    Contrast("prefix_cache", "falls_with_prefix_cache"),
    Contrast("hours", "falls_with_time", 0.2),
    Contrast("prompt_tokens", "falls_with_prompt_length", 0.35),
    Contrast("after_chunk", "falls_after_chunk", 0.35),
    Contrast("chunked", "falls_when_chunked"),
    Contrast("handed_over", "falls_when_handed_over"),
    Contrast("first_round", "first_round_low", 0.35),
    Contrast("first_round", "later_rounds_low", 0.35, _false_last),
    Contrast("batch", "falls_with_batch", 0.1),
    Contrast("cuda_graphs", "falls_with_cuda_graphs"),
    Contrast("tp", "falls_with_tp"),
    Contrast("dp", "falls_with_dp"),
    Contrast("pp", "falls_with_pp"),
    Contrast("fused_all_reduce", "falls_with_fused_all_reduce"),
    Contrast("topk", "falls_with_topk"),
    Contrast("steps", "falls_with_steps"),
    Contrast("temperature", "falls_with_temperature", 0.25),
    Contrast("acceptance_rule", "differs_between_acceptance_rules", 0.35, None),
    Contrast("attention_backend", "differs_between_backends", SAME_TEXT, None),
    Contrast("version", "differs_between_versions", 0.1, None),
    Contrast("draft_kv_dtype", "falls_with_draft_kv_dtype", SAME_TEXT, _narrow_last),
    Contrast("target_quantisation", "falls_with_target_quantisation", 0.1, _narrow_last),
    Contrast("draft_quantisation", "falls_with_draft_quantisation", SAME_TEXT, _narrow_last),
    Contrast("images", "falls_with_images", 0.35),
    Contrast("domain", "differs_between_domains", 0.5, None),
    Contrast("template", "falls_without_template", 0.35, _false_last),
    Contrast("prompts", "differs_between_prompt_sets", 0.3, None),
    Contrast("engine", "other_engine_fine", 0.15, None, same="engines_agree"),
    Contrast("head", "other_head_fine", 0.1, None),
)


def contrast_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield every contrast that the records of acceptance and the tested differences allow."""
    for each in CONTRASTS:
        for condition, arms in _arms(evidence.acceptance, each):
            contrast = _of_rounds(each, evidence, condition)
            if contrast is not None:
                yield from _pooled(contrast, arms)
        for row in evidence.differences:
            contrast = _of_rounds(each, evidence, row.condition)
            if each.condition == row.by and contrast is not None:
                yield from _tested(contrast, row)


def _of_rounds(contrast: Contrast, evidence: Evidence, condition: Mapping[str, Value]) -> Contrast | None:
    """The contrast under the condition that both arms share; None where it does not decide anything.

    In a chain a first round reads only rows that the prefill wrote; in a tree it may also read those of a wrong parent.
    """
    if not contrast.first_rounds or condition.get("first_round") is not True:
        return contrast
    return replace(contrast, symptom=contrast.first_rounds) if evidence.setting.topk == 1 else None


def _arms(
    records: tuple[AcceptanceRecord, ...], contrast: Contrast
) -> Iterator[tuple[Mapping[str, Value], Arms[Accepted]]]:
    """Groups of arms that differ in this condition only, each with a condition that they share."""
    condition = contrast.condition
    if condition == "steps":  # accept length grows with the steps of a healthy draft; its first position does not
        records = tuple(_first_position(record) for record in records if record.by_position)
    excluded = _COUPLED.get(condition, set()) | {condition, "hours"}
    groups: dict[str, list[AcceptanceRecord]] = defaultdict(list)
    for record in records:
        if condition in record.condition:
            rest = {name: value for name, value in record.condition.items() if name not in excluded}
            groups[repr(sorted(rest.items()))].append(record)
    for _, group in sorted(groups.items()):
        pooled = [(value, pool(rows, contrast.design)) for value, rows in _by_value(group, condition)]
        arms = [(value, arm) for value, arm in pooled if arm is not None]
        if len(arms) > 1:
            yield group[0].condition, arms


def _first_position(record: AcceptanceRecord) -> AcceptanceRecord:
    first = record.by_position[0]
    return record.model_copy(update={"accept_length": 1 + first, "by_position": (first,), "proposed": 1})


def _by_value(records: list[AcceptanceRecord], condition: str) -> Arms[list[AcceptanceRecord]]:
    """Records by their value; of many numbers the lower and the upper third, named by their middle values."""
    found: dict[str, list[AcceptanceRecord]] = defaultdict(list)
    for record in records:
        found[repr(record.condition[condition])].append(record)
    arms = [(rows[0].condition[condition], rows) for _, rows in sorted(found.items())]
    if len(arms) <= MANY or not all(isinstance(value, int | float) for value, _ in arms):
        return arms
    ranked = sorted(records, key=lambda r: (float(r.condition[condition]), r.model_dump_json()))
    third = len(ranked) // 3
    return [(part[len(part) // 2].condition[condition], part) for part in (ranked[:third], ranked[-third:])]


def _pooled(contrast: Contrast, arms: Arms[Accepted]) -> Iterator[Symptom]:
    """Decide by pooled records."""
    ranked = _ranked(contrast, arms, lambda arm: arm.drafts.value)
    if ranked is None:
        return
    (good_value, good), (bad_value, bad) = ranked[0], ranked[-1]
    found = fall(good, bad, contrast.floor, contrast.tolerated)
    if found is not None:
        text = _text(contrast, good_value, good.length, bad_value, bad.length)
        yield _symptom(contrast, found[0], text, bad.source, found[1])


def _tested(contrast: Contrast, row: DifferenceRecord) -> Iterator[Symptom]:
    """Decide by a difference that was tested request by request, with the same floors."""
    arms = [(row.a, row.accept_length_a), (row.b, row.accept_length_b)]
    ranked = _ranked(contrast, arms, lambda length: length)
    least = LEAST_OTHER if contrast.tolerated else LEAST
    if ranked is None or ranked[0][1] - 1 < least:
        return
    (good_value, good), (bad_value, bad) = ranked[0], ranked[-1]
    relative = (good - bad) / (good - 1)
    text = _text(contrast, good_value, good, bad_value, bad) + f", p {row.p_value:.3g}"
    real = row.p_value <= REAL and relative >= contrast.floor and good - bad >= least
    sure = row.p_value <= SURE and relative >= ANY and contrast.tolerated == 0
    if real or sure:
        yield _symptom(contrast, True, text, row.source)
        return
    most = row.high if ranked[-1] is arms[0] else None if row.low is None else -row.low  # the largest possible fall
    if most is not None and most < max(NO_FALL, contrast.floor) * (good - 1) and relative < contrast.floor:
        yield _symptom(contrast, False, text, row.source)


def _symptom(contrast: Contrast, fell: bool, text: str, source: str, certainty: float = 1.0) -> Symptom:
    alike = not fell and bool(contrast.same)
    return next(decide(contrast.same if alike else contrast.symptom, fell or alike, text, source, certainty, "P"))


def _ranked(contrast: Contrast, arms: Arms[T], size: Callable[[T], float]) -> Arms[T] | None:
    """Arms with the suspect one last; None where the values have no order, or none of them is suspect."""
    order = contrast.order
    if order is None:
        return sorted(arms, key=lambda arm: (-size(arm[1]), str(arm[0])))
    try:
        ranked = sorted(arms, key=lambda arm: (order(arm[0]), -size(arm[1]), str(arm[0])))
    except (TypeError, ValueError):
        return None
    return ranked if order(ranked[0][0]) != order(ranked[-1][0]) else None


def _text(contrast: Contrast, good_value: Value, good: float, bad_value: Value, bad: float) -> str:
    where = "in the first round, " if contrast.symptom == contrast.first_rounds else ""
    shown = [str(value).lower() if isinstance(value, bool) else str(value) for value in (good_value, bad_value)]
    return f"{where}accept length {good:.3g} at {contrast.condition} {shown[0]}, {bad:.3g} at {shown[1]}"
