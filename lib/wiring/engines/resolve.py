"""`served_layout`: which boundaries an engine serves to a draft, phase by phase, told from two configs alone.

The knowledge stands in tables: `sglang_layers` (SGLang by release and model family), `vllm` and `tensorrt_llm`. No
engine is imported, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiring.engines import sglang_resolve as sglang_serving
from wiring.engines import tensorrt_llm, vllm
from wiring.engines.served_layout import Note, ServedLayout, Severity
from wiring.engines.versions import parse_version
from wiring.errors import WiringError

__all__ = ["ENGINES", "Engine", "Note", "ServedLayout", "Severity", "parse_engine", "served_layout"]

ENGINES = {"sglang": sglang_serving.serve, "vllm": vllm.serve, "tensorrt-llm": tensorrt_llm.serve}


@dataclass(frozen=True)
class Engine:
    """An engine and its release; None is the newest release whose rule is known."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}=={self.version}"


def parse_engine(text: str) -> Engine:
    """Read "sglang", "sglang==0.5.9", "vllm==0.11.0" or "tensorrt-llm".

    Raises WiringError on an engine that has no rules here, and on a version that is none.
    """
    name, equals, version = text.strip().partition("==")
    name, version = name.strip().lower(), version.strip()
    if name not in ENGINES:
        raise WiringError(
            "no rules are known for this engine",
            where=text,
            expected=", ".join(sorted(ENGINES)),
            found=name,
            remedy="Name one of these, with ==version where it is not the newest",
        )
    if equals:
        parse_version(version, where=text)
    return Engine(name, version or None)


def served_layout(
    engine: str,
    version: str | None,
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    *,
    cuda_graphs: bool = True,
    tp_size: int = 1,
    embedding_plugin: bool = False,
    slots: int | None = None,
    engine_ids: tuple[int, ...] | None = None,
) -> ServedLayout:
    """The layout that this engine serves to this draft on this target, in each phase.

    `engine` is "sglang", "vllm" or "tensorrt-llm"; `version` None the newest release whose rule is known. The configs
    are parsed config.json files. `cuda_graphs` says whether decoding replays CUDA graphs, `tp_size` on how many ranks
    the target is split, `embedding_plugin` that the workbook's own plugin is active in SGLang. `slots` is the number
    of states that the draft's `fc` takes where the tensors are known; None takes it from the config. `engine_ids` are
    layer ids given to the engine itself, which TensorRT-LLM asks for.

    Raises WiringError for an engine or a release without rules, a target config without layers or architecture, and
    an architecture that is not known to the engine's table.
    """
    if engine not in ENGINES:
        parse_engine(engine)
    return ENGINES[engine](
        version,
        target_config,
        draft_config,
        cuda_graphs=cuda_graphs,
        tp_size=tp_size,
        embedding_plugin=embedding_plugin,
        slots=slots,
        engine_ids=engine_ids,
    )
