"""Small random targets and a draft that is right for some tokens and wrong for others, as identity tests need it.

A target has random layers around a planted bigram: its head prefers `successor(x)` after token x, and the layers change
the state enough that the context sometimes overrules the bigram. The draft knows the bigram alone: its attention has
equal query and key projections of the token's embedding, so each position attends to itself, takes the embedding as
value, and its head maps it to the successor. Reference tokens come from transformers in float32.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY, WIDTH, LAYERS = 128, 64, 5
DRAFT_VOCABULARY = 96
SEED = 1
UPHEAVAL = 0.5  # scale of each layer's output: the larger, the more often the context overrules the bigram
LAYOUT = (0, 2, 4)  # SGLang 0.5.23 serves ids that do not begin with 1 as boundaries, on this architecture
FAMILY_LAYERS = 8  # the fewest that have SGLang's default layers
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 128, "num_attention_heads": 4}
_SIZES |= {"max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False}
_PLAIN = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": FAMILY_LAYERS,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


@dataclass(frozen=True)
class Reference:
    """Greedy continuation of a prompt by transformers; `margin` is the smallest gap between its two best logits."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    margin: float


@dataclass(frozen=True)
class Pair:
    """A target with tokenizer, its draft, and reference continuations by name of the request group.

    references: "ragged" (32 prompts of 2 to 47 tokens), "long" (prompts longer than a prefill chunk of 64), "many" (6
        that never generate `eos`; their continuations together overflow a small KV pool).
    eos: the target's end-of-sequence token, chosen so that it occurs in many of the ragged outputs.
    """

    target: Path
    draft: Path
    layout: tuple[int, ...]
    references: dict[str, tuple[Reference, ...]]
    eos: int

    def text(self, tokens: tuple[int, ...]) -> str:
        return "".join(word(token) for token in tokens)


def word(token: int) -> str:
    return f"w{token:03}"


