"""Two measurements that differ in one condition alone: does acceptance fall with it?

A contrast that was made and shows nothing is as good as one that shows something: it speaks against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from wiring.diagnosis.symptoms.estimates import (
    LEAST,
    LEAST_OTHER,
    NO_FALL,
    OTHER_PROMPTS,
    SAME_PROMPTS,
    Accepted,
    fall,
    pool,
)
from wiring.diagnosis.symptoms.facts import PLAIN_DTYPES
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.logs.evidence import Acceptance, Evidence, Value

T = TypeVar("T")
REAL, SURE = 0.05, 0.005  # as `wiring ab` has it; and what is real at any size on the same text
ANY = 0.02
# What else moves with a condition, and is no difference of its own.
_COUPLED = {
    "topk": {"draft_tokens"},
    "steps": {"draft_tokens"},
    "engine": {"version"},
    "hours": {"batch", "cuda_graphs"},
    "batch": {"cuda_graphs"},
}
_SAME_ANSWERS = ("first_round", "after_chunk")  # rounds of the same answers, at other places
MANY = 6  # values beyond which thirds are compared, not single values


@dataclass(frozen=True)
class Contrast:
    """`condition` decides `symptom` where acceptance falls by the share `floor` or more.

    `order` sorts the values, the suspect ones last; None: none is suspect, the best and the worst are compared.
    `floor` is small where the same prompts are decoded to the same text; it is large where the condition changes the
    text, because a healthy draft is accepted differently on different text. `same`: the symptom where both are alike.
    `at_once`: the symptom where first rounds after the prefill alone are compared; empty: `symptom` as well.
    """

    condition: str
    symptom: str
    floor: float
    order: Callable[[Value], object] | None
    same: str = ""
    at_once: str = ""

    @property
    def design(self) -> float:
        """How much less rounds tell than independent ones would: little less where both sides decode the same text."""
        return SAME_PROMPTS if self.floor <= SAME_SET or self.condition in _SAME_ANSWERS else OTHER_PROMPTS

    @property
    def tolerated(self) -> float:
        """The share that other text alone may cost."""
        return 0.0 if self.floor <= SAME_SET else self.floor / 2


def _up(value: Value) -> float:
    return float(value)


def _false_last(value: Value) -> bool:
    return value is False


def _narrow_last(value: Value) -> int:
    """Fewer bits later: plain dtypes, then 8 bits, then 4 (by the digits of names such as fp8, nvfp4, w8a8)."""
    text = str(value).lower()
    if text in PLAIN_DTYPES:
        return 0
    return 1 if "8" in text else 2


SAME_TEXT = 0.05
SAME_SET = 0.15  # up to this floor both sides decode the same prompts
CONTRASTS = (
    Contrast("server", "accept_below_training", SAME_TEXT, _up, at_once="first_round_below_training"),
    Contrast("cached", "falls_when_cached", SAME_TEXT, _up),
    Contrast("prefix_cache", "falls_with_prefix_cache", SAME_TEXT, _up),
    Contrast("hours", "falls_with_time", 0.2, _up),
    Contrast("prompt_tokens", "falls_with_prompt_length", 0.35, _up),
    Contrast("after_chunk", "falls_after_chunk", 0.35, _up),
    Contrast("chunked", "falls_when_chunked", SAME_TEXT, _up),
    Contrast("handed_over", "falls_when_handed_over", SAME_TEXT, _up),
    Contrast("first_round", "first_round_low", 0.35, _up),
    Contrast("first_round", "later_rounds_low", 0.35, _false_last),
    Contrast("batch", "falls_with_batch", 0.1, _up),
    Contrast("cuda_graphs", "falls_with_cuda_graphs", SAME_TEXT, _up),
    Contrast("tp", "falls_with_tp", SAME_TEXT, _up),
    Contrast("dp", "falls_with_dp", SAME_TEXT, _up),
    Contrast("pp", "falls_with_pp", SAME_TEXT, _up),
    Contrast("fused_all_reduce", "falls_with_fused_all_reduce", SAME_TEXT, _up),
    Contrast("topk", "falls_with_topk", SAME_TEXT, _up),
    Contrast("steps", "falls_with_steps", SAME_TEXT, _up),
    Contrast("temperature", "falls_with_temperature", 0.25, _up),
    Contrast("acceptance_rule", "differs_between_acceptance_rules", 0.35, None),
    Contrast("attention_backend", "differs_between_backends", SAME_TEXT, None),
    Contrast("version", "differs_between_versions", 0.1, None),
    Contrast("draft_kv_dtype", "falls_with_draft_kv_dtype", SAME_TEXT, _narrow_last),
    Contrast("target_quantisation", "falls_with_target_quantisation", 0.1, _narrow_last),
    Contrast("draft_quantisation", "falls_with_draft_quantisation", SAME_TEXT, _narrow_last),
    Contrast("images", "falls_with_images", 0.35, _up),
    Contrast("domain", "differs_between_domains", 0.5, None),
    Contrast("template", "falls_without_template", 0.35, _false_last),
    Contrast("prompts", "differs_between_prompt_sets", 0.3, None),
    Contrast("engine", "other_engine_fine", 0.15, None, same="engines_agree"),
    Contrast("head", "other_head_fine", 0.1, None),
)


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Every contrast that the records of acceptance allow."""
    for contrast in CONTRASTS:
        for condition, arms in _arms(evidence.acceptance, contrast):
            asked = _of_rounds(contrast, evidence, condition)
            found = None if asked is None else _decide(asked, arms)
            if found is not None:
                yield found
    yield from _tested(evidence)


