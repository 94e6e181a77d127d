"""Random drafts, one per group of settings that SGLang 0.5.23 reads from a draft's config and file.

One server tests all settings of a group; contradictory settings are in different groups. `controls` are wrong readings
of the same file, by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from wiring.checkpoints.draft_files import DraftCheckpoint
from wiring.checkpoints.rope_config import Rope

VOCABULARY, WIDTH = 128, 64  # of the target in cpu_pair.py; importing it takes seconds
CONTEXT = 512
REDUCED = 96
Reading = Callable[[DraftCheckpoint], DraftCheckpoint]


@dataclass(frozen=True)
class Variant:
    """One draft: `config` overrides `BASE`, `ids` are the nested layer ids, the other fields describe the file."""

    name: str
    ids: tuple[int, ...]
    config: Mapping[str, Any]
    controls: Mapping[str, Reading]
    first_layer: str = "midlayer"
    fc_norms: tuple[str, ...] = ()  # names of the norms of the slots
    embedding: bool = False
    head: bool = True
    ignored: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # tensors that SGLang ignores

    @property
    def whole_config(self) -> dict[str, Any]:
        config = BASE | dict(self.config)
        nested = {"eagle_aux_hidden_state_layer_ids": list(self.ids), "use_aux_hidden_state": True}
        return config | {"eagle_config": nested | dict(config.get("eagle_config", {}))}


BASE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
    "draft_vocab_size": REDUCED,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def reading(**changes: Any) -> Reading:
    """Read the same tensors with another forward pass."""
    return lambda draft: replace(draft, shape=replace(draft.shape, **changes))


def rope(**changes: Any) -> Reading:
    """Read the same draft with another rotary embedding."""
    return lambda draft: reading(rope=replace(draft.shape.rope, **changes))(draft)


def without(name: str) -> Reading:
    """Read the same draft without one of its tensors."""
    return lambda draft: replace(draft, tensors={n: t for n, t in draft.tensors.items() if n != name})


def by_the_file(draft: DraftCheckpoint) -> DraftCheckpoint:
    """Take embedding and head from the file, as a trainer's code does."""
    return replace(draft, producer="specforge")


def plain_rope(draft: DraftCheckpoint) -> DraftCheckpoint:
    return reading(rope=Rope(theta=draft.shape.rope.theta, flavour="sglang"))(draft)


def window(keys: int) -> Reading:
    return lambda draft: reading(windows=(keys,) * draft.shape.num_layers)(draft)


MIXED = Variant(
    "mixed",
    (0, 3),
    {
        "eagle_config": {"norm_before_fc": True},
        "norm_output": True,
        "head_dim": 24,
        "num_key_value_heads": 2,
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    {
        "norm_output": reading(norm_output=False),
        "norm_before_fc": reading(norm_before_fc=False),
        "rope scaling": plain_rope,
        "own embedding": by_the_file,
        "d2t": without("d2t"),
    },
    embedding=True,
)

VARIANTS = (
    MIXED,
    Variant(  # with settings that SGLang ignores
        "plain",
        (0, 2, 4),
        {"norm_before_residual": True, "sliding_window": 8, "rope_theta": 1000.0},
        {
            "d2t": without("d2t"),
            "norm_output": reading(norm_output=True),
            "rope base": rope(theta=30.0),
            "norm_before_residual": reading(norm_before_residual=True),
            "sliding_window": window(8),
        },
    ),
    Variant(
        "norms",
        (0, 2, 4),
        {
            "norm_output": True,
            "use_aux_norm": True,
            "draft_vocab_size": VOCABULARY,
            "max_position_embeddings": 128,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
        },
        {
            "norm_output": reading(norm_output=False),
            "fc_norm": reading(fc_norm=False),
            "rope scaling": plain_rope,
        },
        fc_norms=("aux_norm_low", "aux_norm_mid", "aux_norm_high"),
    ),
    Variant(
        "biases",
        (0, 1, 3, 4),
        {
            "bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_before_fc": True,
            "rope_theta": 1000.0,
            "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        },
        {
            "fc bias": reading(fc_bias=False),
            "o_proj bias": reading(output_bias=False),
            "norm_before_fc": reading(norm_before_fc=False),
            "rope scaling": plain_rope,
            "attention_bias": reading(attention_bias=True),
            "mlp_bias": reading(mlp_bias=True),
        },
        ignored={
            **{f"midlayer.self_attn.{n}_proj.bias": (64,) for n in "qkv"},
            "midlayer.mlp.gate_proj.bias": (96,),
            "midlayer.mlp.up_proj.bias": (96,),
            "midlayer.mlp.down_proj.bias": (WIDTH,),
        },
    ),
    Variant(
        "two layers",
        (0, 2, 4),
        {
            "num_hidden_layers": 2,
            "fc_norm": True,
            "head_dim": 24,
            "num_key_value_heads": 2,
            "draft_vocab_size": VOCABULARY,
            "tie_word_embeddings": True,
            "max_position_embeddings": 256,
            "rope_theta": 1000.0,
            "rope_scaling": {"type": "dynamic", "factor": 3.0},
        },
        {
            "norm of the deeper layer": reading(deeper_norm="input_layernorm"),
            "fc_norm": reading(fc_norm=False),
            "layers": reading(num_layers=1, windows=(None,)),
            "rope scaling": plain_rope,
            "growth of the base": rope(flavour="specforge"),
            "tied head, own embedding": by_the_file,
        },
        first_layer="layers.0",
        fc_norms=("fc_norm.0", "fc_norm.1", "fc_norm.2"),
        embedding=True,
        ignored={"layers.1.input_layernorm.weight": (WIDTH,)},
    ),
    Variant(
        "narrow",
        (0, 2, 4),
        {
            "hidden_size": 48,
            "target_hidden_size": WIDTH,
            "head_dim": 12,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 300.0,
                "factor": 8.0,
                "beta_fast": 8.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.2,
                "mscale_all_dim": 0.3,
                "attention_factor": 2.0,
                "truncate": False,
            },
        },
        {
            "rope scaling": plain_rope,
            "scale of cosine and sine": rope(flavour="transformers", attention_factor=2.0),
            "truncated ramp": rope(truncate=True),
        },
        embedding=True,
    ),
    Variant(
        "head of the target",
        (0, 3),
        {
            "draft_vocab_size": None,
            "target_hidden_size": WIDTH,
            "num_aux_hidden_states": 2,
            "rope_theta": 50.0,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "alpha": 20.0, "rope_theta": 300.0},
        },
        {
            "alpha": rope(alpha=None),
            "rope scaling": plain_rope,
            "outer base": rope(theta=50.0),
            "own head": by_the_file,
        },
    ),
    Variant(  # a state as wide as the draft skips fc and its norm; RoPE is given twice
        "one slot",
        (3,),
        {
            "norm_before_fc": True,
            "original_max_position_embeddings": 64,
            "rope_theta": 500.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
        },
        {
            "fc": reading(skips_narrow_fc=False),
            "rope scaling": plain_rope,
            "inner original length": rope(original_max_position_embeddings=256),
            "other spelling": reading(rope=Rope(theta=30.0, flavour="sglang")),
        },
    ),
)


