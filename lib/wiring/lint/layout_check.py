"""Layout: the boundaries that are served, phase by phase, against those that the draft was trained on."""

from __future__ import annotations

from collections.abc import Iterable

from wiring.checkpoints.draft_config import DEFAULT_SLOTS, IDS, named_slots
from wiring.engines.resolve import Note, ServedLayout
from wiring.layers import Layout, LayoutFault, Phase, classify_layout, is_default_layout
from wiring.lint.findings import NO_FAULT, LintFinding
from wiring.lint.lint_inputs import View

_LAYOUT_KINDS = (1, 2, 3)
_SAY = "Say which layout was trained: --trained B,B,B; `wiring search` tells it from the weights"
_NAMES = {Phase.PREFILL: "prefill", Phase.VERIFY: "verify", Phase.DRAFT_EXTEND: "draft extend"}


def served_as_said(view: View) -> list[LintFinding]:
    """What the engine's rule has to say: defaults taken silently, ids out of order, phases that fail.

    A remark on ids whose outcome is the trained layout all the same is none.
    """
    served = _served(view)
    found = []
    for note in served.notes:
        phases = note.phases or tuple(Phase)
        if note.kind == 0 or _harmless(view, note, served, phases):
            continue
        evidence = note.text
        if note.severity == "error" and note.kind in _LAYOUT_KINDS and note.phases and view.trained.layout:
            evidence += f"; {_fed(served[phases[0]])}, trained on {view.trained.layout} ({view.trained.why})"
        where = f"{view.draft.where} ({_words(note.phases)})" if note.phases else view.draft.where
        kind = NO_FAULT if note.severity == "note" else note.kind
        found.append(LintFinding(kind, note.severity, where, evidence, note.remedy))
    return found


def as_trained(view: View) -> list[LintFinding]:
    """A phase that is served another layout than the trained one, unless the rule itself calls it an error."""
    trained, served = view.trained.layout, _served(view)
    assert trained is not None, "needs the trained layout"
    groups: dict[Layout, list[Phase]] = {}
    for phase in Phase:
        layout = served[phase]
        if layout is not None and layout != trained and not _said(served.notes, phase):
            groups.setdefault(layout, []).append(phase)
    found = []
    for layout, phases in groups.items():
        num_layers = view.target.config.num_layers if view.target else 0
        kind = classify_layout(trained, layout, num_layers)
        assert kind is not None, "the layouts differ"
        how = _how(kind, trained, layout)
        if kind is LayoutFault.OTHER_BOUNDARIES and is_default_layout(layout, num_layers):
            how += "; these are the engine's default layers"
        found.append(
            LintFinding(
                kind,
                "error" if view.trained.certain else "warning",
                f"{view.draft.where} ({_words(phases)})",
                f"served boundaries {layout}, trained on {trained} ({view.trained.why}): {how}",
                _remedy(view, trained),
            )
        )
    return found or _unrecorded(view)


def _how(fault: LayoutFault, trained: Layout, served: Layout) -> str:
    """Describe the difference between two layouts slot by slot."""
    if len(trained) != len(served):
        return f"{len(served)} slots are served, {len(trained)} were trained"
    if fault is LayoutFault.COUNT_OR_ORDER:
        return "the same boundaries in another order"
    pairs = [
        (i, before, after) for i, (before, after) in enumerate(zip(trained, served, strict=True)) if before != after
    ]
    if fault is LayoutFault.OFF_BY_ONE:
        direction = "later" if pairs[0][2] > pairs[0][1] else "earlier"
        which = "every slot" if len(pairs) == len(trained) else f"slot {', '.join(str(i) for i, _, _ in pairs)}"
        return f"{which} is one layer {direction}"
    moved = [
        f"slot {i} is fed what slot {trained.index(after)} was trained on" for i, _, after in pairs if after in trained
    ]
    wrong = [
        f"slot {i} is fed boundary {after}, which no slot was trained on"
        for i, _, after in pairs
        if after not in trained
    ]
    return ", ".join(moved + wrong)


def slots(view: View) -> list[LintFinding]:
    """The number and width of the states that `fc` takes, against what the engine feeds it."""
    fc, width = view.draft.named.get("fc.weight"), view.draft.width
    if fc is None or not width:
        return []
    where = view.draft.tensor_where("fc.weight")
    if fc.dim() != 2:
        evidence = f"fc.weight has the shape {list(fc.shape)}, which is no matrix: the weights do not load"
        return [LintFinding(3, "error", where, evidence, "Export the draft again: its fc is [width, states * width]")]
    states, rest = divmod(fc.shape[1], width)
    if rest or not states:
        return [
            LintFinding(
                3,
                "error",
                where,
                f"fc takes {fc.shape[1]} features, which is no number of states of width {width}",
                "Check target_hidden_size, and that the draft was trained for this target",
            )
        ]
    hidden = view.draft.layer.get("hidden_size")
    if fc.shape[0] != hidden:
        return [LintFinding(3, "error", where, f"fc puts out {fc.shape[0]} features, the draft is {hidden} wide")]
    counts = {len(layout) for phase in Phase if (layout := _served(view)[phase]) is not None}
    if view.served is None:
        counts = {named_slots(view.draft.config, view.draft.producer) or DEFAULT_SLOTS}
    if counts <= {states}:
        return []
    found = ", ".join(map(str, sorted(counts)))
    return [
        LintFinding(
            3,
            "error",
            where,
            f"fc takes {states} states, {found} are fed by config and engine",
            f"Name {states} layers in the draft's config",
        )
    ]


def _served(view: View) -> ServedLayout:
    return view.served or ServedLayout(None, None, None)


def _harmless(view: View, note: Note, served: ServedLayout, phases: Iterable[Phase]) -> bool:
    trained = view.trained
    if note.kind not in _LAYOUT_KINDS or trained.layout is None:
        return False
    misplaced = view.sglang and IDS in view.draft.config and note.severity != "note"
    return not misplaced and all(served[phase] == trained.layout for phase in phases)


def _said(notes: Iterable[Note], phase: Phase) -> bool:
    return any(n.severity == "error" and n.kind in _LAYOUT_KINDS and phase in n.phases for n in notes)


def _unrecorded(view: View) -> list[LintFinding]:
    """The default layers, served to a draft that does not say on which it was trained."""
    trained, served = view.trained, _served(view)
    if not trained.guessed or any(served[phase] != trained.layout for phase in Phase):
        return []
    return [
        LintFinding(
            NO_FAULT,
            "note",
            view.draft.where,
            f"the config names no layers: the engine serves its default, boundaries {trained.layout}, and that the draft "
            "was trained on them is an assumption",
            _SAY,
        )
    ]


def _remedy(view: View, trained: Layout) -> str:
    if not view.trained.certain:
        return _SAY
    if view.engine.name == "tensorrt-llm" and 0 in trained:
        return (
            "TensorRT-LLM cannot capture the embedding, boundary 0 (its id -1 is the state after the final norm): "
            "serve the draft with another engine, or retrain on boundaries from 1"
        )
    cure = f"ake the engine serve {trained} (`wiring patch` plans it for SGLang), or retrain on what it serves"
    if view.trained.said:
        return f"M{cure}"
    return f"Confirm what was trained (--trained B,B,B, or `wiring search`), then m{cure}"


def _fed(layout: Layout | None) -> str:
    return "nothing is served" if layout is None else f"served boundaries {layout}"


def _words(phases: Iterable[Phase]) -> str:
    return ", ".join(_NAMES[phase] for phase in phases)
