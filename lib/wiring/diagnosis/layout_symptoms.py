"""Symptoms of files and arguments: lint's findings, changed arguments, and the layout that the engine's rule serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wiring.diagnosis.fact_symptoms import PLAIN_DTYPES
from wiring.diagnosis.symptom_table import LINTED, LINTED_FILES, Letter, Symptom, decide, lint_error, lint_warning
from wiring.engines.resolve import served_layout
from wiring.engines.served_layout import ServedLayout
from wiring.errors import WiringError
from wiring.layers import Layout, LayoutFault, Phase, classify_layout
from wiring.logs.evidence import ArgumentRecord, Evidence

PREFILL_ALONE = 0.6  # certainty that the layout is right everywhere where only the prefill was seen
LINT_SAW = 0.5  # certainty of an absence that lint reports for what it sees only in part
_BY_SEVERITY = {"error": lint_error, "warning": lint_warning}
_UNSET = ("", "none", "auto")  # the choice was left to the server
_ALIASES = {"nextn": "eagle"}
_NAMES = {
    LayoutFault.OTHER_BOUNDARIES: "other_boundaries_served",
    LayoutFault.OFF_BY_ONE: "boundaries_off_by_one",
    LayoutFault.COUNT_OR_ORDER: "slots_reordered",
}


def layout_symptoms(
    trained: Sequence[int],
    served: Sequence[int],
    num_layers: int,
    phase: str,
    source: str,
    letter: Letter = "C",
    assumed: str = "",
) -> Iterator[Symptom]:
    """Yield the layout fault of one phase as present, or all three as absent.

    `num_layers`: the target's depth, 0 where unknown. `assumed` is appended to the text.
    """
    fault = classify_layout(trained, served, num_layers)
    if fault is not None:
        text = f"{phase}: trained on boundaries {_shown(trained)}, served {_shown(served)}{assumed}"
        yield from decide(_NAMES[fault], True, text, source, letter=letter)
        return
    sure = PREFILL_ALONE if phase == "prefill" else 1.0
    for name in _NAMES.values():
        text = f"{phase}: served the trained boundaries {_shown(trained)}{assumed}"
        yield from decide(name, False, text, source, sure, letter)


def _shown(layout: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, layout)) + ")"


def lint_symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """Yield what lint's findings, the resolved arguments and the engine's layer rule decide."""
    for row in evidence.lint:
        if (name := _BY_SEVERITY.get(row.severity)) is not None:
            yield from decide(name(row.kind), True, f"lint, {row.severity}: {row.evidence}", row.source)
    linted = next((fact for fact in evidence.facts if fact.name == "lint_made" and fact.value is True), None)
    if linted is not None:
        for fault in LINTED:
            yield from decide(lint_error(fault), False, "lint found no error of this fault", linted.source)
        for name in LINTED_FILES:
            yield from decide(name, False, "lint did not find it", linted.source, LINT_SAW)
    for argument in evidence.arguments:
        yield from _argument(argument)
    yield from _by_rule(evidence)


def _argument(row: ArgumentRecord) -> Iterator[Symptom]:
    asked, resolved = _plain(row.asked), _plain(row.resolved)
    if asked in _UNSET or row.resolved is None:
        return
    same = asked == resolved
    text = f"{row.name}: requested {row.asked}, the server runs with {row.resolved}"
    if "layer_id" in row.name or "layers_to_capture" in row.name:
        # an engine's numbering may differ by one from the request without serving other layers
        if not same and _moved(asked, resolved) not in ({1}, {-1}):
            yield from decide("layer_ids_ignored", True, text, row.source)
    elif "quant" in row.name:
        if not same and asked in PLAIN_DTYPES:
            yield from decide("draft_quantised_unasked", True, text, row.source)
    elif "algorithm" not in row.name or _ALIASES.get(asked) != resolved:
        yield from decide("arguments_changed", not same, text, row.source)


def _plain(value: object) -> str:
    return "none" if value is None else str(value).strip().lower()


def _moved(asked: str, resolved: str) -> set[int] | None:
    """Differences of two lists of ids; None where they are not lists of one length."""
    try:
        a, b = ([int(part) for part in text.strip("[](){} ").split(",")] for text in (asked, resolved))
    except ValueError:
        return None
    return {y - x for x, y in zip(a, b, strict=True)} if len(a) == len(b) else None


def _by_rule(evidence: Evidence) -> Iterator[Symptom]:
    """The layout as given or by the engine's rule, in every phase that no capture shows."""
    setting, rule = evidence.setting, _rule(evidence)
    for note in rule.notes if rule is not None else ():
        if (name := _BY_SEVERITY.get(note.severity)) is not None and note.fault:
            yield from decide(name(note.fault), True, f"by {setting.engine}'s rule: {note.text}", "rule")
    if setting.trained_layout is None:
        return
    captured = {slot.phase for slot in evidence.slots if slot.boundary is not None}
    depth = target_depth(evidence)
    for phase in Phase:
        served: Layout | None = (setting.served_layout or {}).get(phase.value)
        source, assumed = "setting.served_layout", ""
        if served is None and rule is not None:
            served, source = rule[phase], f"rule of {setting.engine} {setting.version or 'newest'}"
            if setting.version is None:
                assumed = f" (no release given: by the newest known rule of {setting.engine})"
        if served is not None and phase.value not in captured:
            yield from layout_symptoms(setting.trained_layout, served, depth, phase.value, source, "L", assumed)


def target_depth(evidence: Evidence) -> int:
    """Return the target's number of layers, 0 where unknown."""
    return int((evidence.setting.target_config or {}).get("num_hidden_layers") or 0)


def _rule(evidence: Evidence) -> ServedLayout | None:
    """What the engine's rule serves; None where a config is missing or no rule is known."""
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
