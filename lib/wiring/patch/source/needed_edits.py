"""Determine the edits that a tree needs to serve a draft's id -1 as the embedding in every phase.

The answer comes from the code, not from the release's number: a backport or a build from a branch is read like any
other, and code of an unknown shape is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from wiring.engines.sglang_layers import ARCHITECTURES, IDS_READ_SINCE
from wiring.engines.versions import parse_version
from wiring.layers import Phase
from wiring.patch.source.edit_site import Edit, Refusal, Site, read_text
from wiring.patch.source.graph_edits import (
    RUNNER,
    calls_setter,
    calls_without_ids,
    edit_dummy_call,
    edit_graph_call,
    edit_order,
    has_method,
    ids_stand_early,
)
from wiring.patch.source.known_shapes import FAMILIES, Capture, Family, Rule
from wiring.patch.source.model_edits import SETTER, UNKNOWN, capture_kind, edit_capture, edit_setter, setter_kind
from wiring.patch.source.sglang_tree import SglangTree

EVERY = tuple(Phase)
GRAPH_RUNNER = "srt/model_executor/cuda_graph_runner.py"
MODEL_RUNNER = "srt/model_executor/model_runner.py"

SETTER_REASON = "an id -1 makes every id an output id; other ids keep their meaning"
RAISES_REASON = "before layer 0 there is no residual: the embedding is captured as a clone"
OVERWRITTEN_REASON = "the captured embedding is a clone, which later layers do not add to"
GRAPH_REASON = "graphs of verify are captured on the draft's ids, not on the default layers"
ORDER_REASON = "the draft's ids are read before the graphs are captured"
DUMMY_REASON = "the warm-up does not set the default layers"


@dataclass(frozen=True)
class Rewritten:
    """One file before and after its edits, and the sites that were edited before."""

    path: str
    before: bytes
    after: bytes
    done: tuple[Site, ...]


def needed_edits(tree: SglangTree, family: str) -> tuple[Edit, ...] | Refusal:
    """Return the edits that make this tree serve a draft's id -1 as the embedding in all phases.

    `family` is a model family of `wiring.engines.sglang_layers`, or an architecture as a config.json names it. Edits
    that are done already are included; `rewrite` leaves them. Empty: the tree serves -1 unedited. A `Refusal` names
    the site and the code found there; then nothing is edited.
    """
    name = family
    if family in ARCHITECTURES:
        member = ARCHITECTURES[family]
        name = member.family
        if tree.version is not None and parse_version(tree.version) < parse_version(member.since):
            site = Site("setter", f"srt/models/{name}.py", family)
            return Refusal(site, f"{family} serves no EAGLE-3 draft before SGLang {member.since}: upgrade SGLang")
    known = FAMILIES.get(name)
    if known is None:
        families = ", ".join(sorted(FAMILIES))
        return Refusal(
            Site("setter", "srt/models", name), f"source edits are known for these families only: {families}"
        )
    if known.without_setter and not _has_setter(tree, *known.setter):
        known = FAMILIES[known.without_setter]
    edits: list[Edit] = []
    for part in (partial(_model_edits, tree, known), partial(_graph_edits, tree)):
        found = part()
        if isinstance(found, Refusal):
            return found
        edits += found
    checked = rewrite(tree, tuple(edits))
    return checked if isinstance(checked, Refusal) else tuple(edits)


def rewrite(tree: SglangTree, edits: Sequence[Edit]) -> tuple[Rewritten, ...] | Refusal:
    """Return every file of these edits before and after, or a refusal; nothing is written."""
    files: dict[str, list[Edit]] = {}
    for edit in edits:
        files.setdefault(edit.site.path, []).append(edit)
    rewritten = []
    for path, several in files.items():
        source = _source(tree, several[0].site)
        if isinstance(source, Refusal):
            return source
        before, text, encoding = source
        done = []
        for edit in several:
            result = edit.transform(text)
            if isinstance(result, Refusal):
                return result
            text = result.new_text
            done += [edit.site] if result.already_done else []
        after = text.encode(encoding)
        try:
            compile(after, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return Refusal(several[0].site, f"the edited file would not be valid Python ({error})")
        rewritten.append(Rewritten(path, before, after, tuple(done)))
    return tuple(rewritten)


def _model_edits(tree: SglangTree, family: Family) -> list[Edit] | Refusal:
    """Return the edits of a model's files: its setter, and the forward that captures."""
    module, owner = family.setter
    site = _setter_site(module, owner)
    source = _source(tree, site)
    setter = source if isinstance(source, Refusal) else setter_kind(source[1], site, owner)
    if isinstance(setter, Refusal):
        return setter
    if setter.rule is Rule.NO_IDS:
        return Refusal(site, f"{setter.rule.value}: upgrade SGLang to {IDS_READ_SINCE} or later")
    edits = []
    if setter.rule is Rule.FIRST_IS_ONE:
        edits.append(Edit(site, EVERY, SETTER_REASON, partial(edit_setter, site=site, class_name=owner)))
    if setter.marking:
        return edits
    module, owner = family.forward
    site = Site("capture", f"srt/models/{module}.py", f"{owner}.forward")
    source = _source(tree, site)
    kind = source if isinstance(source, Refusal) else capture_kind(source[1], site, owner)
    if isinstance(kind, Refusal):
        return kind
    if kind[0] is not Capture.SERVED:
        reason = RAISES_REASON if kind[0] is Capture.RAISES else OVERWRITTEN_REASON
        edits.append(Edit(site, EVERY, reason, partial(edit_capture, site=site, class_name=owner)))
    return edits


