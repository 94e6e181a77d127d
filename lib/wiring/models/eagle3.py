"""The EAGLE-3 draft in plain PyTorch, as SGLang serves it: one Llama layer over [embedding, target state].

Row t of a sequence holds the target's state g_t and the next token x_{t+1}. Step 0 predicts x_{t+2}. Step k goes on
from the draft's own output of step k-1 at the same row, with the text's token x_{t+1+k} at RoPE position t+k, and
predicts x_{t+2+k}. Row t sees the step-0 keys of rows 0..t and its own keys of steps 1..k. That is what a serving
engine computes when it drafts from row t and its first k proposals are the text's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wiring.errors import WiringError
from wiring.files.draft_config import Eagle3Config

if TYPE_CHECKING:
    from wiring.files.draft import DraftCheckpoint

__all__ = ["Eagle3Config", "Eagle3Draft"]

_ROW_BLOCK = 1024  # rows of attention scores held at once in steps >= 1


class RMSNorm(nn.Module):
    """Root mean square norm with a learned weight, computed in float32 or wider."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, self.weight.shape, eps=self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Projections of the draft's attention; its input is twice the hidden width."""

    def __init__(self, c: Eagle3Config):
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(2 * c.hidden_size, c.num_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, c.num_kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, c.num_kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_heads * c.head_dim, c.hidden_size, bias=False)

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values [B, heads, T, D] of x [B, T, 2H]; key heads are repeated."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        groups = q.shape[1] // k.shape[1]
        return (q, k, v) if groups == 1 else (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))


