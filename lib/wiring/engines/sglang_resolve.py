"""Resolve which boundaries SGLang serves, from the tables in `sglang_layers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from wiring.engines import sglang_layers as table
from wiring.engines.engine_inputs import IDS, ServeRequest, Target, misplaced_layer_ids
from wiring.engines.served_layout import ASCENDING, Note, ServedLayout
from wiring.engines.sglang_layers import Embedding, Ids, LayerRule
from wiring.engines.versions import in_force, parse_version
from wiring.errors import WiringError
from wiring.layers import Layout, Phase

EMBEDDING_ID = -1  # the id of the embedding among output ids
_DECODE = (Phase.VERIFY, Phase.DRAFT_EXTEND)
_SLOTS = 3  # states that fc takes by default

Answer = tuple[Layout | None, tuple[Note, ...]]  # what one forward feeds (None: it fails), and notes


def requested_ids(draft_config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the layer ids that SGLang reads from the draft's config; None if it takes its default layers.

    Only the key nested in `eagle_config` is read; a key at the top level is ignored without a message. Raises
    WiringError if the key holds anything but whole numbers, on which the server stops.
    """
    eagle = draft_config.get("eagle_config")
    ids = eagle.get(IDS) if isinstance(eagle, Mapping) else None
    if ids is None:
        return None
    if not isinstance(ids, list | tuple) or any(not isinstance(i, int) or isinstance(i, bool) for i in ids):
        raise WiringError(
            "not a list of layer ids",
            code="layer-ids-not-a-list",
            where=f"eagle_config.{IDS}",
            expected="whole numbers such as [1, 29, 57]",
            found=ids,
            remedy="Write the ids as a list of whole numbers",
        )
    return tuple(ids)


@dataclass(frozen=True)
class _Case:
    """One release, target and draft. `built` is the number of states that the server builds `fc` for."""

    release: Version
    target: Target
    rule: LayerRule
    built: int
    plugin: bool


def resolve_served_layout(version: str | None, request: ServeRequest) -> ServedLayout:
    """Return the layout as `wiring.engines.resolve.served_layout` does, for SGLang; `engine_ids` is not used."""
    release, target, draft = parse_version(version or table.NEWEST, "sglang"), request.target, request.draft_config
    notes = _on_the_release(release)
    rule = rule_of(target.architecture, release)
    if rule is None:
        return ServedLayout.in_all_phases(None, *notes, _unsupported(target, release))
    try:
        written = requested_ids(draft)
    except WiringError as error:
        return ServedLayout.in_all_phases(None, *notes, Note(3, "error", str(error), error.remedy))
    ids = written if release >= Version(table.IDS_READ_SINCE) else None
    notes += _on_the_config(draft, ids, release)
    config = replace(request, slots=None)
    fc_of_three = release <= Version(table.FC_OF_THREE_UNTIL)
    built = _SLOTS if fc_of_three else config.fc_slots(len(ids or ()), _SLOTS)
    taken = request.fc_slots(len(written or ()), _SLOTS)
    if built != taken:
        text = f"the server builds fc for {built} states, the draft's takes {taken}: the weights do not load"
        remedy = "Make num_aux_hidden_states and the ids agree with fc, on SGLang 0.5.12 or newer"
        notes += (Note(3, "error", text, remedy),)
    if any(note.severity == "error" for note in notes):
        return ServedLayout.in_all_phases(None, *notes)
    case = _Case(release, target, rule, built, request.embedding_plugin)
    prefill, decode, more = _phases(case, ids, request.cuda_graphs)
    return ServedLayout(prefill, decode, decode, notes + more + _partial_sums(case, request.tp_size))


def _phases(case: _Case, ids: tuple[int, ...] | None, graphs: bool) -> tuple[Layout | None, Layout | None, tuple]:
    """Return the layouts of prefill and of decoding, and the notes on both."""
    if not graphs or ids is None or case.release > Version(table.GRAPHS_ON_DEFAULTS_UNTIL):
        served, notes = _captured(case, ids)
        return served, served, notes
    decode, also = _captured(case, None)
    marked = _layers(case, None)[0] if case.rule.flags else ()
    prefill, notes = _captured(case, ids, marked)
    also = tuple(replace(note, phases=_DECODE) for note in also)
    if _never_starts(case, ids):
        decode = None
    elif decode != prefill:
        text = (
            f"CUDA graphs of verify are captured before the ids {list(ids)} are set: replayed rounds serve boundaries "
            f"{decode}, the default layers; the ids only apply in prefill and in rounds without graphs"
        )
        also += (Note(1, "error", text, "Use SGLang 0.5.11 or newer, or --disable-cuda-graph", _DECODE),)
    return prefill, decode, notes + tuple(note for note in also if note not in notes)


