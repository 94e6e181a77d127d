"""Check the sizes, ids and maps without which a draft cannot run on a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.target_files import TargetConfig
from wiring.engines.resolve import Engine, served_layout
from wiring.engines.sglang import SUPPORTED, requested_ids
from wiring.errors import WiringError
from wiring.lint import config_checks, layout_check, tensor_checks
from wiring.lint.lint_inputs import DraftView, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Misfit:
    """A problem that keeps a draft from running on a target; `by_rule` if only the engine's layer-id rule shows it."""

    subject: str
    evidence: str
    by_rule: bool = False

    def __str__(self) -> str:
        return f"{self.subject}: {self.evidence}"


def check_fit(
    target: TargetConfig, draft_config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> list[Misfit]:
    """Return the problems that keep a draft with a flat config from running on a target under SGLang.

    With `tensors` (by checkpoint name; fc.weight, lm_head.weight and d2t are enough) their shapes are checked too.
    """
    draft = DraftView(Path("draft"), draft_config, "specforge", tensors=tensors)
    shape = {"architectures": [target.architecture], "num_hidden_layers": target.num_layers}
    try:
        served = served_layout("sglang", SUPPORTED, shape, draft_config)
    except WiringError:
        served = None  # no rule for the target, so the meaning of the ids is unknown
    view = View(Engine("sglang", SUPPORTED), draft, target, served)
    problems = [Misfit("hidden size", found.evidence) for found in config_checks.widths(view) if found.kind == 3]
    problems += [Misfit("vocabulary", found.evidence) for found in config_checks.vocabulary(view)]
    if served is not None:
        subject = f"layer ids {requested_ids(draft_config)} on a target of {target.num_layers} layers"
        notes = layout_check.rule_notes(view)
        problems += [Misfit(subject, note.evidence, by_rule=True) for note in notes if note.severity == "error"]
    if tensors is not None:
        problems += [Misfit("slot count", found.evidence) for found in layout_check.slot_count(view)]
        problems += [Misfit("vocabulary", found.evidence) for found in tensor_checks.unusable_maps(view)]
    return problems
