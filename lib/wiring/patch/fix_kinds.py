"""The three kinds of fix, and what they share: other layer ids in a copy of the draft's config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

EMBEDDING_SWITCH = "WIRING_EMBEDDING_ID"  # "1" in a server's environment turns the embedding plugin on


class FixKind(StrEnum):
    """How a fix reaches the server, least invasive first."""

    CONFIG = "config"  # other layer ids in a copy of the draft's config
    PLUGIN = "plugin"  # the -1 convention, by SGLang's own plugin entry point
    SOURCE = "source"  # the -1 convention, in a patched copy of the package sglang


def with_ids(draft_config: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """Return a copy of the draft's config that asks for these layer ids, everything else unchanged."""
    eagle = {**(draft_config.get("eagle_config") or {}), "eagle_aux_hidden_state_layer_ids": list(ids)}
    return {**draft_config, "eagle_config": eagle}
