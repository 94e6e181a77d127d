"""SpecForge drafts for the comparison: what differs from a plain one, and a change that must be noticed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from planted_texts import make_draft_tensors, make_target, make_texts
from torch import Tensor

VOCAB, DRAFT_VOCAB, WIDTH, HEAD_DIM = 200, 120, 32, 8
LENGTHS = [5, 23, 60, 9, 41, 34, 17, 58, 2, 48]
LAYOUT = (2, 6, 9)  # SpecForge's default for the 12 layers of the target


@dataclass(frozen=True)
class SpecforgeCase:
    """`config` changes the plain config; `other` a written config, into a draft that computes something else."""

    config: dict = field(default_factory=dict)
    other: dict = field(default_factory=dict)
    steps: int = 3
    storage: str = "sglang"  # what is read: the export for SGLang (no embedding), for "hf", or the "checkpoint"
    target_width: int = WIDTH
    own_embedding: bool = False
    batch: int = 4


def scaled(kind: str, **parameters) -> dict:
    """RoPE scaling as transformers 5 writes it, with another base than the default."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **parameters}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

CASES = {
    "plain": SpecforgeCase(other={"rope_theta": 300.0, "rope_parameters": None}),
    "checkpoint": SpecforgeCase(steps=4, storage="checkpoint", other={"rms_norm_eps": 0.1}),
    "fc-norm": SpecforgeCase({"fc_norm": True}, {"fc_norm": False}, steps=5),
    "full-vocabulary": SpecforgeCase({"draft_vocab_size": VOCAB}, {"rms_norm_eps": 0.1}, steps=4, storage="hf"),
    "no-norm-at-the-head": SpecforgeCase({"norm_output": False}, {"norm_output": True}, steps=7),
    "head-dim": SpecforgeCase(
        {"head_dim": 12, "num_key_value_heads": 4}, {"rms_norm_eps": 0.1}, steps=3, storage="hf", own_embedding=True
    ),
    "wider-target": SpecforgeCase(
        {"target_hidden_size": 48, **scaled("linear", factor=2.5)},
        scaled("linear", factor=1.0) | {"rope_scaling": None},
        steps=4,
        storage="hf",
        target_width=48,
        own_embedding=True,
    ),
    "llama3-rope": SpecforgeCase(
        scaled("llama3", factor=8.0, **LLAMA3), scaled("llama3", factor=2.0, **LLAMA3) | {"rope_scaling": None}
    ),
    "yarn-rope": SpecforgeCase(
        scaled("yarn", mscale=1.0, mscale_all_dim=0.5, **YARN),
        scaled("yarn", mscale=1.0, mscale_all_dim=1.0, **YARN) | {"rope_scaling": None},
        steps=5,
    ),
    "old-style-dynamic-rope": SpecforgeCase(
        {"max_position_embeddings": 64, "rope_theta": 5000.0, "rope_scaling": {"type": "dynamic", "factor": 3.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "rope_scaling": None},
        steps=6,
        storage="hf",
    ),
}


def plain_config() -> dict:
    """The config file of a plain SpecForge draft: grouped-query attention, a reduced vocabulary."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rope_theta": 5000.0,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
    }


def build(case: SpecforgeCase, seed: int):
    """(target, texts, config, tensors) of a case."""
    target = make_target(seed, VOCAB, case.target_width)
    texts = make_texts(seed + 1, target, len(LAYOUT), LENGTHS)
    config = plain_config() | case.config
    if "rope_parameters" in case.config:
        del config["rope_theta"]
    embedding = None
    if case.own_embedding:  # not the target's: a reader that took that one would be found out
        embedding = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(seed + 2))
    tensors = make_draft_tensors(
        seed + 3,
        target,
        width=WIDTH,
        inner=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim", HEAD_DIM),
        slots=len(LAYOUT),
        ids=said(config["draft_vocab_size"], seed + 4),
        layer_name="midlayer.",
        extra_norms={f"fc_norm.{i}.weight": case.target_width for i in range(3)} if config.get("fc_norm") else None,
        embedding=embedding,
    )
    if config["draft_vocab_size"] == VOCAB:  # SpecForge keeps both maps at full vocabulary too
        tensors |= {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB, dtype=torch.bool)}
    return target, texts, config, tensors


def said(count: int, seed: int) -> Tensor:
    """`count` target ids, ascending."""
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:count].sort().values