def rule_of(architecture: str, release: Version) -> LayerRule | None:
    """Return the rule for this architecture in this release; None if it cannot serve an EAGLE-3 draft.

    Raises WiringError for an architecture that is in no table.
    """
    if architecture in table.WITHOUT:
        return None
    member = table.ARCHITECTURES.get(architecture)
    if member is None:
        raise WiringError(
            f"no layer-id rule of SGLang {release} is known for this target",
            code="architecture-unknown",
            where=architecture,
            expected=", ".join(sorted(table.ARCHITECTURES)),
            found=architecture,
            remedy="Compare captured states instead: the capture needs no rule",
        )
    if release < Version(member.since):
        return None
    return in_force(table.FAMILIES[member.family], release)


def _on_the_release(release: Version) -> tuple[Note, ...]:
    if release < Version(table.OLDEST):
        raise WiringError(
            "no rule is known for this release of SGLang",
            code="engine-release-unknown",
            where="sglang",
            expected=f"{table.OLDEST} to {table.NEWEST}",
            found=str(release),
            remedy="Compare captured states instead: the capture needs no rule",
        )
    if release > Version(table.NEWEST):
        text = f"SGLang {release} is newer than the newest release read: the rules of {table.NEWEST} are assumed"
        return (Note(0, "warning", text, "Confirm the layout by capture"),)
    if release.is_prerelease or release.is_devrelease or release.local:
        text = f"SGLang {release} was not read itself: the rules of the released versions around it are assumed"
        return (Note(0, "note", text, "Confirm the layout by capture"),)
    return ()


def _unsupported(target: Target, release: Version) -> Note:
    member = table.ARCHITECTURES.get(target.architecture)
    remedy = f"It can from SGLang {member.since} on" if member else "Serve it with another engine"
    text = f"{target.architecture} cannot serve an EAGLE-3 draft in SGLang {release}: the server stops at its start"
    return Note(1, "error", text, remedy)


def _on_the_config(config: Mapping[str, Any], ids: tuple[int, ...] | None, release: Version) -> tuple[Note, ...]:
    eagle, notes = config.get("eagle_config"), []
    if isinstance(eagle, Mapping) and eagle.get("use_aux_hidden_state", True) is False:
        text = "use_aux_hidden_state is false: the draft is fed the target's last state alone"
        return (Note(3, "error", text, "Remove use_aux_hidden_state from eagle_config"),)
    if IDS in config:
        if ids is None:
            text = f"{IDS} is at the top level and is ignored: nest it in eagle_config"
            notes.append(Note(1, "warning", text, f"Move {IDS} into eagle_config"))
        elif tuple(config[IDS] or ()) != ids:
            text = f"{IDS} is {config[IDS]} at the top level, {list(ids)} in eagle_config: only the latter is read"
            notes.append(Note(1, "warning", text, "Remove the key at the top level"))
    if ids is None and release < Version(table.IDS_READ_SINCE):
        text = f"SGLang {release} reads no layer ids from the draft's config: its default layers are served"
        notes.append(Note(1, "warning", text, f"SGLang reads them from {table.IDS_READ_SINCE} on"))
    elif ids is None:
        bad = eagle is not None and not isinstance(eagle, Mapping)
        why = "eagle_config is not an object" if bad else "no layer ids in eagle_config"
        remedy = "Record the trained layers' ids"
        if misplaced := misplaced_layer_ids(config):
            why = f"ids {misplaced[1]} are under {misplaced[0]}, which SGLang does not read"
            remedy = f"Write the trained layers' ids under eagle_config.{IDS}"
        notes.append(Note(1, "warning", f"{why}: SGLang's default layers are served", remedy))
    return tuple(notes)


