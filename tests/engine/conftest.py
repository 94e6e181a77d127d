"""A pair small enough to serve in seconds: 8 random layers that count upwards, and a draft that half knows it."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

LAYERS, WIDTH, WORDS = 8, 64, 128


@dataclass(frozen=True)
class Pair:
    """Folders of a target and its draft; `layout` is what SGLang serves to that draft."""

    target: Path
    draft: Path
    layout: tuple[int, ...]


def _save_target(folder):
    import torch
    from wiring.models.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(7)
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    config = DeepseekV3Config(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True, first_k_dense_replace=LAYERS - 2,
        q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32,
        max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, attention_bias=False,
        rope_interleave=True, rope_parameters=rope,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config).float()
    with torch.no_grad():
        embedding = torch.randn(WORDS, WIDTH)
        for weight in model.parameters():
            if weight.dim() >= 2:
                weight.copy_(torch.randn_like(weight) * 0.1)
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(embedding.roll(1, dims=0))  # row v is word v - 1: the next word is the next number
    model.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw.pop("dtype", None)
    raw |= {"torch_dtype": "float32", "rope_theta": 10000.0, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 0, "moe_layer_freq": 1}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    words = {f"w{i}": i for i in range(WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="w0", eos_token="w1", unk_token="w2"
    ).save_pretrained(folder)
    return embedding


def _save_draft(folder, embedding, ids):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(8)
    shapes = {
        "self_attn.q_proj": (WIDTH, 2 * WIDTH), "self_attn.k_proj": (WIDTH, 2 * WIDTH),
        "self_attn.v_proj": (WIDTH, 2 * WIDTH), "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (96, WIDTH),
        "mlp.up_proj": (96, WIDTH), "mlp.down_proj": (WIDTH, 96),
    }  # fmt: skip
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
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "head_dim": 16, "vocab_size": WORDS, "draft_vocab_size": WORDS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 1024, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 1,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(ids)},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """SGLang 0.5.23 serves ids that do not begin with 1 as boundaries, on this architecture."""
    root, layout = tmp_path_factory.mktemp("pair"), (0, 3, 6)
    _save_draft(root / "draft", _save_target(root / "target"), layout)
    return Pair(root / "target", root / "draft", layout)
