"""The table of checks, and `lint`, which runs those for which the files suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from wiring.checkpoints.config_fields import check_fields
from wiring.checkpoints.copy_record import read_copy_record
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, named_slots
from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import has_weights
from wiring.engines import sglang_layers, vllm
from wiring.engines.resolve import Engine, ServedLayout
from wiring.errors import WiringError
from wiring.layers import Layout, Phase, check_layout
from wiring.lint import config_checks, layout_check, server_checks, tensor_checks
from wiring.lint.lint_inputs import CONFIG, ServerView, View, read_draft_view
from wiring.lint.trained_layout import TrainedLayout, given_layout, recorded_layout
from wiring.lint.wrong_size import correct_size, wrong_size

_NEWEST = {"sglang": sglang_layers.NEWEST, "vllm": vllm.NEWEST}  # the release that a rule without a version is of
_SEVERITIES = ("error", "warning", "note")


class Need(Enum):
    """An input without which a check cannot run."""

    SHAPE = "shape"
    DRAFT_TENSORS = "draft tensors"
    TARGET = "target"
    TARGET_TENSORS = "target tensors"
    RULE = "rule"
    TRAINED = "trained"
    SERVER = "server"


@dataclass(frozen=True)
class Check:
    """One check: its name in reports, the function that yields its findings, and what it needs."""

    name: str
    run: Callable[[View], Iterable[Finding]]
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class NotChecked:
    """A check that could not run, and why."""

    check: str
    why: str


CHECKS = (
    Check("served layout", layout_check.rule_notes, (Need.RULE,)),
    Check("served layout against the trained one", layout_check.against_trained, (Need.RULE, Need.TRAINED)),
    Check("sizes of the config against the tensors", wrong_size, (Need.SHAPE, Need.DRAFT_TENSORS)),
    Check("number of layers", config_checks.number_of_layers),
    Check("fields that the engine needs", config_checks.required_fields),
    Check("slot count against fc", layout_check.slot_count, (Need.DRAFT_TENSORS,)),
    Check("weights that are zero", tensor_checks.zeros, (Need.DRAFT_TENSORS,)),
    Check("widths of draft and target", config_checks.widths, (Need.TARGET,)),
    Check("vocabulary of draft and target", config_checks.vocabulary, (Need.TARGET,)),
    Check("vocabulary maps d2t and t2d", tensor_checks.vocabulary_maps, (Need.DRAFT_TENSORS,)),
    Check("architecture of the draft", config_checks.architecture),
    Check("algorithm against architecture", server_checks.algorithm, (Need.SERVER,)),
    Check("requested against resolved arguments", server_checks.arguments, (Need.SERVER,)),
    Check("files of the running server", server_checks.served_files, (Need.SERVER,)),
    Check("format of the config", config_checks.config_format),
    Check("norm_before_residual", config_checks.norm_before_residual),
    Check("variants of the forward pass", config_checks.forward_variants, (Need.SHAPE,)),
    Check("missing and unused tensors", tensor_checks.tensors_read, (Need.SHAPE, Need.DRAFT_TENSORS)),
    Check("embedding", tensor_checks.embedding, (Need.SHAPE, Need.DRAFT_TENSORS, Need.TARGET_TENSORS)),
    Check("head", tensor_checks.head, (Need.SHAPE, Need.DRAFT_TENSORS, Need.TARGET_TENSORS)),
    Check("RoPE against the target", config_checks.rope, (Need.TARGET,)),
    Check("context length", config_checks.context, (Need.TARGET,)),
    Check("sliding window", config_checks.window),
    Check("quantization of the draft", config_checks.quantization),
    Check("quantization inherited from the target", server_checks.inherited_quantization, (Need.SERVER,)),
    Check("dtype against the target", config_checks.dtype, (Need.TARGET,)),
    Check("KV cache of the draft", server_checks.kv_cache, (Need.SERVER,)),
)


@dataclass(frozen=True)
class LintResult:
    """The served layout by phase (None: unknown), the trained one, findings (worst first), checks that did not run."""

    engine: str
    version: str | None
    served: ServedLayout | None
    trained: TrainedLayout
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity "error"."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def as_json(self) -> dict[str, Any]:
        """Return one JSON object. A phase is null if the server would fail or its layout is unknown."""
        phases = {phase.value: self.served[phase] if self.served else None for phase in Phase}
        return {
            "engine": self.engine,
            "version": self.version,
            "served": {name: None if layout is None else list(layout) for name, layout in phases.items()},
            "trained": None if self.trained.layout is None else list(self.trained.layout),
            "trained_by": self.trained.why,
            "findings": [asdict(finding) for finding in self.findings],
            "not_checked": [asdict(gap) for gap in self.not_checked],
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
    """Check a draft on an engine from files alone.

    `draft` and `target` are model folders; config.json is enough, checks that need tensors or a target are then listed
    in `not_checked`. `trained` overrides the layout that the draft records, in boundaries. `server` holds a server's
    arguments, by default one rank with CUDA graphs. `engine_ids` are the layer ids given to TensorRT-LLM. A fixed copy
    on SGLang is assumed to run on the server that it was made for; `not_checked` then says so.

    Raises WiringError if a file is missing or damaged, or if no rule is known for the release.
    """
    draft_view, wrong = correct_size(read_draft_view(draft))
    target_config = read_target_config(target) if target is not None else None
    if target_config is not None:
        check_fields(target_config.raw, target_config.folder / CONFIG)
    num_layers = target_config.num_layers if target_config else None
    if trained is not None:
        check_layout(trained, num_layers)
        counts = {draft_view.slots, named_slots(draft_view.config, draft_view.producer) or DEFAULT_SLOTS} - {None}
        if len(trained) not in counts:
            raise WiringError(
                "the trained layout fits neither the draft's fc nor its config",
                code="trained-layout-slot-count",
                where="--trained",
                expected=f"{' or '.join(map(str, sorted(counts)))} boundaries",
                found=",".join(map(str, trained)),
            )
    copy = read_copy_record(draft)
    served, unserved = layout_check.resolve_served(
        engine, draft_view, target_config, server, embedding_plugin=embedding_plugin, engine_ids=engine_ids, copy=copy
    )
    known = given_layout(trained, copy) or recorded_layout(
        draft_view.config, draft_view.producer, num_layers, draft_view.slots
    )
    findings, gaps = run_checks(View(engine, draft_view, target_config, served, unserved, known, server, wrong))
    return LintResult(engine.name, engine.version or _NEWEST.get(engine.name), served, known, findings, gaps)


def run_checks(view: View) -> tuple[tuple[Finding, ...], tuple[NotChecked, ...]]:
    """Run every check that has its inputs; return findings and the checks that did not run."""
    found: dict[Finding, None] = {}
    notes = view.served.notes if view.served else ()
    gaps = [NotChecked("layout", note.text) for note in notes if note.fault == 0 and note.severity != "note"]
    for check in CHECKS:
        missing = next((why for need in check.needs if (why := _missing(view, need))), "")
        if missing:
            gaps.append(NotChecked(check.name, missing))
        else:
            found |= dict.fromkeys(check.run(view))
    ranked = sorted(found, key=lambda finding: (_SEVERITIES.index(finding.severity), finding.kind))
    return tuple(ranked), tuple(gaps)


def _missing(view: View, need: Need) -> str:
    """Return why the view lacks an input, "" if it has it."""
    draft, target = view.draft, view.given_target
    no_target = "no target was given" if target is None else ""
    no_tensors = "" if target is None or has_weights(target.folder) else "the target's folder holds no safetensors"
    return {
        Need.SHAPE: draft.unread if draft.shape is None else "",
        Need.DRAFT_TENSORS: "the draft's folder holds no weights" if draft.tensors is None else "",
        Need.TARGET: no_target,
        Need.TARGET_TENSORS: no_target or no_tensors,
        Need.RULE: view.unserved if view.served is None else "",
        Need.TRAINED: view.trained.why if view.trained.layout is None else "",
        Need.SERVER: "no server's arguments were given" if view.given_server is None else "",
    }[need]
