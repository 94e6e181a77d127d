"""The inputs of the engines' rules: the target's shape, the draft's layer ids, and how the engine is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wiring.errors import WiringError

IDS = "eagle_aux_hidden_state_layer_ids"
_READ = (IDS, f"eagle_config.{IDS}")  # read by some engine; its rule decides by which
_LIKE_IDS = re.compile(r"layer_ids|.*(aux|eagle|capture|target).*layer.*|.*layers?_to_capture")


@dataclass(frozen=True)
class Target:
    """`architecture` as config.json names it; `num_layers` L of the language model, which has the boundaries 0..L."""

    architecture: str
    num_layers: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Target:
        """Read a parsed config.json, with the layers from a nested `text_config` if there is one.

        Raises WiringError if architecture or layers are missing.
        """
        names = config.get("architectures") or []
        text = config.get("text_config") or config.get("llm_config") or {}
        layers = text.get("num_hidden_layers", config.get("num_hidden_layers"))
        if not names or not isinstance(layers, int) or layers < 1:
            raise WiringError(
                "the target's config lacks its architecture or its layers",
                code="target-config-incomplete",
                where="architectures" if not names else "num_hidden_layers",
                expected="a list with one name" if not names else "a whole number from 1",
                found=names if not names else layers,
                remedy="Take the config.json of the target itself",
            )
        return cls(str(names[0]), layers)


@dataclass(frozen=True)
class ServeRequest:
    """What is served, and how; see `wiring.engines.resolve.served_layout` for the fields."""

    target_config: Mapping[str, Any]
    draft_config: Mapping[str, Any]
    cuda_graphs: bool = True
    tp_size: int = 1
    embedding_plugin: bool = False
    slots: int | None = None
    engine_ids: tuple[int, ...] | None = None

    @property
    def target(self) -> Target:
        """The target's shape."""
        return Target.from_config(self.target_config)

    def fc_slots(self, ids: int, default: int = 0) -> int:
        """Return the number of states that `fc` takes: known, else by the config, else `ids` or `default`."""
        return self.slots or self.draft_config.get("num_aux_hidden_states") or ids or default


def misplaced_layer_ids(config: Mapping[str, Any]) -> tuple[str, list[int]] | None:
    """Return the first list of layer ids that no engine and no trainer reads: its dotted name and the ids.

    Call it only for a config without ids in a known place; otherwise such a list may be anything.
    """
    return next(_lists(config, ""), None)


def _lists(config: Mapping[str, Any], inside: str) -> Iterator[tuple[str, list[int]]]:
    for name, value in config.items():
        where = f"{inside}{name}"
        if isinstance(value, Mapping):
            yield from _lists(value, f"{where}.")
        elif where not in _READ and _LIKE_IDS.fullmatch(name) and isinstance(value, list) and value:
            if all(type(i) is int for i in value):
                yield where, value
