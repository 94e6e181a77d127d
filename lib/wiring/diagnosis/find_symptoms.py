"""Find symptoms in evidence: normalize the records, read each type of evidence, combine the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wiring.diagnosis.acceptance_symptoms import OWN_SHAPE, acceptance_symptoms
from wiring.diagnosis.accuracy_symptoms import accuracy_symptoms
from wiring.diagnosis.contrasts import contrast_symptoms
from wiring.diagnosis.cost_symptoms import cost_symptoms
from wiring.diagnosis.fact_symptoms import PLAIN_DTYPES, fact_symptoms
from wiring.diagnosis.layout_symptoms import lint_symptoms
from wiring.diagnosis.prediction import prediction_symptoms
from wiring.diagnosis.slot_symptoms import slot_symptoms
from wiring.diagnosis.symptom_table import Symptom, decide, merge
from wiring.logs import GIVEN, read_lines
from wiring.logs.evidence import PARTS, AcceptanceRecord, Evidence, Record, Setting, SpeedRecord

# Field of the setting, its value, and the symptoms that are impossible with it.
_EXCLUDED = (
    ("tp", 1, ("falls_with_tp", "falls_with_fused_all_reduce", "ranks_differ", "embedding_ranks_differ")),
    ("topk", 1, ("falls_with_topk",)),
    ("batch", 1, ("falls_with_batch",)),
    ("cuda_graphs", False, ("falls_with_cuda_graphs",)),
    ("temperature", 0, ("falls_with_temperature",)),
)
_DTYPES = ("draft_kv_dtype", "draft_quantisation", "target_quantisation")
# A symptom that is present where one of these is, and absent where all are: its fault then shows in none of its places.
_ONE_OF = {
    # positions are wrong everywhere (in the checkpoint's own config: without a server as well), beyond some length, or
    # after an image
    "positions_tell": (
        "first_round_below_training",
        "falls_with_prompt_length",
        "falls_with_images",
        "accuracy_low",
        "accuracy_below_claim",
    ),
    "graph_or_batch_tells": ("falls_with_cuda_graphs", "falls_with_batch"),
}


def symptoms_of(evidence: Evidence) -> tuple[Symptom, ...]:
    """Return every symptom that the evidence decides, one of each name, sorted by name.

    The order of the records and repeated records do not matter. Raises WiringError as the readers of log lines do.
    """
    readers = (
        lint_symptoms,
        fact_symptoms,
        accuracy_symptoms,
        slot_symptoms,
        acceptance_symptoms,
        prediction_symptoms,
        contrast_symptoms,
        cost_symptoms,
        _excluded,
    )
    evidence = normalise_evidence(evidence)
    found = merge(symptom for reader in readers for symptom in reader(evidence))
    return merge((*found, *_combined({symptom.name: symptom for symptom in found})))


def _excluded(evidence: Evidence) -> Iterator[Symptom]:
    """Absent symptoms of what the setting does not use; a contrast that shows one replaces them."""
    setting = evidence.setting
    for field, value, names in _EXCLUDED:
        if getattr(setting, field) == value:
            for name in names:
                yield from decide(name, False, f"not in use: {field} {str(value).lower()}", "setting")
    for field in _DTYPES:
        value = getattr(setting, field)
        if value is not None and value.lower() in PLAIN_DTYPES:
            yield from decide(f"falls_with_{field}", False, f"not in use: {field} {value}", "setting")
    target = setting.target_config
    if target is not None and not any("vision" in key or "image" in key for key in target):
        yield from decide("falls_with_images", False, "not in use: the target reads no images", "setting")


def _combined(known: dict[str, Symptom]) -> Iterator[Symptom]:
    """Symptoms that follow from several others."""
    for name, parts in _ONE_OF.items():
        present = [known[part] for part in parts if part in known and known[part].present]
        if present or all(part in known for part in parts):
            yield from _joined(name, bool(present), present[:1] or [known[part] for part in parts])
    first, below = known.get("first_round_below_training"), known.get("accept_below_training")
    if first is not None and first.present:
        yield from _joined("later_rounds_low", False, [first])
    elif first is not None and below is not None and below.present:
        yield from _joined("later_rounds_low", True, [first, below])


def _joined(name: str, present: bool, parts: list[Symptom]) -> Iterator[Symptom]:
    text = "; ".join(part.text for part in parts)
    yield from decide(name, present, text, parts[0].source, min(part.certainty for part in parts))


def normalise_evidence(evidence: Evidence) -> Evidence:
    """Return the evidence with log lines read as records, each record once, in one order.

    A condition that all records of acceptance and of speed with a draft share does not distinguish them: it moves to
    the setting unless that has a value. Raises WiringError as the readers of log lines do.
    """
    records: dict[str, list[Any]] = {part: list(getattr(evidence, part)) for part in PARTS.values()}
    if evidence.log:
        for record in read_lines(evidence.log, **{name: getattr(evidence.setting, name) for name in GIVEN}):
            records[PARTS[type(record)]].append(record)
    records["acceptance"] = [_limit_to_steps(record, evidence.setting) for record in records["acceptance"]]
    parts: dict[str, tuple[Any, ...]] = {part: _once(found) for part, found in records.items()}
    measured = [*parts["acceptance"], *(speed for speed in parts["speed"] if speed.arm != "plain")]
    shared = _shared([dict(record.condition) for record in measured])
    if shared:
        for part in ("acceptance", "speed"):
            parts[part] = _once(_without(record, shared) for record in parts[part])
    known = evidence.setting.model_dump()
    update = {name: value for name, value in shared.items() if name in Setting.model_fields and known[name] is None}
    setting = evidence.setting.model_copy(update=update)
    return evidence.model_copy(update={**parts, "setting": setting, "log": ()})


def _limit_to_steps(record: AcceptanceRecord, setting: Setting) -> AcceptanceRecord:
    """Limit the drafts along one path of a tree to the steps of the setting.

    A log's rate gives the draft tokens, which are the depth of a chain but not of a tree.
    """
    most = setting.steps
    if OWN_SHAPE & set(record.condition) or most is None or (setting.topk or 1) == 1:
        return record
    if (record.proposed or 0) <= most or len(record.by_position) > most:
        return record
    return record.model_copy(update={"proposed": most})


def _once(records: Iterable[Record]) -> tuple[Record, ...]:
    once = {record.model_dump_json(): record for record in records}
    return tuple(once[key] for key in sorted(once))


def _shared(conditions: list[dict[str, Any]]) -> dict[str, Any]:
    """Names with one value in all conditions; empty for a single record, which may be about its condition."""
    if len(conditions) < 2:
        return {}
    first, *others = conditions
    return {name: value for name, value in first.items() if all(o.get(name, ...) == value for o in others)}


def _without(record: AcceptanceRecord | SpeedRecord, names: dict[str, Any]) -> Record:
    rest = {name: value for name, value in record.condition.items() if name not in names}
    return record.model_copy(update={"condition": rest})