def _graph_edits(tree: SglangTree) -> list[Edit] | Refusal:
    """Return the edits against Bug 2; none where no code sets the default layers before the graphs."""
    graph = Site("graph", GRAPH_RUNNER, "CudaGraphRunner.__init__")
    order = Site("order", MODEL_RUNNER, f"{RUNNER}.initialize")
    dummy = Site("dummy", MODEL_RUNNER, f"{RUNNER}._dummy_run")
    edits = []
    if tree.file(GRAPH_RUNNER).is_file():
        source = _source(tree, graph)
        if isinstance(source, Refusal):
            return source
        if calls_setter(source[1]):
            edits.append(Edit(graph, (Phase.VERIFY,), GRAPH_REASON, partial(edit_graph_call, site=graph)))
    if edits:
        source = _source(tree, order)
        if isinstance(source, Refusal):
            return source
        early = ids_stand_early(source[1], order)
        if isinstance(early, Refusal):
            return early
        if not early:
            edits.append(Edit(order, (Phase.VERIFY,), ORDER_REASON, partial(edit_order, site=order)))
        if calls_setter(source[1], RUNNER, "_dummy_run"):
            edits.append(Edit(dummy, (Phase.VERIFY,), DUMMY_REASON, partial(edit_dummy_call, site=dummy)))
    stray = _stray_call(tree, edits)
    return edits if stray is None else stray


def _stray_call(tree: SglangTree, edits: Sequence[Edit]) -> Refusal | None:
    """Return a refusal where a runner sets the default layers at a place that no edit covers."""
    for path in sorted((tree.package / "srt/model_executor").glob("*.py")):
        site = Site("graph", f"srt/model_executor/{path.name}", SETTER)
        source = _source(tree, site)
        if isinstance(source, Refusal):
            return source
        reached = sum(edit.site.path == site.path and edit.site.name in ("graph", "dummy") for edit in edits)
        if SETTER in source[1] and calls_without_ids(source[1]) > reached:
            found = "\n".join(line.strip() for line in source[1].splitlines() if f"{SETTER}(" in line)
            return Refusal(site, f"the default layers are set here, and {UNKNOWN}", found)
    return None


def _setter_site(module: str, owner: str) -> Site:
    return Site("setter", f"srt/models/{module}.py", f"{owner}.{SETTER}")


def _has_setter(tree: SglangTree, module: str, owner: str) -> bool:
    source = _source(tree, _setter_site(module, owner))
    return not isinstance(source, Refusal) and has_method(source[1], owner, SETTER)


def _source(tree: SglangTree, site: Site) -> tuple[bytes, str, str] | Refusal:
    """Return a file's bytes, text and encoding."""
    try:
        data = tree.file(site.path).read_bytes()
        return data, *read_text(data)
    except FileNotFoundError:
        return Refusal(site, "this file is not in the tree")
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return Refusal(site, f"the file cannot be read ({error})")
