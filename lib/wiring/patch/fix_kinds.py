"""The three forms of a cure, and what they share: other layer ids in a copy of the draft's config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from wiring.errors import WiringError

EMBEDDING_SWITCH = "WIRING_EMBEDDING_ID"  # "1" in a server's environment turns the embedding plugin on


class Form(StrEnum):
    """How a cure reaches the server, least invasive first."""

    CONFIG = "config"  # other layer ids in a copy of the draft's config
    PLUGIN = "plugin"  # the -1 convention, by SGLang's own plugin entry point
    SOURCE = "source"  # the same, by edits of SGLang's files


class ApplyTo(StrEnum):
    """Which SGLang the source form edits where a notebook tries it."""

    SCRATCH = "scratch"  # a copy in the run folder, first on the path of one server
    INSTALLED = "installed"  # the one that every server of this environment serves

    @classmethod
    def parse(cls, word: str) -> ApplyTo:
        """The parameter `apply_to` as a notebook has it. Raises WiringError for any other word."""
        if word not in list(cls):
            raise WiringError(
                "there is no such SGLang to edit", where="apply_to", expected=" or ".join(cls), found=repr(word)
            )
        return cls(word)


def with_ids(draft_config: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """A copy of the draft's config that asks for these layer ids, everything else as it was."""
    eagle = {**(draft_config.get("eagle_config") or {}), "eagle_aux_hidden_state_layer_ids": list(ids)}
    return {**draft_config, "eagle_config": eagle}
