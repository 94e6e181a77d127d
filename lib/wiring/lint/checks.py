"""All checks in one tuple, and `lint`, which makes those for which the files suffice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from wiring.checkpoints.copy_record import read_copy_record
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, named_slots
from wiring.engines import sglang_layers, vllm
from wiring.engines.resolve import Engine, ServedLayout
from wiring.errors import WiringError
from wiring.layers import Layout, Phase, check_layout
from wiring.lint import embedding_source as embedding
from wiring.lint import flat_config as loading
from wiring.lint import forward_variants as forward
from wiring.lint import layout_check as layout
from wiring.lint import number_formats as numbers
from wiring.lint import rope_check as rope
from wiring.lint import sizes
from wiring.lint import speculation_flags as speculation
from wiring.lint import tensor_coverage as tensors
from wiring.lint import vocabulary_maps as vocabulary
from wiring.lint.findings import LintFinding, NotChecked
from wiring.lint.lint_inputs import View, read_draft_view, read_target_view
from wiring.lint.served_check import what_is_served
from wiring.lint.server_arguments import ServerView
from wiring.lint.trained_layout import Trained, copied, recorded, said
from wiring.lint.wrong_size import corrected, wrong_size

_NEWEST = {"sglang": sglang_layers.NEWEST, "vllm": vllm.NEWEST}  # what a rule without a version stands for
_SEVERITIES = ("error", "warning", "note")


class Need(Enum):
    """What a check cannot do without."""

    SHAPE = "shape"
    DRAFT_TENSORS = "draft tensors"
    TARGET = "target"
    TARGET_TENSORS = "target tensors"
    RULE = "rule"
    TRAINED = "trained"
    SERVER = "server"


@dataclass(frozen=True)
class Check:
    """One check: its name in a reader's words, the function, and what it needs."""

    name: str
    run: Callable[[View], list[LintFinding]]
    needs: tuple[Need, ...] = ()


CHECKS = (
    Check("served layout", layout.served_as_said, (Need.RULE,)),
    Check("served layout against the trained one", layout.as_trained, (Need.RULE, Need.TRAINED)),
    Check("sizes of the config against the tensors", wrong_size, (Need.SHAPE, Need.DRAFT_TENSORS)),
    Check("number of layers", loading.layers),
    Check("fields that the engine needs", loading.config),
    Check("slot count against fc", layout.slots, (Need.DRAFT_TENSORS,)),
    Check("weights that are zero", tensors.zeros, (Need.DRAFT_TENSORS,)),
    Check("widths of draft and target", sizes.widths, (Need.TARGET,)),
    Check("vocabulary of draft and target", sizes.vocabulary, (Need.TARGET,)),
    Check("vocabulary maps d2t and t2d", vocabulary.maps, (Need.DRAFT_TENSORS,)),
    Check("architecture of the draft", speculation.architecture),
    Check("algorithm against architecture", speculation.algorithm, (Need.SERVER,)),
    Check("asked arguments against resolved ones", speculation.arguments, (Need.SERVER,)),
    Check("files of the running server", speculation.served_files, (Need.SERVER,)),
    Check("config layout", forward.speculators_layout),
    Check("norm_before_residual", forward.norm_before_residual),
    Check("variants of the forward pass", forward.variants, (Need.SHAPE,)),
    Check("missing and unused tensors", tensors.consumed, (Need.SHAPE, Need.DRAFT_TENSORS)),
    Check("embedding", embedding.embedding, (Need.SHAPE, Need.DRAFT_TENSORS, Need.TARGET_TENSORS)),
    Check("head", embedding.head, (Need.SHAPE, Need.DRAFT_TENSORS, Need.TARGET_TENSORS)),
    Check("RoPE against the target", rope.base_and_scaling, (Need.TARGET,)),
    Check("context length", rope.context, (Need.TARGET,)),
    Check("sliding window", rope.window),
    Check("quantisation of the draft", numbers.quantisation),
    Check("quantisation taken over from the target", numbers.inherited, (Need.SERVER,)),
    Check("dtype against the target", numbers.dtype, (Need.TARGET,)),
    Check("KV cache of the draft", numbers.kv_cache, (Need.SERVER,)),
)


