"""Plan the cure: which small change makes the server serve the layout that the draft was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from wiring.boundary import Dialect, Layout, from_boundaries
from wiring.errors import WiringError
from wiring.rules.served import ServedLayout, served_layout
from wiring.rules.sglang import SUPPORTED, config_ids_for

EMBEDDING_SWITCH = "WIRING_EMBEDDING_ID"


class Form(StrEnum):
    """How a cure reaches the server, least invasive first."""

    CONFIG = "config"  # other layer ids in a copy of the draft's config
    PLUGIN = "plugin"  # the -1 convention, by SGLang's own plugin entry point
    SOURCE = "source"  # the same, by edits of SGLang's files


@dataclass(frozen=True)
class Cure:
    """One way to serve the wanted layout: the ids for the draft's config, and the server's environment."""

    form: Form
    ids: tuple[int, ...]
    environment: Mapping[str, str]
    served: ServedLayout
    why: str

    @property
    def layout(self) -> Layout:
        """The layout that this cure serves, in prefill and in verify."""
        return self.served.verify


def with_ids(draft_config: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """A copy of the draft's config that asks for these layer ids, everything else as it was."""
    eagle = {**(draft_config.get("eagle_config") or {}), "eagle_aux_hidden_state_layer_ids": list(ids)}
    return {**draft_config, "eagle_config": eagle}


def plan(architecture: str, num_layers: int, draft_config: Mapping[str, Any], wanted: Layout) -> tuple[Cure, ...]:
    """The cures that serve `wanted` on SGLang 0.5.23, least invasive first; empty when it is served already.

    Raises WiringError when no cure is known.
    """
    target = {"architectures": [architecture], "num_hidden_layers": num_layers}
    now = served_layout("sglang", SUPPORTED, target, draft_config)
    if now.prefill == now.verify == wanted:
        return ()
    cures = []
    ids = config_ids_for(architecture, wanted)
    if ids is not None:
        cures.append((Form.CONFIG, ids, {}, f"SGLang {SUPPORTED} serves these ids as they are: no code changes"))
    if 0 in wanted:
        output_ids = from_boundaries(wanted, Dialect.OUTPUT_ID)
        why = "id -1 is the embedding and the others keep the meaning they had in training (output ids)"
        cures.append((Form.PLUGIN, output_ids, {EMBEDDING_SWITCH: "1"}, why))
    known = []
    for form, ids, environment, why in cures:
        plugin = form is Form.PLUGIN
        served = served_layout("sglang", SUPPORTED, target, with_ids(draft_config, ids), embedding_plugin=plugin)
        if served.prefill == served.verify == wanted:
            known.append(Cure(form, tuple(ids), environment, served, why))
    if not known:
        raise WiringError(
            f"no cure is known that serves this layout on SGLang {SUPPORTED}",
            where=architecture,
            expected=f"layout {wanted}",
            found=f"served {now.verify}",
            remedy="States are captured in ascending order: retrain the draft with its slots in that order",
        )
    return tuple(known)
