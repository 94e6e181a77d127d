"""Small random targets of three model families whose layer ids SGLang reads by different rules, of 8 layers each."""

from __future__ import annotations

from pathlib import Path

import cpu_pair
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

LAYERS = 8  # the fewest that have SGLang's default layers
_SHAPE = {
    "vocab_size": cpu_pair.VOCABULARY,
    "hidden_size": cpu_pair.WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
FAMILIES = ("deepseek", *_MODELS)


def write_family_target(folder: Path, family: str) -> None:
    """Write the target and its tokenizer. Each layer changes the state much, so that no two boundaries are alike."""
    if family == "deepseek":
        cpu_pair.write_target(folder, LAYERS)
        return
    config, model = _MODELS[family]
    torch.manual_seed(cpu_pair.SEED)
    made = model(config(**_SHAPE)).float()
    cpu_pair.plant(made)
    made.save_pretrained(folder)
    cpu_pair.write_tokenizer(folder)
