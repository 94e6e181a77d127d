"""L: findings of lint, arguments that were changed, and the layout that the engine's rule serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wiring.diagnosis.symptoms.catalogue import lint_error, lint_warning
from wiring.diagnosis.symptoms.facts import PLAIN_DTYPES
from wiring.diagnosis.symptoms.layout_symptoms import layout_symptoms
from wiring.diagnosis.symptoms.symptom import Symptom
from wiring.engines.resolve import served_layout
from wiring.engines.served_layout import ServedLayout
from wiring.errors import WiringError
from wiring.logs.evidence import Argument, Evidence

LINTED = (1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 21)  # kinds that lint can find in files and arguments
FILES = (  # what lint looks at as well; less sure, for it needs the tensors and a running server's arguments
    "arguments_changed",
    "algorithm_differs",
    "layer_ids_ignored",
    "map_missing",
    "map_arbitrary",
    "embedding_differs",
    "tensors_unused",
)
LINT_SAW = 0.5
_NOT_ASKED = ("", "none", "auto")  # the server was left to choose
_ALIASES = {"nextn": "eagle"}


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Everything that files, configs and resolved arguments say."""
    for finding in evidence.lint:
        name = {"error": lint_error, "warning": lint_warning}.get(finding.severity)
        if name is not None:
            text = f"lint, {finding.severity}: {finding.evidence}"
            yield Symptom(name(finding.kind), True, 1.0, "L", text, finding.source)
    made = [fact for fact in evidence.facts if fact.name == "lint_made" and fact.value is True]
    for fact in made[:1]:
        for kind in LINTED:
            yield Symptom(lint_error(kind), False, 1.0, "L", "lint found no error of this kind", fact.source)
        for name in FILES:
            yield Symptom(name, False, LINT_SAW, "L", "lint found nothing of the kind", fact.source)
    for argument in evidence.arguments:
        yield from _argument(argument)
    yield from _layout(evidence)


def _argument(row: Argument) -> Iterator[Symptom]:
    asked, resolved = _plain(row.asked), _plain(row.resolved)
    if asked in _NOT_ASKED or row.resolved is None:
        return
    same = asked == resolved
    text = f"{row.name}: asked for {row.asked}, the server runs with {row.resolved}"
    if "layer_id" in row.name or "layers_to_capture" in row.name:
        moved = _moved(asked, resolved)  # an engine may number layers differently by one: that is no change
        if same or (moved is not None and len(moved) == 1 and abs(next(iter(moved))) == 1):
            return
        yield Symptom("layer_ids_ignored", True, 1.0, "L", text, row.source)
    elif "quant" in row.name:
        if not same and asked in PLAIN_DTYPES:
            yield Symptom("draft_quantised_unasked", True, 1.0, "L", text, row.source)
    elif "algorithm" in row.name and _ALIASES.get(asked) == resolved:
        return
    else:
        said = text if not same else f"{row.name}: {row.resolved}, as asked"
        yield Symptom("arguments_changed", not same, 1.0, "L", said, row.source)


def _plain(value: object) -> str:
    return "none" if value is None else str(value).strip().lower()


def _moved(asked: str, resolved: str) -> set[int] | None:
    """By how much each id of a list moved; None where they are no lists of one length."""
    try:
        a, b = ([int(part) for part in text.strip("[](){} ").split(",")] for text in (asked, resolved))
    except ValueError:
        return None
    return {y - x for x, y in zip(a, b, strict=True)} if len(a) == len(b) else None


def _layout(evidence: Evidence) -> Iterator[Symptom]:
    """The layout as told, or by the engine's rule, in every phase that no capture shows."""
    setting = evidence.setting
    rule = _by_rule(evidence)
    if rule is not None:
        for note in rule.notes:
            name = {"error": lint_error, "warning": lint_warning}.get(note.severity)
            if name is not None and note.kind:
                yield Symptom(name(note.kind), True, 1.0, "L", f"by {setting.engine}'s rule: {note.text}", "rule")
    if setting.trained_layout is None:
        return
    captured = {slot.phase for slot in evidence.slots if slot.boundary is not None}
    depth = int((setting.target_config or {}).get("num_hidden_layers") or 0)
    for phase in ("prefill", "verify", "draft_extend"):
        served = (setting.served_layout or {}).get(phase)
        source, assumed = "setting.served_layout", ""
        if served is None and rule is not None:
            served, source = rule[phase], f"rule of {setting.engine} {setting.version or 'newest'}"
            if setting.version is None:
                assumed = f" (no release given: by the newest rule of {setting.engine} that is known)"
        if served is not None and phase not in captured:
            for symptom in layout_symptoms(setting.trained_layout, served, depth, phase, "L", source):
                yield replace(symptom, text=symptom.text + assumed)


def _by_rule(evidence: Evidence) -> ServedLayout | None:
    """What the engine's rule serves; None where a config is not known, or no rule is."""
    setting = evidence.setting
    if setting.engine is None or setting.target_config is None or setting.draft_config is None:
        return None
    try:
        return served_layout(
            setting.engine,
            setting.version,
            setting.target_config,
            setting.draft_config,
            cuda_graphs=setting.cuda_graphs is not False,
            tp_size=setting.tp or 1,
            slots=len(setting.trained_layout) if setting.trained_layout else None,
        )
    except WiringError:
        return None
