"""Check the boundaries that each phase is served against those that the draft was trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from wiring.checkpoints.copy_record import CopyRecord
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, IDS, named_slots, recorded_ids
from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.target_files import TargetConfig
from wiring.engines.resolve import Engine, Note, ServedLayout, served_layout
from wiring.errors import WiringError
from wiring.layers import Layout, LayoutFault, Phase, classify_layout, is_default_layout
from wiring.lint.lint_inputs import DraftView, ServerView, View

NO_FAULT = 0  # the fault number of a note that only names a rule or an assumption
_LAYOUT_FAULTS = tuple(LayoutFault)
_NAME_TRAINED = "Give the trained layout with --trained B,B,B; `wiring search` finds it from the weights"
_UNKNOWN = ServedLayout(None, None, None)


def resolve_served(
    engine: Engine,
    draft: DraftView,
    target: TargetConfig | None,
    server: ServerView | None,
    *,
    embedding_plugin: bool = False,
    engine_ids: tuple[int, ...] | None = None,
    copy: CopyRecord | None = None,
) -> tuple[ServedLayout | None, str]:
    """Return the served layout by phase, or None and the reason if no target is given or no rule is known for it.

    A fixed copy on SGLang that still has the ids written into it is assumed to run on the server that it was made for
    (with the plugin's switch, or with edited files); a note of fault 0 says so. Raises WiringError for a release
    without rules.
    """
    if target is None:
        return None, "no target was given"
    ids, _ = recorded_ids(draft.config, draft.producer)
    intact = copy is not None and copy.layout is not None and ids == copy.ids
    form = copy.form if copy is not None and intact and engine.name == "sglang" and not embedding_plugin else ""
    try:
        layout = served_layout(
            engine.name,
            engine.version,
            target.raw,
            draft.config,
            cuda_graphs=server.cuda_graphs if server else True,
            tp_size=server.tp_size if server else 1,
            embedding_plugin=embedding_plugin or form == "plugin",
            slots=draft.slots,
            engine_ids=engine_ids,
        )
    except WiringError as error:
        if error.where != target.architecture:
            raise
        return None, str(error)
    if copy is not None and form == "plugin":
        switches = " ".join(f"{name}={value}" for name, value in copy.environment.items())
        assumed = f"this copy was made for a server with {switches}, which files do not show"
        return replace(layout, notes=(*layout.notes, Note(NO_FAULT, "warning", assumed))), ""
    if copy is not None and form == "source":
        assumed = "this copy was made for an SGLang with edited files, which `wiring patch verify` reads"
        return ServedLayout(copy.layout, copy.layout, copy.layout, (Note(NO_FAULT, "warning", assumed),)), ""
    return layout, ""


def rule_notes(view: View) -> Iterator[Finding]:
    """Report the notes of the engine's rule: silent defaults, ids out of order, phases that fail.

    A note on ids that result in the trained layout anyway is left out, unless no engine reads the place of the ids.
    """
    served, trained = view.served or _UNKNOWN, view.trained
    misplaced = view.sglang and IDS in view.draft.config
    for note in served.notes:
        phases = note.phases or tuple(Phase)
        as_trained = trained.layout is not None and all(served[phase] == trained.layout for phase in phases)
        harmless = as_trained and note.fault in _LAYOUT_FAULTS and not (misplaced and note.severity != "note")
        if note.fault == NO_FAULT or harmless:
            continue
        evidence = note.text
        if note.severity == "error" and note.fault in _LAYOUT_FAULTS and note.phases and trained.layout:
            layout = served[phases[0]]
            fed = "nothing is served" if layout is None else f"served boundaries {layout}"
            evidence += f"; {fed}, trained on {trained.layout} ({trained.why})"
        fault = NO_FAULT if note.severity == "note" else note.fault
        yield Finding(fault, note.severity, _where(view, note.phases), evidence, note.remedy)


def against_trained(view: View) -> Iterator[Finding]:
    """Report phases that are served another layout than the trained one, unless the rule calls them an error."""
    trained, served = view.trained.layout, view.served or _UNKNOWN
    assert trained is not None, "needs the trained layout"
    num_layers = view.given_target.num_layers if view.given_target else 0
    layouts: dict[Layout, list[Phase]] = {}
    for phase in Phase:
        layout = served[phase]
        if layout is not None and layout != trained and not _reported(served.notes, phase):
            layouts.setdefault(layout, []).append(phase)
    for layout, phases in layouts.items():
        fault = classify_layout(trained, layout, num_layers)
        assert fault is not None, "the layouts differ"
        how = _describe(fault, trained, layout)
        if fault is LayoutFault.OTHER_BOUNDARIES and is_default_layout(layout, num_layers):
            how += "; these are the engine's default layers"
        severity = "error" if view.trained.certain else "warning"
        evidence = f"served boundaries {layout}, trained on {trained} ({view.trained.why}): {how}"
        yield Finding(int(fault), severity, _where(view, phases), evidence, _remedy(view, trained))
    if not layouts and view.trained.guessed and all(served[phase] == trained for phase in Phase):
        evidence = (
            f"the config names no layers and the engine serves its default, boundaries {trained}: that the draft "
        )
        evidence += "was trained on them is an assumption"
        yield Finding(NO_FAULT, "note", view.draft.where, evidence, _NAME_TRAINED)


def slot_count(view: View) -> Iterator[Finding]:
    """Report an `fc` that takes another number or width of states than the engine feeds it."""
    draft, width = view.draft, view.draft.width
    fc, where = draft.named.get("fc.weight"), draft.tensor_where("fc.weight")
    if fc is None or not width:
        return
    if fc.dim() != 2:
        evidence = f"fc.weight has the shape {list(fc.shape)} and is not a matrix, so the weights do not load"
        yield Finding(3, "error", where, evidence, "Export the draft again: its fc is [width, states * width]")
        return
    states, rest = divmod(fc.shape[1], width)
    if rest or not states:
        evidence = f"fc takes {fc.shape[1]} features, which is not a multiple of the state's width {width}"
        remedy = "Check target_hidden_size, and that the draft was trained for this target"
        yield Finding(3, "error", where, evidence, remedy)
        return
    if fc.shape[0] != draft.layer.get("hidden_size"):
        evidence = f"fc returns {fc.shape[0]} features, the draft's hidden_size is {draft.layer.get('hidden_size')}"
        yield Finding(3, "error", where, evidence)
        return
    counts = {named_slots(draft.config, draft.producer) or DEFAULT_SLOTS}
    if view.served is not None:
        counts = {len(layout) for phase in Phase if (layout := view.served[phase]) is not None}
    if not counts <= {states}:
        evidence = f"fc takes {states} states, config and engine feed {', '.join(map(str, sorted(counts)))}"
        yield Finding(3, "error", where, evidence, f"Name {states} layers in the draft's config")


def _reported(notes: Iterable[Note], phase: Phase) -> bool:
    return any(n.severity == "error" and n.fault in _LAYOUT_FAULTS and phase in n.phases for n in notes)


def _where(view: View, phases: Iterable[Phase]) -> str:
    names = ", ".join(phase.value.replace("_", " ") for phase in phases)
    return f"{view.draft.where} ({names})" if names else view.draft.where


def _describe(fault: LayoutFault, trained: Layout, served: Layout) -> str:
    if len(trained) != len(served):
        return f"{len(served)} slots are served, {len(trained)} were trained"
    if fault is LayoutFault.COUNT_OR_ORDER:
        return "the same boundaries in another order"
    moved = [(i, old, new) for i, (old, new) in enumerate(zip(trained, served, strict=True)) if old != new]
    if fault is LayoutFault.OFF_BY_ONE:
        slots = "every slot" if len(moved) == len(trained) else f"slot {', '.join(str(i) for i, *_ in moved)}"
        return f"{slots} is one layer {'later' if moved[0][2] > moved[0][1] else 'earlier'}"
    known = [f"slot {i} holds what slot {trained.index(new)} was trained on" for i, _, new in moved if new in trained]
    unknown = [f"slot {i} holds boundary {new}, unknown to every slot" for i, _, new in moved if new not in trained]
    return ", ".join(known + unknown)


def _remedy(view: View, trained: Layout) -> str:
    if not view.trained.certain:
        return _NAME_TRAINED
    if view.engine.name == "tensorrt-llm" and 0 in trained:
        return (
            "TensorRT-LLM cannot capture the embedding, boundary 0 (its id -1 is the state after the final norm): "
            "serve the draft with another engine, or retrain on boundaries from 1"
        )
    confirm = "" if view.trained.given else "Confirm the trained layout (--trained B,B,B, or `wiring search`). "
    return (
        f"{confirm}Make the engine serve {trained} (`wiring patch` plans it for SGLang), or retrain on what it serves"
    )