def _of_rounds(contrast: Contrast, evidence: Evidence, condition: Mapping[str, Value]) -> Contrast | None:
    """The contrast of what both arms share. Of first rounds alone it may be another symptom, and of a tree's none.

    In a chain a first round reads only rows that the prefill wrote; in a tree it may read a wrong parent's, too.
    """
    if not contrast.at_once or condition.get("first_round") is not True:
        return contrast
    return replace(contrast, symptom=contrast.at_once) if evidence.setting.topk == 1 else None


def _arms(
    records: tuple[Acceptance, ...], contrast: Contrast
) -> Iterator[tuple[Mapping[str, Value], list[tuple[Value, Accepted]]]]:
    """Groups of arms that differ in this condition alone, each with what they share."""
    condition = contrast.condition
    if condition == "steps":  # accept lengths grow with the steps of a healthy draft; its first draft does not change
        records = tuple(_first_alone(record) for record in records if record.by_position)
    beside = _COUPLED.get(condition, set()) | {condition, "hours"}
    groups: dict[str, list[Acceptance]] = defaultdict(list)
    for record in records:
        if condition in record.condition:
            rest = {name: value for name, value in record.condition.items() if name not in beside}
            groups[repr(sorted(rest.items()))].append(record)
    for _, group in sorted(groups.items()):
        arms = [
            (value, pooled)
            for value, rows in _by_value(group, condition)
            if (pooled := pool(rows, contrast.design)) is not None
        ]
        if len(arms) > 1:
            yield group[0].condition, arms


def _first_alone(record: Acceptance) -> Acceptance:
    first = record.by_position[0]
    return record.model_copy(update={"accept_length": 1 + first, "by_position": (first,), "proposed": 1})


def _by_value(records: list[Acceptance], condition: str) -> list[tuple[Value, list[Acceptance]]]:
    """Records by their value; of many numbers the lower and the upper third, named by their middle values."""
    found: dict[str, list[Acceptance]] = defaultdict(list)
    for record in records:
        found[repr(record.condition[condition])].append(record)
    values = [rows[0].condition[condition] for rows in found.values()]
    if len(found) <= MANY or not all(isinstance(value, int | float) for value in values):
        return [(rows[0].condition[condition], rows) for _, rows in sorted(found.items())]
    ranked = sorted(records, key=lambda r: (float(r.condition[condition]), r.model_dump_json()))
    third = len(ranked) // 3
    parts = (ranked[:third], ranked[-third:])
    return [(part[len(part) // 2].condition[condition], part) for part in parts]


def _tested(evidence: Evidence) -> Iterator[Symptom]:
    """Differences that were tested request by request: theirs is the better test, the floors are the same."""
    for row in evidence.differences:
        for each in CONTRASTS:
            contrast = _of_rounds(each, evidence, row.condition)
            if each.condition != row.by or contrast is None:
                continue
            arms = [(row.a, row.accept_length_a), (row.b, row.accept_length_b)]
            ranked = _ranked(contrast, arms, lambda length: length)
            least = LEAST_OTHER if contrast.tolerated else LEAST
            if ranked is None or ranked[0][1] - 1 < least:
                continue
            (good_value, good), (bad_value, bad) = ranked[0], ranked[-1]
            relative = (good - bad) / (good - 1)
            text = _text(contrast, good_value, good, bad_value, bad) + f", p {row.p_value:.3g}"
            real = row.p_value <= REAL and relative >= contrast.floor and good - bad >= least
            sure = row.p_value <= SURE and relative >= ANY and contrast.tolerated == 0
            if real or sure:
                yield Symptom(contrast.symptom, True, 1.0, "P", text, row.source)
                continue
            most = row.high if ranked[-1] is arms[0] else None if row.low is None else -row.low  # that it may fall by
            if most is not None and most < max(NO_FALL, contrast.floor) * (good - 1) and relative < contrast.floor:
                name = contrast.same or contrast.symptom
                yield Symptom(name, bool(contrast.same), 1.0, "P", text, row.source)


def _decide(contrast: Contrast, arms: list[tuple[Value, Accepted]]) -> Symptom | None:
    ranked = _ranked(contrast, arms, lambda arm: arm.drafts.value)
    if ranked is None:
        return None
    (good_value, good), (bad_value, bad) = ranked[0], ranked[-1]
    found = fall(good, bad, contrast.floor, contrast.tolerated)
    if found is None:
        return None
    fell, certainty = found
    name, present = (contrast.symptom, True) if fell else (contrast.same or contrast.symptom, bool(contrast.same))
    text = _text(contrast, good_value, good.length, bad_value, bad.length)
    return Symptom(name, present, certainty, "P", text, bad.source)


def _ranked(
    contrast: Contrast, arms: list[tuple[Value, T]], size: Callable[[T], float]
) -> list[tuple[Value, T]] | None:
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
    """Both arms in a sentence."""
    where = "in the first round, " if contrast.symptom == contrast.at_once else ""
    good_side = f"accept length {good:.3g} at {contrast.condition} {_shown(good_value)}"
    return f"{where}{good_side}, {bad:.3g} at {_shown(bad_value)}"


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