def build_pair(folder: Path) -> Pair:
    """Write target and draft, and compute the references with transformers."""
    target, draft = folder / "target", folder / "draft"
    write_target(target)
    _write_draft(draft, target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(SEED + 2)

    def ask(count: int, shortest: int, longest: int, new_tokens: int) -> tuple[Reference, ...]:
        lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
        prompts = [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
        return continue_greedily(model, prompts, new_tokens)

    ragged, long, many = ask(32, 2, 47, 20), ask(3, 130, 180, 12), ask(16, 16, 24, 80)
    eos = _token_to_stop_at(ragged, many)
    endless = tuple(reference for reference in many if eos not in reference.output)[:6]
    references = {"ragged": ragged, "long": long, "many": endless}
    _edit(target / "config.json", eos_token_id=eos)
    _edit(target / "generation_config.json", eos_token_id=eos)
    return Pair(target, draft, LAYOUT, references, eos)


@torch.no_grad()
def continue_greedily(model, prompts: list[list[int]], new_tokens: int) -> tuple[Reference, ...]:
    """Generate greedily without a KV cache, all prompts in one batch padded on the right (causal: no effect)."""
    torch.set_num_threads(1)  # the layers are too small for more
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    rows = torch.arange(len(prompts))
    tokens = torch.zeros(len(prompts), int(lengths.max()) + new_tokens, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    margins = torch.full((len(prompts),), torch.inf)
    for _ in range(new_tokens):
        logits = model(tokens[:, : int(lengths.max())], use_cache=False).logits[rows, lengths - 1]  # [B, V]
        best = logits.topk(2)
        margins = margins.minimum(best.values[:, 0] - best.values[:, 1])
        tokens[rows, lengths] = best.indices[:, 0]
        lengths = lengths + 1
    return tuple(
        Reference(tuple(prompt), tuple(row[len(prompt) : len(prompt) + new_tokens].tolist()), float(margin))
        for prompt, row, margin in zip(prompts, tokens, margins, strict=True)
    )


def _token_to_stop_at(ragged: tuple[Reference, ...], many: tuple[Reference, ...]) -> int:
    """Return the token that would end fewest of the many, among those that would end 5 ragged requests early."""
    enders = [token for token in range(VOCABULARY) if sum(token in r.output[:-1] for r in ragged) >= 5]
    return min(enders, key=lambda token: sum(token in reference.output for reference in many))


def write_target(folder: Path, layers: int = LAYERS) -> None:
    """Write the random target, with experts in its last layer, and its tokenizer."""
    config = DeepseekV3Config(
        **_SIZES,
        moe_intermediate_size=64,
        num_hidden_layers=layers,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        routed_scaling_factor=1.0,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        first_k_dense_replace=layers - 1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=32,
        pad_token_id=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    torch.manual_seed(SEED)
    model = DeepseekV3ForCausalLM(config).float()
    _plant(model)
    model.save_pretrained(folder)
    # What SGLang reads and transformers does not write.
    _edit(
        folder / "config.json",
        moe_layer_freq=1,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        num_nextn_predict_layers=0,
        rope_theta=10000.0,
    )
    _write_tokenizer(folder)


def write_family_target(folder: Path, family: str) -> None:
    """Write a target of 8 layers of "deepseek", "llama" or "qwen3"; SGLang reads their layer ids by different rules."""
    if family == "deepseek":
        return write_target(folder, FAMILY_LAYERS)
    config, model = _FAMILIES[family]
    torch.manual_seed(SEED)
    made = model(config(**_SIZES, **_PLAIN)).float()
    _plant(made)
    made.save_pretrained(folder)
    return _write_tokenizer(folder)


@torch.no_grad()
def _plant(model) -> None:
    """Fill a target with random layers that change the state, and its head with the bigram."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            parameter.mul_(UPHEAVAL * 2.0)
    embedding = model.model.embed_tokens.weight.normal_()
    model.lm_head.weight[successors()] = embedding * 0.25


def _write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one word per token."""
    tokenizer = Tokenizer(models.WordLevel({word(i): i for i in range(VOCABULARY)}, unk_token=word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def successors() -> torch.Tensor:
    """Return [VOCABULARY] the token after each token in the planted bigram: one cycle through all of them."""
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(SEED + 1))
    after = torch.empty_like(order)
    after[order] = order.roll(-1)
    return after


def _write_draft(folder: Path, target: Path) -> None:
    from safetensors.torch import load_file

    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    known = torch.arange(VOCABULARY)[: VOCABULARY - VOCABULARY % 4].view(-1, 4)[:, :3].flatten()  # three of four
    assert known.numel() == DRAFT_VOCABULARY
    head = torch.empty(VOCABULARY, WIDTH)
    head[successors()] = embedding
    generator = torch.Generator().manual_seed(SEED + 3)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5 * scale

    identity, nothing = torch.eye(WIDTH), torch.zeros(WIDTH, WIDTH)
    tensors = {
        "fc.weight": random(WIDTH, 3 * WIDTH, scale=0.3),
        "midlayer.self_attn.q_proj.weight": torch.cat([2 * identity, nothing], dim=1),
        "midlayer.self_attn.k_proj.weight": torch.cat([2 * identity, nothing], dim=1),
        "midlayer.self_attn.v_proj.weight": torch.cat([identity, nothing], dim=1),
        "midlayer.self_attn.o_proj.weight": identity,
        "midlayer.mlp.gate_proj.weight": random(128, WIDTH),
        "midlayer.mlp.up_proj.weight": random(128, WIDTH),
        "midlayer.mlp.down_proj.weight": random(WIDTH, 128, scale=0.3),
        **{
            f"midlayer.{name}.weight": torch.ones(WIDTH)
            for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        },
        "norm.weight": torch.ones(WIDTH),
        "lm_head.weight": head[known],
        "d2t": known - torch.arange(DRAFT_VOCABULARY),
        "t2d": torch.isin(torch.arange(VOCABULARY), known),
    }
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": WIDTH,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(LAYOUT), "use_aux_hidden_state": True},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _edit(path: Path, **entries) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}, indent=1))