def _layers(case: _Case, ids: tuple[int, ...] | None) -> tuple[tuple[int, ...], tuple[Note, ...]]:
    """Return the layers before which states are taken, as SGLang's setter computes them, and a note on the rule."""
    rule, num_layers = case.rule, case.target.num_layers
    if ids is None:
        # Not `default_layout`: the server takes these three even where they coincide or do not exist.
        layers = tuple(b + rule.one_later for b in (2, num_layers // 2, num_layers - 3))
        if not rule.one_later:
            return layers, ()
        return layers, (Note(2, "note", f"the default of {case.target.architecture} is one layer later than usual"),)
    if rule.ids is Ids.FIRST_IS_ONE:
        add_one = ids[:1] == (1,) or (case.plugin and EMBEDDING_ID in ids)
    else:
        add_one = rule.ids is Ids.PLUS_ONE or max(ids, default=0) != num_layers
    text = "ids are output ids (boundary = id + 1)" if add_one else "ids are boundaries"
    return tuple(i + 1 if add_one else i for i in ids), (Note(2, "note", text),)


def _never_starts(case: _Case, ids: tuple[int, ...] | None) -> bool:
    """Return whether SGLang's setter itself raises: it marks layers by index, and one does not exist."""
    num_layers = case.target.num_layers
    return case.rule.flags and any(not -num_layers <= layer < num_layers for layer in _layers(case, ids)[0])


def _captured(case: _Case, ids: tuple[int, ...] | None, marked: tuple[int, ...] = ()) -> Answer:
    """Return what a forward feeds with layers set from these ids (None: the default) and layers `marked` before."""
    layers, notes = _layers(case, ids)
    rule, num_layers = case.rule, case.target.num_layers
    if case.plugin and EMBEDDING_ID in (ids or ()) and rule.ids is Ids.FIRST_IS_ONE and layers[0] == 1:
        return None, (
            *notes,
            Note(3, "error", "boundary 1 cannot come first together with the embedding", "Sort the ids"),
        )
    if rule.flags:
        if _never_starts(case, ids):
            text = f"a layer of {list(layers)} is not in a target of {num_layers} layers: the server stops at its start"
            return None, (*notes, Note(3, "error", text, "Name layers that exist"))
        reached = [layer % num_layers for layer in layers]  # a Python index: negative ones count from the end
    else:
        reached = [layer for layer in layers if 0 <= layer < num_layers + rule.last and not rule.nothing]
    captured = tuple(sorted({*reached, *marked}))
    if rule.flags and min(layers, default=0) < 0:
        text = f"a negative id counts from the last layer here: {list(captured)} are captured"
        notes += (Note(2, "warning", text, "Name the layer itself"),)
    if not set(marked) <= set(reached):
        text = f"layers marked for the CUDA graphs stay marked: prefill captures {list(captured)}"
        notes += (Note(3, "error", text, "Use SGLang 0.5.11 or newer, or --disable-cuda-graph", (Phase.PREFILL,)),)
    failure = _failure(case, layers, captured, bool(marked))
    if failure is not None:
        return None, (*notes, failure)
    if len(captured) == 1:
        text = "a single state is as wide as the draft's own: SGLang then skips fc"
        notes += (Note(3, "error", text, "Ask for as many different layers as fc has slots"),)
    if not marked and tuple(reached) != captured and len(set(layers)) == len(captured):
        notes += (ASCENDING,)
    if 0 in captured and rule.embedding is Embedding.OVERWRITTEN:
        text = "the embedding is taken without a copy, and the layers add to it in place: its slot holds the last state"
        notes += (Note(5, "error", text, "Use a release that copies it (0.5.21 or newer)"),)
    return captured, notes


def _failure(case: _Case, layers: tuple[int, ...], captured: Layout, marked: bool) -> Note | None:
    """Return why this forward, or the draft's forward after it, raises; None if it does not."""
    rule, built, asked = case.rule, case.built, len(layers)
    if 0 in captured and rule.embedding is Embedding.RAISES:
        text = f"the embedding cannot be captured in SGLang {case.release}: {Embedding.RAISES}, at the first prefill"
        return Note(3, "error", text, "Use 0.5.14 or newer on DeepSeek, 0.5.22 or newer on any model")
    lost = len(captured) < asked and not marked
    if lost and (rule.counted or len(captured) != 1):
        why = "some are named twice" if len(set(layers)) < asked else "the others do not exist in the target"
        if rule.nothing:
            why = "this release marks no layer"
        text = f"only {len(captured)} of {asked} states are captured ({why}): the server stops at its first prefill"
        return Note(3, "error", text, "Name as many different layers as fc has slots, each within the target")
    if len(captured) not in (built, 1):
        text = f"{len(captured)} states are captured, fc takes {built}: the server stops at its first prefill"
        return Note(3, "error", text, "Name as many different layers as fc has slots, each within the target")
    return None


def _partial_sums(case: _Case, tp_size: int) -> tuple[Note, ...]:
    since_until = table.PARTIAL_SUMS.get(table.ARCHITECTURES[case.target.architecture].family)
    if tp_size < 2 or since_until is None or not Version(since_until[0]) <= case.release <= Version(since_until[1]):
        return ()
    text = (
        f"on {tp_size} ranks, where FlashInfer's all-reduce fusion is on, each rank captures its own partial sum "
        f"(up to 2048 tokens a forward; {table.FUSION})"
    )
    off = Version(table.FUSION_OFF_SINCE) <= case.release
    remedy = "--enforce-disable-flashinfer-allreduce-fusion" if off else "Use a release that captures complete states"
    return (Note(4, "warning", text, remedy),)
