"""What the rules need of a target's config: its architecture and how many layers it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiring.errors import WiringError


@dataclass(frozen=True)
class Target:
    """`architecture` as config.json names it; `num_layers` L of the language model, whose boundaries are 0..L."""

    architecture: str
    num_layers: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Target:
        """Read a parsed config.json; of a model with a nested `text_config` that part has the layers.

        Raises WiringError where either is missing.
        """
        names = config.get("architectures") or []
        text = config.get("text_config") or config.get("llm_config") or {}
        layers = text.get("num_hidden_layers", config.get("num_hidden_layers"))
        if not names or not isinstance(layers, int) or layers < 1:
            raise WiringError(
                "the target's config does not say what it is",
                where="architectures" if not names else "num_hidden_layers",
                expected="a list with one name" if not names else "a whole number from 1",
                found=names if not names else layers,
                remedy="Take the config.json of the target itself",
            )
        return cls(str(names[0]), layers)