def write_draft(folder: Path, variant: Variant, seed: int) -> None:
    """Write config and tensors of a random draft, under the names that SGLang reads and those that it ignores."""
    config = variant.whole_config
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, generator) for name, shape in _shapes(variant, config).items()}
    rows = config["draft_vocab_size"]
    if rows is None:
        tensors["norm.weight"] *= 4  # the target's head is four times smaller
    if rows == REDUCED:
        known = torch.randperm(VOCABULARY, generator=generator)[:REDUCED].sort().values  # [Vd]
        tensors["d2t"] = known - torch.arange(REDUCED)
        tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).scatter(0, known, True)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _shapes(variant: Variant, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, taken = config["hidden_size"], config["intermediate_size"], len(variant.ids) * WIDTH
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, taken), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer, reads = (variant.first_layer, 2 * hidden) if i == 0 else (f"layers.{i}", hidden)
        parts = {
            "self_attn.q_proj.weight": (query, reads),
            "self_attn.k_proj.weight": (key, reads),
            "self_attn.v_proj.weight": (key, reads),
            "self_attn.o_proj.weight": (hidden, query),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "hidden_norm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        } | ({"input_layernorm.weight": (hidden,)} if i == 0 else {})
        parts |= {"self_attn.o_proj.bias": (hidden,)} if config.get("bias") else {}
        shapes |= {f"{layer}.{name}": shape for name, shape in parts.items()}
    nested = config["eagle_config"]
    shapes |= {"fc.bias": (hidden,)} if config.get("bias") else {}
    shapes |= {"input_norm.weight": (taken,)} if nested.get("norm_before_fc", config.get("norm_before_fc")) else {}
    shapes |= {f"{name}.weight": (WIDTH,) for name in variant.fc_norms}
    shapes |= {"embed_tokens.weight": (VOCABULARY, hidden)} if variant.embedding else {}
    shapes |= {"lm_head.weight": (config["draft_vocab_size"] or VOCABULARY, hidden)} if variant.head else {}
    return shapes | dict(variant.ignored)


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return random values: norms about 1, attention sharp enough to depend on rotations, logits far apart."""
    values = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight") or ".fc_norm" in f".{name}" or "aux_norm" in name:
        return 1 + 0.4 * values
    if name.endswith("bias"):
        return 0.7 * values
    if name.startswith(("embed_tokens", "lm_head")):
        return values
    scale = {"q_proj": 1.5, "k_proj": 1.5, "v_proj": 1.5, "o_proj": 1.5, "fc": 0.7}
    wide = next((factor for part, factor in scale.items() if part in name.split(".")), 1.0)
    return wide * shape[-1] ** -0.5 * values
