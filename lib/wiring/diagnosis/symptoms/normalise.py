"""Evidence made ready to be read: log lines as records, each record once and in one order, the frame told apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wiring.diagnosis.symptoms.headline_acceptance import OWN_SHAPE
from wiring.logs.evidence import Acceptance, Accuracy, Argument, Evidence, Fact, Record, Setting, Speed

_FIELDS = {Acceptance: "acceptance", Accuracy: "accuracy", Argument: "arguments", Fact: "facts", Speed: "speed"}
_PARTS = ("lint", "arguments", "accuracy", "slots", "acceptance", "differences", "speed", "facts")


def complete(evidence: Evidence) -> Evidence:
    """The same evidence without log lines and repetitions.

    A condition that every record of acceptance and of speed with a draft shares tells nothing apart: it goes to the
    setting, where that does not say it already. Raises WiringError as the readers of log lines do.
    """
    records: dict[str, list[Record]] = {part: list(getattr(evidence, part)) for part in _PARTS}
    for record in _from_log(evidence):
        records[_FIELDS[type(record)]].append(record)
    records["acceptance"] = [_no_deeper(record, evidence.setting) for record in records["acceptance"]]
    parts = {part: _once(found) for part, found in records.items()}
    measured = [*parts["acceptance"], *(speed for speed in parts["speed"] if speed.arm != "plain")]
    frame = _shared(record.condition for record in measured)
    if frame:
        for part in ("acceptance", "speed"):
            parts[part] = _once(_without(record, frame) for record in parts[part])
    known = evidence.setting.model_dump()
    told = {name: value for name, value in frame.items() if name in Setting.model_fields and known[name] is None}
    setting = evidence.setting.model_copy(update=told)
    return evidence.model_copy(update={**parts, "setting": setting, "log": ()})


def _from_log(evidence: Evidence) -> tuple[Record, ...]:
    if not evidence.log:
        return ()
    from wiring.logs import GIVEN, read_lines

    return read_lines(evidence.log, **{name: getattr(evidence.setting, name) for name in GIVEN})


def _no_deeper(record: Acceptance, setting: Setting) -> Acceptance:
    """Drafts along one path of a tree are no more than the steps that the case says.

    What a log's rate gives is the draft tokens, which are a chain's depth and not a tree's.
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


def _shared(conditions: Iterable[Any]) -> dict[str, Any]:
    """Names with one value in all of them; nothing of a single record, whose condition may be its point."""
    conditions = [dict(condition) for condition in conditions]
    if len(conditions) < 2:
        return {}
    first, *others = conditions
    return {
        name: value for name, value in first.items() if all(name in other and other[name] == value for other in others)
    }


def _without(record: Record, frame: dict[str, Any]) -> Record:
    rest = {name: value for name, value in record.condition.items() if name not in frame}
    return record.model_copy(update={"condition": rest})
