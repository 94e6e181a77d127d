"""A pair small enough to serve in seconds: 8 random layers that count upwards, and a draft that half knows it."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

LAYERS, WIDTH, WORDS = 8, 64, 128
DENSE, EXPERTS, EXPERT = 6, 4, 64  # layers before the experts begin, experts, their width
HEADS, RANK, ROPE, NOPE, VALUE = 4, 32, 16, 16, 32


@dataclass(frozen=True)
class Pair:
    """Folders of a target and its draft; `layout` is what SGLang serves to that draft."""

    target: Path
    draft: Path
    layout: tuple[int, ...]


def _save_target(folder):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(7)
    embedding = torch.randn(WORDS, WIDTH)
    tensors = {name: torch.randn(shape) * 0.1 for name, shape in _target_shapes().items()}
    tensors |= {name: torch.ones(len(tensor)) for name, tensor in tensors.items() if name.endswith("norm.weight")}
    tensors["model.embed_tokens.weight"] = embedding
    tensors["lm_head.weight"] = embedding.roll(1, dims=0)  # row v is word v - 1: the next word is the next number
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "float32",
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "moe_intermediate_size": EXPERT,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_shared_experts": 1,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "first_k_dense_replace": DENSE,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": RANK,
        "kv_lora_rank": RANK,
        "qk_rope_head_dim": ROPE,
        "qk_nope_head_dim": NOPE,
        "v_head_dim": VALUE,
        "rope_interleave": True,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    _save_tokenizer(folder)
    return embedding


def _target_shapes():
    def mlp(width):
        return {"gate_proj": (width, WIDTH), "up_proj": (width, WIDTH), "down_proj": (WIDTH, width)}

    shapes = {"model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        parts = {
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
            "self_attn.q_a_proj": (RANK, WIDTH),
            "self_attn.q_a_layernorm": (RANK,),
            "self_attn.q_b_proj": (HEADS * (NOPE + ROPE), RANK),
            "self_attn.kv_a_proj_with_mqa": (RANK + ROPE, WIDTH),
            "self_attn.kv_a_layernorm": (RANK,),
            "self_attn.kv_b_proj": (HEADS * (NOPE + VALUE), RANK),
            "self_attn.o_proj": (WIDTH, HEADS * VALUE),
        }
        if layer < DENSE:
            parts |= {f"mlp.{name}": shape for name, shape in mlp(128).items()}
        else:
            owners = ["shared_experts", *(f"experts.{i}" for i in range(EXPERTS))]
            parts |= {f"mlp.{owner}.{name}": shape for owner in owners for name, shape in mlp(EXPERT).items()}
            parts["mlp.gate"] = (EXPERTS, WIDTH)
            shapes[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = (EXPERTS,)
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


def _save_tokenizer(folder):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w2"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "w0", "eos_token": "w1", "unk_token": "w2", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def _save_draft(folder, embedding, ids):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(8)
    shapes = {
        "self_attn.q_proj": (WIDTH, 2 * WIDTH),
        "self_attn.k_proj": (WIDTH, 2 * WIDTH),
        "self_attn.v_proj": (WIDTH, 2 * WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (96, WIDTH),
        "mlp.up_proj": (96, WIDTH),
        "mlp.down_proj": (WIDTH, 96),
    }
    tensors = {f"midlayer.{name}.weight": torch.randn(shape) * 0.05 for name, shape in shapes.items()}
    for norm in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{norm}.weight"] = torch.ones(WIDTH)
    tensors["fc.weight"] = torch.cat([torch.eye(WIDTH), torch.zeros(WIDTH, WIDTH * (len(ids) - 1))], dim=1)
    head = embedding.roll(2, dims=0).clone()  # beside state t it must guess word t + 2
    head[::3] = torch.randn_like(head[::3])  # it never learnt every third word
    tensors["lm_head.weight"] = head
    tensors["d2t"] = torch.zeros(WORDS, dtype=torch.int64)
    tensors["t2d"] = torch.ones(WORDS, dtype=torch.bool)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "vocab_size": WORDS,
        "draft_vocab_size": WORDS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(ids)},
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """SGLang 0.5.23 serves ids that do not begin with 1 as boundaries, on this architecture."""
    root, layout = tmp_path_factory.mktemp("pair"), (0, 3, 6)
    _save_draft(root / "draft", _save_target(root / "target"), layout)
    return Pair(root / "target", root / "draft", layout)
