"""Copies of the tiny pair with one thing changed, and small drafts in each producer's layout, for the lint tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TINY = Path(__file__).parents[3] / "data" / "tiny"
IDS = "eagle_aux_hidden_state_layer_ids"
Tensors = dict[str, torch.Tensor]


def ids(*layer_ids: int) -> dict[str, Any]:
    """The nested key with these layer ids."""
    return {"eagle_config": {IDS: list(layer_ids), "use_aux_hidden_state": True}}


def draft(
    folder: Path,
    config: Mapping[str, Any] = {},
    *,
    drop: tuple[str, ...] = (),
    edit: Callable[[Tensors], Any] = lambda tensors: None,
    weights: bool = True,
) -> Path:
    """A copy of the tiny draft that asks for what it was trained on (ids 0, 3, 31), with `config` over it."""
    folder.mkdir(parents=True)
    whole = json.loads((TINY / "draft" / "config.json").read_text()) | ids(0, 3, 31) | dict(config)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in whole.items() if k not in drop}))
    if weights:
        tensors = load_file(TINY / "draft" / "model.safetensors")
        edit(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def target(folder: Path, config: Mapping[str, Any] = {}, *, weights: bool = True) -> Path:
    """The tiny target with `config` over its own; its weights by link."""
    folder.mkdir(parents=True)
    whole = json.loads((TINY / "target" / "config.json").read_text()) | dict(config)
    (folder / "config.json").write_text(json.dumps(whole))
    if weights:
        (folder / "model.safetensors").symlink_to(TINY / "target" / "model.safetensors")
    return folder


LLAMA_TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 12,
    "vocab_size": 40,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-5,
}


def llama_target(folder: Path, **changes: Any) -> Path:
    """A Llama target of 12 layers and width 16: config, embedding [40, 16] and head [40, 16]."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_TARGET | changes))
    generator = torch.Generator().manual_seed(5)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    save_file({n: torch.randn(40, 16, generator=generator) for n in names}, folder / "model.safetensors")
    return folder