@dataclass(frozen=True)
class LintResult:
    """What lint found: the served layout by phase (None: unknown), the trained one, findings (worst first), gaps."""

    engine: str
    version: str | None
    served: ServedLayout | None
    trained: Trained
    findings: tuple[LintFinding, ...]
    not_checked: tuple[NotChecked, ...]

    @property
    def errors(self) -> tuple[LintFinding, ...]:
        """The findings of severity "error"."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def as_json(self) -> dict[str, Any]:
        """One JSON object. A phase is null where the server would fail and where its layout is not known."""
        phases = {phase.value: self.served[phase] if self.served else None for phase in Phase}
        return {
            "engine": self.engine,
            "version": self.version,
            "served": {name: None if layout is None else list(layout) for name, layout in phases.items()},
            "trained": None if self.trained.layout is None else list(self.trained.layout),
            "trained_by": self.trained.why,
            "findings": [finding.as_json() for finding in self.findings],
            "not_checked": [gap.as_json() for gap in self.not_checked],
        }


def lint(
    draft: Path,
    target: Path | None,
    engine: Engine,
    *,
    trained: Layout | None = None,
    server: ServerView | None = None,
    embedding_plugin: bool = False,
    engine_ids: tuple[int, ...] | None = None,
) -> LintResult:
    """Check a draft on an engine from files alone (evidence L).

    `draft` and `target` are model folders; config.json alone is enough, and what needs the tensors is then listed in
    `not_checked`, as everything is that needs a target where none is given. `trained` overrides the layout that the
    draft records, in boundaries. A cured copy on SGLang is taken to be served as it was made to be, by the plugin or by
    edited files; `not_checked` then says so. `server` holds a server's arguments; CUDA graphs and one rank are assumed
    without. `engine_ids` are the layer ids that TensorRT-LLM is given.

    Raises WiringError when a file is missing or damaged, and for a release that no rule is known for.
    """
    ours, wrong = corrected(read_draft_view(draft))
    theirs = read_target_view(target) if target is not None else None
    if trained is not None:
        check_layout(trained, theirs.config.num_layers if theirs else None)
        fits = {ours.slots or 0, named_slots(ours.config, ours.producer) or DEFAULT_SLOTS}
        if len(trained) not in fits:
            raise WiringError(
                "the trained layout fits neither the draft's fc nor its config",
                where="--trained",
                expected=f"{' or '.join(map(str, sorted(fits - {0})))} boundaries",
                found=",".join(map(str, trained)),
            )
    copy = read_copy_record(draft)
    served, unserved = what_is_served(
        engine, ours, theirs, server, embedding_plugin=embedding_plugin, engine_ids=engine_ids, copy=copy
    )
    layers = theirs.config.num_layers if theirs else None
    known = said(trained) if trained is not None else copied(copy)
    known = known or recorded(ours.config, ours.producer, layers, ours.slots)
    view = View(engine, ours, theirs, served, unserved, known, server, wrong)
    findings, gaps = run(view)
    version = engine.version or _NEWEST.get(engine.name)
    return LintResult(engine.name, version, served, known, findings, gaps)


def run(view: View) -> tuple[tuple[LintFinding, ...], tuple[NotChecked, ...]]:
    """Make every check whose needs are met; the rest, and whatever could not be read, is listed."""
    found: list[LintFinding] = []
    gaps = (
        [NotChecked("layout", note.text) for note in view.served.notes if note.kind == 0 and note.severity != "note"]
        if view.served
        else []
    )
    for check in CHECKS:
        lacking = [why for need in check.needs if (why := _lacks(view, need))]
        if lacking:
            gaps.append(NotChecked(check.name, lacking[0]))
            continue
        found += [finding for finding in check.run(view) if finding not in found]
    found.sort(key=lambda finding: (_SEVERITIES.index(finding.severity), finding.kind))
    return tuple(found), tuple(gaps)


def _lacks(view: View, need: Need) -> str:
    """Why the view does not have it; empty when it has."""
    draft, target = view.draft, view.target
    return {
        Need.SHAPE: draft.unread if draft.shape is None else "",
        Need.DRAFT_TENSORS: "the draft's folder holds no weights" if draft.tensors is None else "",
        Need.TARGET: "no target was given" if target is None else "",
        Need.TARGET_TENSORS: "no target was given"
        if target is None
        else ""
        if target.weights
        else "the target's folder holds no safetensors",
        Need.RULE: view.unserved if view.served is None else "",
        Need.TRAINED: view.trained.why if view.trained.layout is None else "",
        Need.SERVER: "no server's arguments were given" if view.server is None else "",
    }[need]
