"""Plan the cure for one SGLang release: the smallest change that serves the trained layout in every phase.

Three forms, least invasive first. *config*: other ids in a copy of the draft's config. *plugin*: the -1 convention by
SGLang's own plugin entry point, set by an environment variable of the server. *source*: the -1 convention, and graphs
that are captured on the draft's ids, by edits of SGLang's files. Under the convention id -1 is the embedding and every
other id an output id; a config without -1 is served as before. One exception: where graphs of verify are captured on
the default layers (0.4.9 to 0.5.10.post1), the edits of that make them hold the ids of every draft (`Cure.notes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wiring.engines.engine_inputs import Target
from wiring.engines.resolve import ServedLayout, served_layout
from wiring.engines.sglang import SUPPORTED
from wiring.engines.versions import parse_version
from wiring.errors import WiringError
from wiring.layers import IdConvention, Layout, Phase, check_layout, from_boundaries
from wiring.patch.draft_copy import preview
from wiring.patch.fix_kinds import EMBEDDING_SWITCH, Form, with_ids
from wiring.patch.source import GRAPH_SITES, Change, Edit, Refusal, SglangTree, needed_edits, prepare

PLUGINS_SINCE = "0.5.11"  # the first release with sglang/srt/plugins (its wheel against that of 0.5.10.post1)
_EVERY = tuple(Phase)
_GRAPHS_NOTE = (
    "verify changes for every draft whose config names layer ids, also without -1: its CUDA graphs then hold these, "
    "where this release captures them on its default layers"
)


@dataclass(frozen=True)
class Cure:
    """One change that serves the wanted layout in `phases`.

    `ids` are the draft's ids under it, `environment` what the server needs, `edits` the source edits for a target of
    `family` (its architecture); `changes` says in words what is touched, `reason` why nothing smaller does, and `notes`
    what changes for other drafts on the same SGLang.
    """

    form: Form
    family: str
    ids: tuple[int, ...]
    served: ServedLayout
    phases: tuple[Phase, ...]
    changes: tuple[str, ...]
    reason: str
    environment: Mapping[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shortfall:
    """A form that does not do: the phases that it would cure, and why not the rest."""

    form: Form
    phases: tuple[Phase, ...]
    reason: str


@dataclass(frozen=True)
class CurePlan:
    """`cures`, least invasive first, each in every phase; `short`: the forms that do not do; `advice` in a sentence."""

    version: str
    wanted: Layout
    now: ServedLayout
    cures: tuple[Cure, ...]
    short: tuple[Shortfall, ...]
    advice: str

    @property
    def nothing_to_do(self) -> bool:
        """Whether the wanted layout is served already."""
        return _phases(self.now, self.wanted) == _EVERY

    def cure(self, form: str = "") -> Cure:
        """The cure of this form, by default the first. Raises WiringError, with the reason, where there is none."""
        if form and form not in list(Form):
            raise WiringError("no such form", where="--form", expected=", ".join(Form), found=form)
        for cure in self.cures:
            if form in ("", cure.form):
                return cure
        told = [short.reason for short in self.short if short.form == form]
        raise WiringError(
            f"the {form} form does not do here" if form else "no cure is known",
            where=f"SGLang {self.version}",
            found=told[0] if told else self.advice,
        )


def plan_cures(
    version: str,
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    wanted: Layout,
    *,
    tree: SglangTree | None = None,
    cuda_graphs: bool = True,
) -> CurePlan:
    """The cures by which SGLang `version` serves `wanted` to this draft on this target, in every phase.

    The configs are parsed config.json files. `tree` is SGLang's own code, without which no source edit is planned.
    Raises WiringError for a release or a target without rules, and for boundaries that the target does not have.
    """
    target = Target.from_config(target_config)
    check_layout(wanted, target.num_layers)
    now = served_layout("sglang", version, target_config, draft_config, cuda_graphs=cuda_graphs)

    if _phases(now, wanted) == _EVERY:
        return CurePlan(version, wanted, now, (), (), f"nothing to do: SGLang {version} serves {wanted} in every phase")
    in_order = tuple(sorted(set(wanted)))
    if wanted != in_order:
        advice = f"no cure known: SGLang captures each state once, in ascending order; retrain with slots {in_order}"
        return CurePlan(version, wanted, now, (), (), advice)

    def served(ids: tuple[int, ...], **more: Any) -> ServedLayout:
        asked = with_ids(draft_config, ids)
        return served_layout("sglang", version, target_config, asked, cuda_graphs=cuda_graphs, **more)

    forms = (
        _config(target, wanted, served),
        _plugin(version, target, wanted, served),
        _source(target, wanted, served, tree),
    )
    cures = tuple(found for found in forms if isinstance(found, Cure))
    short = tuple(found for found in forms if isinstance(found, Shortfall))
    return CurePlan(version, wanted, now, _with_reasons(cures, short), short, _advice(version, cures, short))


def source_change(cure: Cure, tree: SglangTree, also: Mapping[str, Any] | None = None) -> Change:
    """The edits of a source cure, computed for `tree`; nothing is written. `also` goes into the record beside the ids.

    Raises WiringError where an edit is refused.
    """
    plan = {"ids": list(cure.ids), **(also or {})}
    return prepare(tree, cure.family, plan, {edit.site.name for edit in cure.edits})


def cure_diff(cure: Cure, draft: Path, tree: SglangTree) -> str:
    """The whole change as text: the draft's config.json, the server's environment, and SGLang's files as unified diffs.

    Nothing is written. Raises WiringError where an edit is refused.
    """
    text = preview(draft, cure)
    return f"{text}\n\n{source_change(cure, tree).diff()}" if cure.edits else text


def _config(target: Target, wanted: Layout, served: Callable[..., ServedLayout]) -> Cure | Shortfall:
    """Other ids alone: as boundaries, or as output ids, whichever this release reads so in more phases."""
    spelt = [tuple(wanted), from_boundaries(wanted, IdConvention.OUTPUT_ID)]
    tried = [(ids, served(ids)) for ids in spelt]
    ids, layout = max(tried, key=lambda one: len(_phases(one[1], wanted)))
    phases = _phases(layout, wanted)
    if phases == _EVERY:
        changes = (_ids_change(ids),)
        return Cure(Form.CONFIG, target.architecture, ids, layout, phases, changes, "no code changes")
    if phases:
        others = ", ".join(f"{phase} keeps {layout[phase]}" for phase in Phase if phase not in phases)
        return Shortfall(Form.CONFIG, phases, f"ids {list(ids)} cure {', '.join(phases)} alone: {others}")
    why = "; ".join(str(note) for note in layout.notes if note.severity == "error")
    return Shortfall(Form.CONFIG, (), f"no ids make this release serve {wanted}" + (f": {why}" if why else ""))


def _plugin(
    version: str, target: Target, wanted: Layout, served: Callable[..., ServedLayout]
) -> Cure | Shortfall | None:
    """The -1 convention from outside; None where the layout does not hold the embedding, or -1 is served as it is."""
    ids = from_boundaries(wanted, IdConvention.OUTPUT_ID)
    if 0 not in wanted or _phases(served(ids), wanted) == _EVERY:
        return None
    if parse_version(version) < parse_version(PLUGINS_SINCE):
        return Shortfall(Form.PLUGIN, (), f"SGLang loads plugins from {PLUGINS_SINCE} on")
    if version != SUPPORTED:
        return Shortfall(Form.PLUGIN, (), f"the plugin is proven on SGLang {SUPPORTED} alone")
    layout = served(ids, embedding_plugin=True)
    phases = _phases(layout, wanted)
    if phases != _EVERY:
        return Shortfall(Form.PLUGIN, phases, f"with the plugin, ids {list(ids)} serve {layout.verify} in verify")
    changes = (_ids_change(ids), f"{EMBEDDING_SWITCH}=1 in the server's environment")
    return Cure(Form.PLUGIN, target.architecture, ids, layout, phases, changes, "", {EMBEDDING_SWITCH: "1"})


def _source(
    target: Target, wanted: Layout, served: Callable[..., ServedLayout], tree: SglangTree | None
) -> Cure | Shortfall:
    """Edits of SGLang's files; with them a -1 is read as the convention has it, and graphs hold the draft's ids."""
    if tree is None:
        return Shortfall(Form.SOURCE, (), "SGLang's own files are not at hand (--sglang)")
    edits = needed_edits(tree, target.architecture)
    if isinstance(edits, Refusal):
        return Shortfall(Form.SOURCE, (), str(edits))
    if wanted[-1] >= target.num_layers:
        return Shortfall(Form.SOURCE, (), "no edit captures the last layer's output: retrain without that slot")
    if 0 not in wanted:  # the second disease alone
        edits = tuple(edit for edit in edits if edit.site.name in GRAPH_SITES)
    if not edits:
        return Shortfall(Form.SOURCE, (), "these files need no edit: a config does")
    ids = from_boundaries(wanted, IdConvention.OUTPUT_ID)
    if 0 not in wanted:  # without -1 ids keep the meaning that this release gives them
        spelt = [one for one in (tuple(wanted), ids) if served(one).prefill == wanted]
        if not spelt:
            return Shortfall(Form.SOURCE, (), f"no ids make prefill serve {wanted}, with the edits or without")
        ids = spelt[0]
    layout = ServedLayout(wanted, wanted, wanted)
    changes = (_ids_change(ids), *dict.fromkeys(f"{edit.site}: {edit.reason}" for edit in edits))
    notes = (_GRAPHS_NOTE,) if any(edit.site.name in GRAPH_SITES for edit in edits) else ()
    return Cure(Form.SOURCE, target.architecture, ids, layout, _EVERY, changes, "", edits=edits, notes=notes)


def _with_reasons(cures: tuple[Cure, ...], short: tuple[Shortfall, ...]) -> tuple[Cure, ...]:
    """Each cure with why no smaller form does: their shortfalls, or that a smaller one would do as well."""
    order, reasoned = list(Form), []
    for cure in cures:
        smaller = [f for f in order if order.index(f) < order.index(cure.form)]
        lacking = [f"{s.form}: {s.reason}" for s in short if s.form in smaller]
        doing = [c.form for c in cures if c.form in smaller]
        why = "; ".join([*(f"{form} does it with less" for form in doing), *lacking]) or cure.reason
        reasoned.append(replace(cure, reason=why))
    return tuple(reasoned)


def _advice(version: str, cures: tuple[Cure, ...], short: tuple[Shortfall, ...]) -> str:
    if cures:
        first = cures[0]
        return f"{first.form}: " + "; ".join(first.changes)
    return f"no cure known for SGLang {version}: " + "; ".join(f"{s.form}: {s.reason}" for s in short)


def _phases(served: ServedLayout, wanted: Layout) -> tuple[Phase, ...]:
    """The phases in which this is what is served."""
    return tuple(phase for phase in Phase if served[phase] == wanted)


def _ids_change(ids: tuple[int, ...]) -> str:
    return f"eagle_aux_hidden_state_layer_ids {list(ids)} in eagle_config of a copy of the draft"
