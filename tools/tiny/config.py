"""Sizes of the tiny pair, and the two config.json files that say them to transformers and SGLang."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from wiring.layers import Layout

STAGES = ("target", "states", "draft")  # in this order, and the folders that they make
TRAINED_LAYOUT: Layout = (0, 3, 31)  # what the draft's fc is trained on
REQUESTED_IDS = (3, 31, 59)  # what the draft's config asks for; SGLang 0.5.23 takes them as boundaries on this target
STORED_BOUNDARIES: Layout = (0, 3, 31, 59)  # what the saved training states hold
DRAFT_EPS = 1e-6
TARGET_EPS = 1e-6


@dataclass(frozen=True)
class TargetSizes:
    """The shape of the target: DeepSeek-V3 with multi-head latent attention, narrow and 61 layers deep."""

    vocab: int = 192  # the corpus's words, padded to a multiple of 64
    hidden: int = 64
    layers: int = 61
    heads: int = 4
    nope: int = 16  # query/key channels without a position
    rope: int = 16  # query/key channels that are rotated by the position
    value: int = 32
    q_rank: int = 32
    kv_rank: int = 32
    mlp: int = 128
    dense_layers: int = 58  # the layers after these are mixtures of experts
    experts: int = 4
    experts_per_token: int = 2
    expert_mlp: int = 64
    rope_theta: float = 10000.0
    yarn_factor: float = 4.0
    yarn_original: int = 512
    positions: int = 2048

    @property
    def head(self) -> int:
        """Channels of one query or key head."""
        return self.nope + self.rope

    @property
    def moe_layers(self) -> int:
        """Layers that are mixtures of experts."""
        return self.layers - self.dense_layers

    @property
    def softmax_scale(self) -> float:
        """Scale of the attention scores: 1/sqrt(head), raised by yarn's attention factor (YaRN, section 3.4)."""
        return self.head**-0.5 * (0.1 * math.log(self.yarn_factor) + 1.0) ** 2


@dataclass(frozen=True)
class DraftSizes:
    """The shape of the draft: one Llama layer, a reduced vocabulary."""

    vocab: int = 88
    heads: int = 4
    head: int = 32
    mlp: int = 256


def target_config(sizes: TargetSizes, dtype: str = "bfloat16") -> dict[str, Any]:
    """The target's config.json, with every key that transformers 5 and SGLang 0.5.23 read for DeepSeek-V3."""
    yarn = {
        "rope_type": "yarn",
        "factor": sizes.yarn_factor,
        "original_max_position_embeddings": sizes.yarn_original,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.value,
        "q_lora_rank": sizes.q_rank,
        "kv_lora_rank": sizes.kv_rank,
        "intermediate_size": sizes.mlp,
        "first_k_dense_replace": sizes.dense_layers,
        "moe_layer_freq": 1,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": sizes.experts_per_token,
        "moe_intermediate_size": sizes.expert_mlp,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "rms_norm_eps": TARGET_EPS,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_interleave": True,
        "rope_theta": sizes.rope_theta,
        "rope_parameters": {"rope_theta": sizes.rope_theta, **yarn},
        "max_position_embeddings": sizes.positions,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": dtype,
    }


def draft_config(target: TargetSizes, draft: DraftSizes) -> dict[str, Any]:
    """The draft's config.json. Its ids are REQUESTED_IDS, not the boundaries that its fc was trained on."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target.vocab,
        "draft_vocab_size": draft.vocab,
        "hidden_size": target.hidden,
        "intermediate_size": draft.mlp,
        "num_hidden_layers": 1,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.heads,
        "head_dim": draft.head,
        "hidden_act": "silu",
        "max_position_embeddings": target.positions,
        "rms_norm_eps": DRAFT_EPS,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(REQUESTED_IDS), "use_aux_hidden_state": True},
    }