class MLP(nn.Module):
    """SiLU-gated feed-forward."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """The draft's only decoder layer. The residual is the state itself, not its norm."""

    def __init__(self, c: Eagle3Config):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)

    def heads(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of embeds [B, T, H] beside hidden [B, T, H]."""
        return self.self_attn.heads(torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], -1), cos, sin)

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Residual stream [B, T, H] after attention output `mixed` [B, heads, T, D] and the MLP, not normed."""
        hidden = hidden + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Draft(nn.Module):
    """A draft head over `config.num_slots` target states. Parameter names are the checkpoint's tensor names.

    `embedding` [V, H] is the target's, shared and never trained. `target_ids` [Vd] maps draft ids to target ids.
    """

    embedding: Tensor
    target_ids: Tensor
    inverse_frequencies: Tensor

    def __init__(self, config: Eagle3Config, embedding: Tensor, target_ids: Tensor | None = None):
        super().__init__()
        if tuple(embedding.shape) != (config.vocab_size, config.hidden_size):
            raise WiringError(
                "the target's embedding does not fit the draft",
                where="embed_tokens.weight",
                expected=f"[{config.vocab_size}, {config.hidden_size}] by the draft's config",
                found=list(embedding.shape),
                remedy="Pair the draft with the target that it was trained for",
            )
        if target_ids is None:
            target_ids = torch.arange(config.draft_vocab_size)
        self.config = config
        self.fc = nn.Linear(config.num_slots * config.target_hidden_size, config.hidden_size, bias=config.fc_bias)
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("embedding", embedding.detach().float().clone(), persistent=False)
        self.register_buffer("target_ids", target_ids.long(), persistent=False)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.register_buffer("inverse_frequencies", config.rope_theta**-exponents, persistent=False)

    @classmethod
    def from_checkpoint(cls, checkpoint: DraftCheckpoint, embedding: Tensor) -> Eagle3Draft:
        """Build a draft for evaluation (float32, no gradients) from a checked checkpoint and embedding [V, H].

        Raises WiringError when the embedding does not fit the draft's config.
        """
        config = Eagle3Config.from_dict(checkpoint.config, checkpoint.folder / "config.json")
        tensors = checkpoint.tensors
        d2t = tensors.get("d2t")
        target_ids = None if d2t is None else torch.arange(config.draft_vocab_size) + d2t.long()
        draft = cls(config, embedding, target_ids)
        draft.load_state_dict({name: tensors[name].float() for name in draft.state_dict()})
        return draft.eval().requires_grad_(False)

    @classmethod
    def fresh(cls, config: Eagle3Config, embedding: Tensor, seed: int, target_ids: Tensor | None = None) -> Eagle3Draft:
        """A draft to train, reproducible from `seed`; `target_ids` [Vd] ascending names the draft's vocabulary.

        Matrices start at variance 1 / fan-in; what writes to the residual stream or to the logits starts smaller.
        `fc` starts alike for all slots: where the states' scales differ, divide each slot by its spread before
        training and fold the factors into the columns of `fc.weight` afterwards.
        """
        draft = cls(config, embedding, target_ids)
        generator = torch.Generator().manual_seed(seed)
        small = ("o_proj.weight", "down_proj.weight", "lm_head.weight")
        with torch.no_grad():
            for name, parameter in draft.named_parameters():
                if parameter.dim() == 2:
                    scale = parameter.shape[1] ** -0.5 * (0.3 if name.endswith(small) else 1.0)
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
                elif name == "fc.bias":
                    parameter.zero_()
        return draft

    def checkpoint_tensors(self, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
        """Every tensor of the flat checkpoint format, on the CPU: weights in `dtype`, d2t int64, t2d bool."""
        ids = self.target_ids.cpu()
        tensors = {n: p.detach().to("cpu", dtype).contiguous() for n, p in self.state_dict().items()}
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(self.config.vocab_size, dtype=torch.bool).scatter(0, ids, True)
        return tensors

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        return self.target_ids[draft_ids]

    def unroll(self, tokens: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """Teacher-forced logits of every step: `steps` tensors [B, N-1, Vd], row t of step k predicting x_{t+2+k}.

        tokens [B, N] int64, states [B, N, n, H]; shorter sequences are padded on the right with any valid token and
        finite states (attention looks back only). Rows t > N-2-k of step k have no token x_{t+1+k} in the text and
        are fed the last one: their logits mean nothing and the caller masks them, as it masks padding.
        Raises WiringError when the states do not fit `fc`.
        """
        return list(self.unrolled(tokens, states, steps))

    def unrolled(self, tokens: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """As `unroll`, but one step at a time, so that only one step's logits [B, N-1, Vd] need memory."""
        rows = tokens.shape[1] - 1
        hidden = self.project(states[:, :rows])  # [B, T, H], T = N-1
        keys: list[Tensor] = []
        values: list[Tensor] = []
        index = torch.arange(rows, device=tokens.device)
        for step in range(steps):
            fed = tokens[:, (index + 1 + step).clamp(max=rows)]  # [B, T]
            cos, sin = self._rotation(index + step)
            q, k, v = self.midlayer.heads(self.embedding[fed], hidden, cos, sin)
            keys.append(k)
            values.append(v)
            hidden = self.midlayer.finish(hidden, _mix(q, keys, values))
            normed = self.norm(hidden)
            yield self.lm_head(normed)
            hidden = normed if self.config.norm_output else hidden

    def project(self, states: Tensor) -> Tensor:
        """`fc` over the slots side by side: [B, T, n, H] -> [B, T, draft H]. A state of the draft's width passes."""
        config = self.config
        if tuple(states.shape[-2:]) != (config.num_slots, config.target_hidden_size):
            raise WiringError(
                "the states do not fit the draft's fc",
                where="fc.weight",
                expected=f"{config.num_slots} states of width {config.target_hidden_size}",
                found=f"{states.shape[-2]} states of width {states.shape[-1]}",
            )
        side_by_side = states.flatten(-2).to(self.fc.weight.dtype)
        # SGLang tells target states from fed-back ones by width alone, and so skips fc when they are equally wide.
        return side_by_side if side_by_side.shape[-1] == config.hidden_size else self.fc(side_by_side)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, D/2] of RoPE at integer positions [T]."""
        angles = positions[:, None].float() * self.inverse_frequencies
        dtype = self.fc.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE with the two halves of a head as the two coordinates, as Llama has it. x [B, heads, T, D]."""
    a, b = x.unflatten(-1, (2, -1)).unbind(-2)  # unbind, not slices: its gradient is one stack
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _mix(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of row t over step-0 keys 0..t and row t's own keys of the later steps, one softmax over both.

    q [B, h, T, D]; keys and values one [B, h, T, D] per step so far. Returns [B, h, T, D].
    """
    if len(keys) == 1 or q.shape[2] == 0:  # a sequence of one token has no rows
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    rows, q = q.shape[2], q * q.shape[-1] ** -0.5
    own = torch.stack([(q * key).sum(-1) for key in keys[1:]], -1)  # [B, h, T, k]
    blocks = []
    for start in range(0, rows, _ROW_BLOCK):
        end = min(start + _ROW_BLOCK, rows)
        ahead = torch.ones(end - start, end, dtype=torch.bool, device=q.device).triu(start + 1)
        past = (q[:, :, start:end] @ keys[0][:, :, :end].mT).masked_fill(ahead, float("-inf"))  # [B, h, block, end]
        weights = torch.cat([past, own[:, :, start:end]], -1).softmax(-1)
        on_past, *on_own = weights.split([end] + [1] * len(values[1:]), -1)
        mixed = on_past @ values[0][:, :, :end]
        for weight, value in zip(on_own, values[1:], strict=True):
            mixed = mixed + weight * value[:, :, start:end]
        blocks.append(mixed)
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, 2)
