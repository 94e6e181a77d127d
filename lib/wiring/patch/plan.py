"""Plan the fix for one SGLang release: the smallest change that serves the trained layout in every phase.

Three kinds, least invasive first. *config*: other ids in a copy of the draft's config. *plugin*: the -1 convention
through SGLang's plugin entry point, switched on by an environment variable of the server. *source*: a patched copy of
the package sglang, with the -1 convention and CUDA graphs captured on the draft's ids. Under the -1 convention id -1 is
the embedding and every other id an output id; a config without -1 is served as before. One exception: the edits against
Bug 2 (verify under CUDA graphs ignores the draft's ids, 0.4.9 to 0.5.10.post1) apply to every draft (`Fix.notes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wiring.engines.engine_inputs import Target
from wiring.engines.resolve import ServedLayout, served_layout
from wiring.engines.sglang import SUPPORTED
from wiring.engines.versions import parse_version
from wiring.errors import WiringError
from wiring.layers import IdConvention, Layout, Phase, check_layout, from_boundaries
from wiring.patch.fix_kinds import EMBEDDING_SWITCH, FixKind, with_ids
from wiring.patch.source import GRAPH_SITES, Edit, Refusal, SglangTree, needed_edits

PLUGINS_SINCE = "0.5.11"  # the first release with sglang/srt/plugins (its wheel against that of 0.5.10.post1)
_EVERY = tuple(Phase)
_GRAPHS_NOTE = (
    "verify changes for every draft whose config names layer ids, also without -1: its CUDA graphs then hold these, "
    "where this release captures them on its default layers"
)


@dataclass(frozen=True)
class Fix:
    """One change that serves the wanted layout in `phases`.

    `ids` are the draft's ids under it, `environment` what the server needs, `edits` the source edits for a target of
    `family` (its architecture). `changes` lists in words what changes, `reason` says why no smaller fix suffices, and
    `notes` what changes for other drafts on the same SGLang.
    """

    form: FixKind
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
    """A kind of fix that does not suffice: the phases that it would fix, and why not the others."""

    form: FixKind
    phases: tuple[Phase, ...]
    reason: str


@dataclass(frozen=True)
class FixPlan:
    """The possible `fixes`, least invasive first; `short`: the kinds that do not suffice; `advice` in one sentence."""

    version: str
    wanted: Layout
    now: ServedLayout
    fixes: tuple[Fix, ...]
    short: tuple[Shortfall, ...]
    advice: str

    @property
    def nothing_to_do(self) -> bool:
        """Return whether the wanted layout is served already."""
        return _phases(self.now, self.wanted) == _EVERY

    def fix(self, form: str = "") -> Fix:
        """Return the fix of this kind, by default the first. Raises WiringError: no-such-form, no-fix."""
        if form and form not in list(FixKind):
            raise WiringError(
                "no such kind of fix", code="no-such-form", where="--form", expected=", ".join(FixKind), found=form
            )
        for fix in self.fixes:
            if form in ("", fix.form):
                return fix
        reasons = [short.reason for short in self.short if short.form == form]
        raise WiringError(
            f"the {form} fix does not serve the layout here" if form else "no fix is known",
            code="no-fix",
            where=f"SGLang {self.version}",
            found=reasons[0] if reasons else self.advice,
        )


def plan_fixes(
    version: str,
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    wanted: Layout,
    *,
    tree: SglangTree | None = None,
    cuda_graphs: bool = True,
) -> FixPlan:
    """Return the fixes by which SGLang `version` serves `wanted` to this draft on this target, in every phase.

    The configs are parsed config.json files. `tree` is SGLang's own code; without it no source edit is planned.
    Raises WiringError for a release or a target without rules, and for boundaries that the target does not have.
    """
    target = Target.from_config(target_config)
    check_layout(wanted, target.num_layers)
    now = served_layout("sglang", version, target_config, draft_config, cuda_graphs=cuda_graphs)

    if _phases(now, wanted) == _EVERY:
        return FixPlan(version, wanted, now, (), (), f"nothing to do: SGLang {version} serves {wanted} in every phase")
    in_order = tuple(sorted(set(wanted)))
    if wanted != in_order:
        advice = f"no fix known: SGLang captures each state once, in ascending order; retrain with slots {in_order}"
        return FixPlan(version, wanted, now, (), (), advice)

    def served(ids: tuple[int, ...], **more: Any) -> ServedLayout:
        asked = with_ids(draft_config, ids)
        return served_layout("sglang", version, target_config, asked, cuda_graphs=cuda_graphs, **more)

    forms = (
        _config(target, wanted, served),
        _plugin(version, target, wanted, served),
        _source(target, wanted, served, tree),
    )
    fixes = tuple(found for found in forms if isinstance(found, Fix))
    short = tuple(found for found in forms if isinstance(found, Shortfall))
    return FixPlan(version, wanted, now, _with_reasons(fixes, short), short, _advice(version, fixes, short))


def _config(target: Target, wanted: Layout, served: Callable[..., ServedLayout]) -> Fix | Shortfall:
    """Plan other ids: as boundaries or as output ids, whichever this release serves right in more phases."""
    candidates = [tuple(wanted), from_boundaries(wanted, IdConvention.OUTPUT_ID)]
    tried = [(ids, served(ids)) for ids in candidates]
    ids, layout = max(tried, key=lambda one: len(_phases(one[1], wanted)))
    phases = _phases(layout, wanted)
    if phases == _EVERY:
        changes = (_ids_change(ids),)
        return Fix(FixKind.CONFIG, target.architecture, ids, layout, phases, changes, "no code changes")
    if phases:
        others = ", ".join(f"{phase} keeps {layout[phase]}" for phase in Phase if phase not in phases)
        return Shortfall(FixKind.CONFIG, phases, f"ids {list(ids)} fix {', '.join(phases)} only: {others}")
    why = "; ".join(str(note) for note in layout.notes if note.severity == "error")
    return Shortfall(FixKind.CONFIG, (), f"no ids make this release serve {wanted}" + (f": {why}" if why else ""))


def _plugin(
    version: str, target: Target, wanted: Layout, served: Callable[..., ServedLayout]
) -> Fix | Shortfall | None:
    """Plan the plugin; None where the layout does not hold the embedding or this release serves -1 already."""
    ids = from_boundaries(wanted, IdConvention.OUTPUT_ID)
    if 0 not in wanted or _phases(served(ids), wanted) == _EVERY:
        return None
    if parse_version(version) < parse_version(PLUGINS_SINCE):
        return Shortfall(FixKind.PLUGIN, (), f"SGLang loads plugins from {PLUGINS_SINCE} on")
    if version != SUPPORTED:
        return Shortfall(FixKind.PLUGIN, (), f"the plugin is tested on SGLang {SUPPORTED} only")
    layout = served(ids, embedding_plugin=True)
    phases = _phases(layout, wanted)
    if phases != _EVERY:
        return Shortfall(FixKind.PLUGIN, phases, f"with the plugin, ids {list(ids)} serve {layout.verify} in verify")
    changes = (_ids_change(ids), f"{EMBEDDING_SWITCH}=1 in the server's environment")
    return Fix(FixKind.PLUGIN, target.architecture, ids, layout, phases, changes, "", {EMBEDDING_SWITCH: "1"})


def _source(
    target: Target, wanted: Layout, served: Callable[..., ServedLayout], tree: SglangTree | None
) -> Fix | Shortfall:
    """Plan edits of SGLang's files: -1 is the embedding, and CUDA graphs are captured on the draft's ids."""
    if tree is None:
        return Shortfall(FixKind.SOURCE, (), "SGLang's own files were not given (--sglang)")
    edits = needed_edits(tree, target.architecture)
    if isinstance(edits, Refusal):
        return Shortfall(FixKind.SOURCE, (), str(edits))
    if wanted[-1] >= target.num_layers:
        return Shortfall(FixKind.SOURCE, (), "no edit captures the last layer's output: retrain without that slot")
    if 0 not in wanted:  # Bug 2 alone
        edits = tuple(edit for edit in edits if edit.site.name in GRAPH_SITES)
    if not edits:
        return Shortfall(FixKind.SOURCE, (), "these files need no edit: the config fix suffices")
    ids = from_boundaries(wanted, IdConvention.OUTPUT_ID)
    if 0 not in wanted:  # without -1 ids keep the meaning that this release gives them
        right = [one for one in (tuple(wanted), ids) if served(one).prefill == wanted]
        if not right:
            return Shortfall(FixKind.SOURCE, (), f"no ids make prefill serve {wanted}, with or without the edits")
        ids = right[0]
    layout = ServedLayout(wanted, wanted, wanted)
    changes = (_ids_change(ids), *dict.fromkeys(f"{edit.site}: {edit.reason}" for edit in edits))
    notes = (_GRAPHS_NOTE,) if any(edit.site.name in GRAPH_SITES for edit in edits) else ()
    return Fix(FixKind.SOURCE, target.architecture, ids, layout, _EVERY, changes, "", edits=edits, notes=notes)


def _with_reasons(fixes: tuple[Fix, ...], short: tuple[Shortfall, ...]) -> tuple[Fix, ...]:
    """Add to each fix why no smaller kind suffices, or that a smaller one suffices too."""
    order, reasoned = list(FixKind), []
    for fix in fixes:
        smaller = [f for f in order if order.index(f) < order.index(fix.form)]
        lacking = [f"{s.form}: {s.reason}" for s in short if s.form in smaller]
        doing = [c.form for c in fixes if c.form in smaller]
        why = "; ".join([*(f"{form} suffices too and changes less" for form in doing), *lacking]) or fix.reason
        reasoned.append(replace(fix, reason=why))
    return tuple(reasoned)


def _advice(version: str, fixes: tuple[Fix, ...], short: tuple[Shortfall, ...]) -> str:
    if fixes:
        first = fixes[0]
        return f"{first.form}: " + "; ".join(first.changes)
    return f"no fix known for SGLang {version}: " + "; ".join(f"{s.form}: {s.reason}" for s in short)


def _phases(served: ServedLayout, wanted: Layout) -> tuple[Phase, ...]:
    """Return the phases in which `wanted` is served."""
    return tuple(phase for phase in Phase if served[phase] == wanted)


def _ids_change(ids: tuple[int, ...]) -> str:
    return f"eagle_aux_hidden_state_layer_ids {list(ids)} in eagle_config of a copy of the draft"
