"""Does a draft fit a target? Those checks of lint without which no server starts and no number is worth computing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.target_files import TargetConfig
from wiring.engines.resolve import Engine, served_layout
from wiring.engines.sglang import SUPPORTED, requested_ids
from wiring.errors import WiringError
from wiring.lint import layout_check as layout
from wiring.lint import sizes
from wiring.lint import vocabulary_maps as vocabulary
from wiring.lint.lint_inputs import DraftView, TargetView, View

if TYPE_CHECKING:
    from torch import Tensor


def check_fit(
    target: TargetConfig, draft_config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> list[str]:
    """Everything that keeps this draft (of a flat config) from working on this target under SGLang; empty if it fits.

    With `tensors` (by checkpoint name; fc.weight, lm_head.weight and d2t are enough) the weights are held against both
    configs too. One sentence each; those that come from the engine's rule alone begin with "layer ids".
    """
    draft = DraftView(Path("draft"), draft_config, "specforge", None, tensors=tensors)
    shape = {"architectures": [target.architecture], "num_hidden_layers": target.num_layers}
    try:
        served = served_layout("sglang", SUPPORTED, shape, draft_config)
    except WiringError:
        served = None  # without a rule for the target, nothing is known about what the ids mean
    view = View(Engine("sglang", SUPPORTED), draft, TargetView(target, weights=False), served)
    found = [("hidden size", finding) for finding in sizes.widths(view) if finding.kind == 3]
    found += [("vocabulary", finding) for finding in sizes.vocabulary(view)]
    if served is not None:
        asked = f"layer ids {requested_ids(draft_config)} on a target of {target.num_layers} layers"
        found += [(asked, finding) for finding in layout.served_as_said(view) if finding.severity == "error"]
    if tensors is not None:
        found += [("slot count", finding) for finding in layout.slots(view)]
        found += [("vocabulary", finding) for finding in vocabulary.unusable(view)]
    return [f"{what}: {finding.evidence}" for what, finding in found]
