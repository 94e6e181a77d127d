"""speculators drafts for the comparison: what differs from a plain one, and a change that must be noticed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from planted_texts import make_draft_tensors, make_target, make_texts

VOCAB, DRAFT_VOCAB, WIDTH = 200, 120, 32
LENGTHS = [23, 60, 9, 41, 34, 17, 58, 48]
SILENT = 7  # tokens at the start of every text that are not trained on, as a prompt is


@dataclass(frozen=True)
class SpeculatorsCase:
    """`layer` changes the nested layer config, `flags` the outer one; `other` a written config, by nested key."""

    layer: dict = field(default_factory=dict)
    flags: dict = field(default_factory=dict)
    other: dict = field(default_factory=dict)
    steps: int = 3
    ids: tuple[int, ...] = (2, 6, 9)  # of the target's layers, by their inputs: boundaries
    own_embedding: bool = False


def nested(**changes) -> dict:
    return {"transformer_layer_config": changes}


def rope(kind: str, **parameters) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **parameters}}


QWEN3 = {"model_type": "qwen3", "head_dim": 12, "use_sliding_window": True}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

CASES = {
    "plain": SpeculatorsCase(other={"norm_output": True}),
    "norm-before-residual": SpeculatorsCase(
        flags={"norm_before_residual": True}, other={"norm_before_residual": False}, steps=4
    ),
    "norm-before-fc": SpeculatorsCase(
        layer=rope("linear", factor=2.5),
        flags={"norm_before_fc": True},
        other=nested(**rope("linear", factor=1.0)),
        steps=5,
    ),
    "fc-norm-and-normed-feedback": SpeculatorsCase(
        flags={"fc_norm": True, "norm_output": True}, other={"norm_output": False}, steps=5
    ),
    "two-layers": SpeculatorsCase(
        layer={"num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True},
        flags={"norm_before_residual": True},
        other=nested(rms_norm_eps=0.1),
        steps=4,
    ),
    "qwen3-two-layers-one-window": SpeculatorsCase(
        layer=QWEN3
        | {"num_hidden_layers": 2, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
        other=nested(layer_types=["full_attention", "full_attention"]),
        steps=5,
    ),
    "qwen3-window-with-bias": SpeculatorsCase(
        layer=QWEN3 | {"sliding_window": 9, "layer_types": ["sliding_attention"], "attention_bias": True},
        flags={"norm_before_residual": True, "norm_output": True},
        other=nested(sliding_window=4),
        steps=3,
    ),
    "two-slots-yarn-rope": SpeculatorsCase(
        layer=rope("yarn", **YARN),
        other=nested(**rope("yarn", **YARN | {"factor": 1.5})),
        ids=(3, 9),
        steps=3,
    ),
    "four-slots-full-vocabulary-llama3-rope": SpeculatorsCase(
        layer=rope("llama3", factor=8.0, **LLAMA3),
        flags={"draft_vocab_size": VOCAB, "embed_requires_grad": True},
        other=nested(**rope("llama3", factor=2.0, **LLAMA3)),
        ids=(2, 5, 6, 9),
        own_embedding=True,
        steps=7,
    ),
    "dynamic-rope": SpeculatorsCase(
        layer=rope("dynamic", factor=3.0) | {"max_position_embeddings": 32},
        other=nested(**rope("default")),
        steps=6,
    ),
}


def plain_layer() -> dict:
    """The nested layer config: a Llama layer with grouped-query attention."""
    return {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        **rope("default"),
    }


def build(case: SpeculatorsCase, seed: int):
    """(target, texts, layer config, outer settings, tensors) of a case."""
    target = make_target(seed, VOCAB, WIDTH)
    texts = make_texts(seed + 1, target, len(case.ids), LENGTHS, silent=SILENT)
    layer = plain_layer() | case.layer
    outer = {"draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": list(case.ids)} | case.flags
    extra = {}
    if outer.get("norm_before_fc"):
        extra["input_norm.weight"] = len(case.ids) * WIDTH
    if outer.get("fc_norm"):
        extra = {f"fc_norm.{i}.weight": WIDTH for i in range(len(case.ids))}
    g = torch.Generator().manual_seed(seed + 2)
    embedding = torch.randn(VOCAB, WIDTH, generator=g) if case.own_embedding else target.embedding
    tensors = make_draft_tensors(
        seed + 3,
        target,
        width=WIDTH,
        inner=layer["intermediate_size"],
        heads=layer["num_attention_heads"],
        kv_heads=layer["num_key_value_heads"],
        head_dim=layer["head_dim"],
        slots=len(case.ids),
        ids=torch.randperm(VOCAB, generator=g)[: outer["draft_vocab_size"]].sort().values,
        layers=layer["num_hidden_layers"],
        extra_norms=extra,
        attention_bias=bool(layer.get("attention_bias")),
        mlp_bias=bool(layer.get("mlp_bias")),
        qk_norm=layer["model_type"] == "qwen3",
        embedding=embedding,
    )
    return target, texts, layer, outer, tensors
