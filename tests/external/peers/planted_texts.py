"""Targets, texts, states and drafts from a seed, in which a draft is right sometimes: the answer is planted.

A text's label (the target's choice after a token) stays for a few tokens and then changes. The state in slot 0 leans
towards the next position's last hidden state, `fc` passes slot 0 through, and the draft's head is the target's seen
through the same projection. So an untrained draft is right more often than not at step 0 and less often at each
further step, and everything else in it (attention, MLP, norms, RoPE) disturbs that enough to matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NORM_EPS = 1e-6


@dataclass(frozen=True)
class Text:
    """One sequence: tokens [N], mask [N] int64, states [N, n, H], last hidden state before the final norm [N, H]."""

    tokens: Tensor
    mask: Tensor
    states: Tensor
    pre_norm: Tensor


@dataclass(frozen=True)
class Target:
    """Embedding and head [V, H], final norm [H]."""

    embedding: Tensor
    head: Tensor
    norm: Tensor

    def normed(self, rows: Tensor) -> Tensor:
        """The final norm of rows [..., H]."""
        return rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + NORM_EPS) * self.norm


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_target(seed: int, vocab: int, width: int) -> Target:
    """Random weights; the embedding is exact in bfloat16, as a trainer may store it."""
    g = generator(seed)
    return Target(
        embedding=torch.randn(vocab, width, generator=g).bfloat16().float(),
        head=torch.randn(vocab, width, generator=g) * width**-0.5,
        norm=1 + 0.2 * torch.randn(width, generator=g),
    )


def make_texts(seed: int, target: Target, slots: int, lengths: list[int], silent: int = 0) -> list[Text]:
    """A text of each length; masks have holes, and the first `silent` tokens of each are not trained on."""
    g = generator(seed)
    vocab, width = target.head.shape
    texts = []
    for length in lengths:
        changes = torch.rand(length, generator=g) < 0.15
        drawn = torch.randint(vocab, (length,), generator=g)
        label, labels = int(drawn[0]), []
        for change, new in zip(changes.tolist(), drawn.tolist(), strict=True):
            label = new if change else label
            labels.append(label)
        direction = target.head[labels] * width**0.5  # [N, H]
        pre_norm = 3 * direction + 1.5 * torch.randn(length, width, generator=g)
        tokens = torch.cat([torch.randint(vocab, (1,), generator=g), torch.tensor(labels[:-1], dtype=torch.int64)])
        ahead = torch.cat([pre_norm[1:], pre_norm[-1:]])
        states = torch.randn(length, slots, width, generator=g) * (1 + torch.arange(slots)).view(-1, 1)
        states[:, 0] = ahead + 1.5 * torch.randn(length, width, generator=g)
        mask = (torch.rand(length, generator=g) < 0.8).long()
        mask[:silent] = 0
        texts.append(Text(tokens, mask, states, pre_norm))
    return texts


def make_draft_tensors(
    seed: int,
    target: Target,
    *,
    width: int,
    inner: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    slots: int,
    ids: Tensor,
    layers: int = 1,
    layer_name: str = "layers.{}.",
    extra_norms: dict[str, int] | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    embedding: Tensor | None = None,
) -> dict[str, Tensor]:
    """Every tensor of a draft of these sizes, by the names of its trainer, exact in bfloat16.

    `ids` [Vd] ascending: the target ids that the draft can say; at full vocabulary no map is written.
    """
    g = generator(seed)
    vocab, target_width = target.head.shape

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=g) * scale * columns**-0.5

    def norm(size: int) -> Tensor:
        return 1 + 0.2 * torch.randn(size, generator=g)

    through = torch.linalg.qr(torch.randn(max(width, target_width), min(width, target_width), generator=g)).Q
    through = through if width >= target_width else through.T  # [H, target H], orthonormal on its narrow side
    tensors = {
        "fc.weight": torch.cat([through] + [matrix(width, target_width, 0.15)] * (slots - 1), 1),
        "norm.weight": 3 * norm(width),
        "lm_head.weight": target.head[ids] @ through.T + matrix(len(ids), width, 0.1),
    }
    for name, size in (extra_norms or {}).items():  # norms before fc: what they take in size, fc gives back
        tensors[name] = norm(size)
        tensors["fc.weight"] = tensors["fc.weight"] * 3 ** (1 / len(extra_norms))
    for i in range(layers):
        name, fed = layer_name.format(i), 2 * width if i == 0 else width
        tensors |= {
            f"{name}self_attn.q_proj.weight": matrix(heads * head_dim, fed, 1.5),
            f"{name}self_attn.k_proj.weight": matrix(kv_heads * head_dim, fed, 1.5),
            f"{name}self_attn.v_proj.weight": matrix(kv_heads * head_dim, fed),
            f"{name}self_attn.o_proj.weight": matrix(width, heads * head_dim),
            f"{name}mlp.gate_proj.weight": matrix(inner, width),
            f"{name}mlp.up_proj.weight": matrix(inner, width),
            f"{name}mlp.down_proj.weight": matrix(width, inner),
            f"{name}input_layernorm.weight": norm(width),
            f"{name}post_attention_layernorm.weight": norm(width),
        }
        if i == 0:
            tensors[f"{name}hidden_norm.weight"] = 2 * norm(width)
        if attention_bias:
            for part, size in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
                tensors[f"{name}self_attn.{part}_proj.bias"] = 0.15 * torch.randn(size, generator=g)
            tensors[f"{name}self_attn.o_proj.bias"] = 0.15 * torch.randn(width, generator=g)
        if mlp_bias:
            for part, size in (("gate", inner), ("up", inner), ("down", width)):
                tensors[f"{name}mlp.{part}_proj.bias"] = 0.15 * torch.randn(size, generator=g)
        if qk_norm:
            tensors[f"{name}self_attn.q_norm.weight"] = norm(head_dim)
            tensors[f"{name}self_attn.k_norm.weight"] = norm(head_dim)
    if embedding is not None:
        tensors["embed_tokens.weight"] = embedding
    tensors = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    if len(ids) < vocab:
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).scatter(0, ids, True)
    return tensors
