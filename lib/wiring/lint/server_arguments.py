"""A server's arguments as lint takes them: plain values, fetched or typed by whoever calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What the checks read, by SGLang's names; `max_model_len` is vLLM's.
READ = frozenset(
    {
        "context_length",
        "disable_cuda_graph",
        "dtype",
        "kv_cache_dtype",
        "max_model_len",
        "model_path",
        "quantization",
        "speculative_algorithm",
        "speculative_draft_kv_cache_dtype",
        "speculative_draft_model_path",
        "speculative_draft_model_quantization",
        "speculative_draft_window_size",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "tp",
        "tp_size",
    }
)


@dataclass(frozen=True)
class Changed:
    """An argument that the server runs with otherwise than it was asked."""

    name: str
    asked: Any
    resolved: Any
    reason: str = ""


@dataclass(frozen=True)
class ServerView:
    """What is known of a server, running or planned.

    `arguments` are SGLang's, by the names of /server_info (`speculative_num_steps`, `tp_size`); of a running server
    they are what it resolved, of a planned one what is asked for. `changed` is what a running server made otherwise.
    `where` says where they come from.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[Changed, ...] = ()
    running: bool = False
    version: str | None = None
    where: str = "the server's arguments"

    def get(self, name: str) -> Any:
        """The argument's value; None where it was not given or stands for SGLang's own choice ("auto")."""
        value = self.arguments.get(name)
        return None if value in ("auto", "") else value

    @property
    def cuda_graphs(self) -> bool:
        """Whether decoding replays CUDA graphs: on, unless the arguments say otherwise."""
        return not self.get("disable_cuda_graph")

    @property
    def tp_size(self) -> int:
        """On how many ranks the target is split."""
        return int(self.get("tp_size") or self.get("tp") or 1)
