"""The target as a Hugging Face folder, and back: stacked weights to DeepseekV3ForCausalLM's names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tiny.config import TargetSizes, target_config
from tiny.target_model import StackedTarget
from tiny.tokenizer import write_tokenizer
from wiring.checkpoints.atomic import replacing, write_json

_MLP = ("gate_proj", "up_proj", "down_proj")
_DENSE = ("gate", "up", "down")


def _places(sizes: TargetSizes) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name in the file, stacked parameter, index in the stack) of every weight that is stored as it is."""
    yield "model.embed_tokens.weight", "embedding", ()
    yield "lm_head.weight", "head", ()
    yield "model.norm.weight", "final_norm", ()
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "self_attn.q_a_proj.weight", "q_down", (layer,)
        yield prefix + "self_attn.q_b_proj.weight", "q_up", (layer,)
        yield prefix + "self_attn.o_proj.weight", "attention_out", (layer,)
        m = layer - sizes.dense_layers
        if m < 0:
            for theirs, ours in zip(_MLP, _DENSE, strict=True):
                yield f"{prefix}mlp.{theirs}.weight", ours, (layer,)
            continue
        yield prefix + "mlp.gate.weight", "router", (m,)
        for theirs, ours in zip(_MLP, _DENSE, strict=True):
            yield f"{prefix}mlp.shared_experts.{theirs}.weight", f"shared_{ours}", (m,)
            for expert in range(sizes.experts):
                yield f"{prefix}mlp.experts.{expert}.{theirs}.weight", f"expert_{ours}", (m, expert)


def _joined(target: StackedTarget) -> Iterator[tuple[str, Tensor]]:
    """Weights that the file holds joined: kv_a = latent and rotated key; kv_b = per head its key, then its value."""
    s = target.sizes
    for layer in range(s.layers):
        prefix = f"model.layers.{layer}.self_attn."
        yield prefix + "kv_a_proj_with_mqa.weight", torch.cat([target.kv_down[layer], target.k_rope[layer]])
        key = target.k_up[layer].view(s.heads, s.nope, s.kv_rank)
        value = target.v_up[layer].view(s.heads, s.value, s.kv_rank)
        yield prefix + "kv_b_proj.weight", torch.cat([key, value], 1).reshape(-1, s.kv_rank)


def _constants(sizes: TargetSizes) -> Iterator[tuple[str, Tensor]]:
    """Norm weights inside the layers, which are ones, and the routers' selection biases, which are zeros."""
    widths = {
        "self_attn.q_a_layernorm": sizes.q_rank,
        "self_attn.kv_a_layernorm": sizes.kv_rank,
        "input_layernorm": sizes.hidden,
        "post_attention_layernorm": sizes.hidden,
    }
    for layer in range(sizes.layers):
        for name, width in widths.items():
            yield f"model.layers.{layer}.{name}.weight", torch.ones(width)
        if layer >= sizes.dense_layers:
            yield f"model.layers.{layer}.mlp.gate.e_score_correction_bias", torch.zeros(sizes.experts)


def write_target(target: StackedTarget, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json, model.safetensors in `dtype` and the tokenizer to `folder`."""
    weights = {name: getattr(target, ours)[index] for name, ours, index in _places(target.sizes)}
    weights |= dict(_joined(target)) | dict(_constants(target.sizes))
    stored = {
        # DeepSeek-V3 keeps the routers' biases in float32 whatever the rest is in
        name: weight.detach().to(torch.float32 if name.endswith("correction_bias") else dtype).contiguous().clone()
        for name, weight in weights.items()
    }
    with replacing(folder / "model.safetensors") as temporary:
        save_file(stored, temporary, metadata={"format": "pt"})
    write_json(folder / "config.json", target_config(target.sizes, str(dtype).removeprefix("torch.")))
    write_tokenizer(folder)


@torch.no_grad()
def load_target(folder: Path, sizes: TargetSizes) -> StackedTarget:
    """Read what `write_target` wrote, in float32: the weights that are served, not those before rounding."""
    stored = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    target = StackedTarget(sizes)
    for name, ours, index in _places(sizes):
        getattr(target, ours)[index].copy_(stored[name])
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}.self_attn."
        latent, rotated = stored[prefix + "kv_a_proj_with_mqa.weight"].split([sizes.kv_rank, sizes.rope])
        joined = stored[prefix + "kv_b_proj.weight"].view(sizes.heads, sizes.nope + sizes.value, sizes.kv_rank)
        key, value = joined.split([sizes.nope, sizes.value], 1)
        target.kv_down[layer].copy_(latent)
        target.k_rope[layer].copy_(rotated)
        target.k_up[layer].copy_(key.flatten(0, 1))
        target.v_up[layer].copy_(value.flatten(0, 1))
    return target.eval().requires_grad_(False)
