"""The draft's decoder layer and its parts. Parameter names are the checkpoint's canonical tensor names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wiring.models.attention import mix

if TYPE_CHECKING:
    from wiring.files.draft_config import Eagle3Config

_ACTIVATIONS = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class RMSNorm(nn.Module):
    """Root mean square norm with a learned weight, computed in float32 or wider; the weight comes after the cast."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, self.weight.shape, eps=self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Projections of one layer's attention; the first layer reads embedding and state side by side."""

    def __init__(self, c: Eagle3Config, reads: int):
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(reads, c.num_heads * c.head_dim, bias=c.attention_bias)
        self.k_proj = nn.Linear(reads, c.num_kv_heads * c.head_dim, bias=c.attention_bias)
        self.v_proj = nn.Linear(reads, c.num_kv_heads * c.head_dim, bias=c.attention_bias)
        self.o_proj = nn.Linear(c.num_heads * c.head_dim, c.hidden_size, bias=c.output_bias)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
            self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.qk_norm = c.qk_norm

    def of_embeddings(self, embeds: Tensor) -> tuple[Tensor, ...]:
        """What normed embeddings [B, N, H] add to queries, keys and values [B, N, width], biases included.

        A token's share is the same in every step, so it is computed once and not once per step.
        """
        width = embeds.shape[-1]
        return tuple(F.linear(embeds, p.weight[:, :width], p.bias) for p in (self.q_proj, self.k_proj, self.v_proj))

    def heads(self, x: Tensor, added: tuple[Tensor, ...] | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Rotated queries and keys, and values, each [B, heads, T, D], of x [B, T, H].

        `added` [B, T, width] is what `of_embeddings` gave for the same rows: x then meets the other half of the
        weights.
        """
        parts = []
        for i, project in enumerate((self.q_proj, self.k_proj, self.v_proj)):
            if added is None:
                y = project(x)
            else:
                weight = project.weight[:, -x.shape[-1] :]
                y = torch.addmm(added[i].flatten(0, 1), x.flatten(0, 1), weight.mT).view_as(added[i])
            parts.append(y.unflatten(-1, (-1, self.head_dim)))
        q, k, v = parts
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)


class MLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, c: Eagle3Config):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias)
        self.act = _ACTIVATIONS[c.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """One decoder layer of the draft; layer 0 also takes the embeddings."""

    def __init__(self, c: Eagle3Config, index: int):
        super().__init__()
        self.first, self.window, self.config = index == 0, c.windows[index], c
        for name in ("input_layernorm", "hidden_norm") if self.first else (c.deeper_norm,):
            setattr(self, name, RMSNorm(c.hidden_size, c.rms_norm_eps))
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c, 2 * c.hidden_size if self.first else c.hidden_size)
        self.mlp = MLP(c)

    def forward(
        self,
        hidden: Tensor,
        added: tuple[Tensor, ...] | None,
        cos: Tensor,
        sin: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        """The residual stream after this layer [B, T, H], not normed, of the one before it.

        `added` is what the embeddings add to queries, keys and values (layer 0). `keys` and `values` hold those of
        the earlier steps and get this step's.
        """
        if self.first:
            state = self.input_layernorm(hidden) if self.config.input_norm_twice else hidden
            normed = self.hidden_norm(state)
        else:
            normed = getattr(self, self.config.deeper_norm)(hidden)
        residual = normed if self.first and self.config.norm_before_residual else hidden
        q, k, v = self.self_attn.heads(normed, added, cos, sin)
        keys.append(k)
        values.append(v)
        mixed = mix(q, keys, values, self.window)
        hidden = residual + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE with a head's two halves as the two coordinates, as Llama has it: x [B, heads, T, D], cos [.., T, D/2]."""
    a, b = x.unflatten(-1, (2, -1)).unbind(-2)  # unbind, not slices: its gradient is one stack
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
