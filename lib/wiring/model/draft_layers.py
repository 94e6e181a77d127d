"""Decoder layer of the draft and its parts. Parameter names are the canonical tensor names of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wiring.model.ttt_attention import ttt_attention

if TYPE_CHECKING:
    from wiring.checkpoints.draft_config import Eagle3Config

_ACTIVATIONS = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class RMSNorm(nn.Module):
    """Root mean square norm with a learned weight, computed in float32 or wider; the weight applies after the cast."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of x [..., H], computed in float32 or wider, times weight [H] in the dtype of x."""
    wide = x if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, weight.shape, eps=eps).to(x.dtype) * weight


class Attention(nn.Module):
    """Projections of one layer's attention; the first layer's input is the embedding concatenated with the state."""

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

    def embedding_projection(self, embeds: Tensor) -> tuple[Tensor, ...]:
        """Project normed embeddings [B, N, H] to their part of queries, keys and values [B, N, width], biases included.

        This part is the same in every step, so it is computed once.
        """
        width = embeds.shape[-1]
        return tuple(F.linear(embeds, p.weight[:, :width], p.bias) for p in (self.q_proj, self.k_proj, self.v_proj))

    def queries(self, x: Tensor, added: tuple[Tensor, ...] | None, cos: Tensor, sin: Tensor) -> Tensor:
        """Return rotated queries [..., heads, D] of x [..., H]; cos and sin [..., D/2] of the same rows."""
        q = self._projected(self.q_proj, x, None if added is None else added[0])
        return rotate(self.q_norm(q) if self.qk_norm else q, cos, sin)

    def keys_and_values(
        self, x: Tensor, added: tuple[Tensor, ...] | None, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return rotated keys, and values, each [..., kv heads, D], of x [..., H]."""
        k = self._projected(self.k_proj, x, None if added is None else added[1])
        v = self._projected(self.v_proj, x, None if added is None else added[2])
        return rotate(self.k_norm(k) if self.qk_norm else k, cos, sin), v

    def _projected(self, project: nn.Linear, x: Tensor, added: Tensor | None) -> Tensor:
        """Return [..., heads, D]; `added` is the `embedding_projection` of the same rows, x takes the other half."""
        if added is None:
            y = project(x)
        else:
            width = x.shape[-1]
            weight = project.weight[:, -width:]
            y = torch.addmm(added.reshape(-1, added.shape[-1]), x.reshape(-1, width), weight.mT).view(added.shape)
        return y.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    """Gated feed-forward network."""

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

    input_layernorm: RMSNorm  # of layer 0, as `hidden_norm`; deeper layers have one of the two
    hidden_norm: RMSNorm

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
        keep: Tensor | None = None,
    ) -> Tensor:
        """Map the residual stream `hidden` [B, T, H] to the one after this layer, not normed.

        `added` is the `embedding_projection` of the rows (layer 0); cos and sin are [B or 1, T, D/2]. This step's keys
        and values are appended to `keys` and `values`. Rows that `keep` [B, T] leaves out are returned as zeros; their
        keys and values are computed in step 0 only, where later rows attend to them.
        """
        if self.first:
            state = self.input_layernorm(hidden) if self.config.input_norm_twice else hidden
            normed = self.hidden_norm(state)
        else:
            normed = getattr(self, self.config.deeper_norm)(hidden)
        residual = normed if self.first and self.config.norm_before_residual else hidden
        rows = KeptRows(keep, hidden)
        every = rows if keys else KeptRows(None, hidden)  # rows with needed keys and values
        angles = cos.expand(*hidden.shape[:2], -1), sin.expand(*hidden.shape[:2], -1)  # [B, T, D/2]
        attention = self.self_attn
        k, v = attention.keys_and_values(every.gather(normed), every.gather_all(added), *map(every.gather, angles))
        keys.append(every.scatter(k).transpose(1, 2))
        values.append(every.scatter(v).transpose(1, 2))
        q = rows.scatter(
            attention.queries(rows.gather(normed), rows.gather_all(added), *map(rows.gather, angles))
        ).transpose(1, 2)
        mixed = ttt_attention(q, keys, values, self.window).transpose(1, 2).flatten(2)  # [B, T, h * D]
        done = rows.gather(residual) + attention.o_proj(rows.gather(mixed))
        return rows.scatter(done + self.mlp(self.post_attention_layernorm(done)))


class KeptRows:
    """The rows of a batch to compute: all, or those of a mask [B, T], packed as [M, ...]."""

    def __init__(self, keep: Tensor | None, like: Tensor):
        self.shape = like.shape[:2]
        self.index = None if keep is None or bool(keep.all()) else keep.flatten().nonzero()[:, 0]  # [M]

    def gather(self, x: Tensor) -> Tensor:
        """Return the kept rows [M, ...] of x [B, T, ...]; x itself where all are kept."""
        return x if self.index is None else x.flatten(0, 1)[self.index]

    def gather_all(self, parts: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Return `gather` of each part."""
        return None if parts is None else tuple(self.gather(part) for part in parts)

    def scatter(self, x: Tensor) -> Tensor:
        """Return [B, T, ...] with the kept rows [M, ...] and zeros elsewhere; x itself where all are kept."""
        if self.index is None:
            return x
        whole = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[1:])
        return whole.index_copy(0, self.index, x).unflatten(0, self.shape)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE as in Llama, the halves of a head as coordinates: x [..., heads, D], cos and sin [..., D/2]."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x.unflatten(-1, (2, -1)).unbind(-2)  # the gradient of unbind is one stack
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
