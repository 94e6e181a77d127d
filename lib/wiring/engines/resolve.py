"""Resolve which boundaries an engine serves to a draft in each phase, from two configs alone.

The rules are tables: `sglang_layers` (SGLang by release and model family), `vllm` and `tensorrt_llm`. No engine is
imported or started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiring.engines import sglang_resolve, tensorrt_llm, vllm
from wiring.engines.engine_inputs import ServeRequest
from wiring.engines.served_layout import Note, ServedLayout, Severity
from wiring.engines.versions import parse_version
from wiring.errors import WiringError

__all__ = ["ENGINES", "Engine", "Note", "ServedLayout", "Severity", "parse_engine", "served_layout"]

ENGINES = {
    "sglang": sglang_resolve.resolve_served_layout,
    "vllm": vllm.resolve_served_layout,
    "tensorrt-llm": tensorrt_llm.resolve_served_layout,
}


@dataclass(frozen=True)
class Engine:
    """An engine and its release; None is the newest release with a known rule."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}=={self.version}"


def parse_engine(text: str) -> Engine:
    """Read "sglang", "sglang==0.5.9", "vllm==0.11.0" or "tensorrt-llm".

    Raises WiringError for an engine without rules and for an invalid version.
    """
    name, equals, version = text.strip().partition("==")
    name, version = name.strip().lower(), version.strip()
    if name not in ENGINES:
        raise WiringError(
            "no rules are known for this engine",
            code="engine-unknown",
            where=text,
            expected=", ".join(sorted(ENGINES)),
            found=name,
            remedy="Name one of these, with ==version for another release than the newest",
        )
    if equals:
        parse_version(version, where=text)
    return Engine(name, version or None)


def served_layout(
    engine: str, version: str | None, target_config: Mapping[str, Any], draft_config: Mapping[str, Any], **settings: Any
) -> ServedLayout:
    """Return the layout that this engine serves to this draft on this target, in each phase.

    `engine` is "sglang", "vllm" or "tensorrt-llm"; `version` None is the newest release with a known rule. The configs
    are parsed config.json files. `settings`: `cuda_graphs` (True): whether decoding replays CUDA graphs. `tp_size` (1):
    the number of ranks that share the target. `embedding_plugin` (False): whether the workbook's own plugin is active
    in SGLang. `slots` (None): the number of states that the draft's `fc` takes, if the tensors are known; None reads it
    from the config. `engine_ids` (None): layer ids given to the engine itself, which TensorRT-LLM needs.

    Raises WiringError for an engine, release or architecture without rules, and for a target config without layers or
    architecture.
    """
    return ENGINES[parse_engine(engine).name](version, ServeRequest(target_config, draft_config, **settings))
