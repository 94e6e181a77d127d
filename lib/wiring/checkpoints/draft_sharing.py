"""Whose embedding and whose lm_head a draft uses: its own, or the target's.

Trainers' code takes the draft's own tensors where the file has them. SGLang 0.5.23 goes by the config alone
(`srt/speculative/eagle_worker_v2.py`, `init_lm_head`; `srt/models/llama_eagle3.py`; `LlamaForCausalLM.set_embed`): the
embedding is always the target's, unless the draft is of another width than the target; a null draft_vocab_size means
the target's lm_head, tie_word_embeddings the embedding as lm_head. What the file holds instead is overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wiring.checkpoints.draft_config import Eagle3Config

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Sharing:
    """Where the embedding and the head come from; "embedding" is a head tied to the embedding in use."""

    embedding: Literal["draft", "target"]
    head: Literal["draft", "target", "embedding"]


def sharing(shape: Eagle3Config, config: Mapping[str, Any], producer: str, names: Collection[str]) -> Sharing:
    """Decide both for a draft of `producer` whose file holds tensors of the canonical `names`."""
    if producer != "sglang":
        own_head = HEAD in names or shape.has_vocab_map
        return Sharing("draft" if EMBEDDING in names else "target", "draft" if own_head else "target")
    embedding = "target" if shape.target_hidden_size == shape.hidden_size else "draft"
    if config.get("tie_word_embeddings"):
        return Sharing(embedding, "embedding")
    return Sharing(embedding, "target" if config.get("draft_vocab_size") is None else "draft")
