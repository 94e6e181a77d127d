"""The target in plain PyTorch with all layers' weights stacked: DeepseekV3ForCausalLM's function, made for training.

Sixty-one narrow layers cost more in Python and in the optimizer than in arithmetic. Stacked weights let one
batched call update every layer, and one compiled layer function serves all. Norm weights inside the layers
stay at one (the matrices behind them can take their place); the final norm's is trained.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny.config import TARGET_EPS, TargetSizes

ATTENTION = ("q_down", "kv_down", "k_rope", "q_up", "k_up", "v_up", "attention_out")
DENSE = ("gate", "up", "down")
SHARED = ("shared_gate", "shared_up", "shared_down")
EXPERTS = ("expert_gate", "expert_up", "expert_down")
MATRICES = ATTENTION + DENSE + SHARED + EXPERTS  # what Muon trains; the rest is AdamW's
RESIDUAL_GAIN = 0.1  # of the matrices that write to the residual stream, at the start of training


class RmsNorm(torch.autograd.Function):
    """Root-mean-square norm without a weight, with a backward pass that keeps one tensor instead of four."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        scale = torch.rsqrt(
            torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(TARGET_EPS)
        )
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        along = (grad * y).sum(-1, keepdim=True).div_(-y.shape[-1])
        return torch.addcmul(grad, y, along).mul_(scale)


rms_norm = RmsNorm.apply


def yarn_frequencies(sizes: TargetSizes) -> Tensor:
    """Rotation per position of each channel pair [rope/2], interpolated as in YaRN (arXiv 2309.00071, section 3.2)."""
    pairs = torch.arange(0, sizes.rope, 2, dtype=torch.float32)
    plain = sizes.rope_theta ** (-pairs / sizes.rope)

    def pair_of(rotations: float) -> float:  # which pair turns this often over the original context
        return sizes.rope * math.log(sizes.yarn_original / (rotations * 2 * math.pi)) / (2 * math.log(sizes.rope_theta))

    low = max(math.floor(pair_of(32)), 0)
    high = min(math.ceil(pair_of(1)), sizes.rope - 1)
    stretched = ((torch.arange(sizes.rope // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / sizes.yarn_factor * stretched + plain * (1 - stretched)


def rotation_table(sizes: TargetSizes, length: int) -> Tensor:
    """Cosines and sines [2, length, 1, head/2]; channels without a position get angle zero, to be treated alike."""
    frequencies = torch.cat([torch.zeros(sizes.nope // 2), yarn_frequencies(sizes)])
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()])[:, :, None]


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate interleaved channel pairs; x [B, N, heads, head], table [2, N, 1, head/2]."""
    cosine, sine = table
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


def attention(sizes: TargetSizes, x: Tensor, table: Tensor, q_down, kv_down, k_rope, q_up, k_up, v_up, out) -> Tensor:
    """Multi-head latent attention with its residual; x [B, N, H]."""
    batch, length, _ = x.shape
    heads = (batch, length, sizes.heads, -1)
    h = rms_norm(x)
    latent = rms_norm(F.linear(h, kv_down))  # [B, N, kv_rank]
    q = F.linear(rms_norm(F.linear(h, q_down)), q_up).view(heads)
    shared = F.linear(h, k_rope)[:, :, None].expand(batch, length, sizes.heads, sizes.rope)
    k = torch.cat([F.linear(latent, k_up).view(heads), shared], -1)
    v = F.linear(latent, v_up).view(heads)
    q, k, v = (part.transpose(1, 2) for part in (rotate(q, table), rotate(k, table), v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=sizes.softmax_scale)
    return x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), out)


def swiglu(h: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Gated MLP; h [B, N, H]."""
    return F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def dense_layer(sizes: TargetSizes, x: Tensor, table: Tensor, *weights: Tensor) -> Tensor:
    """One layer with a dense MLP; weights in the order ATTENTION + DENSE."""
    x = attention(sizes, x, table, *weights[:7])
    return x + swiglu(rms_norm(x), *weights[7:])


def expert_layer(
    sizes: TargetSizes, x: Tensor, table: Tensor, router: Tensor, experts, shared, *weights: Tensor
) -> Tensor:
    """One layer with a mixture of experts: every expert is computed, the router's weights are zero for most."""
    x = attention(sizes, x, table, *weights)
    h = rms_norm(x)
    scores = F.linear(h, router).sigmoid()  # [B, N, experts]
    best, chosen = scores.topk(sizes.experts_per_token, -1)
    share = torch.zeros_like(scores).scatter(-1, chosen, best / (best.sum(-1, keepdim=True) + 1e-20))
    mixed = swiglu(h, *shared)
    for expert, matrices in enumerate(zip(*experts, strict=True)):
        mixed = mixed + share[..., expert : expert + 1] * swiglu(h, *matrices)
    return x + mixed


class StackedTarget(nn.Module):
    """The tiny target; parameters are stacked: [layers, out, in], experts [moe_layers, experts, out, in]."""

    rotations: Tensor

    def __init__(self, sizes: TargetSizes, seed: int = 0):
        super().__init__()
        self.sizes = sizes
        generator = torch.Generator().manual_seed(seed)

        def matrix(*shape: int, gain: float = 1.0, std: float | None = None) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(*shape, generator=generator) * (gain * shape[-1] ** -0.5 if std is None else std)
            )

        s, n, m = sizes, sizes.layers, sizes.moe_layers
        self.embedding = matrix(s.vocab, s.hidden, std=0.5)
        self.head = matrix(s.vocab, s.hidden, std=0.02)
        self.final_norm = nn.Parameter(torch.ones(s.hidden))
        self.q_down = matrix(n, s.q_rank, s.hidden)
        self.kv_down = matrix(n, s.kv_rank, s.hidden)
        self.k_rope = matrix(n, s.rope, s.hidden)
        self.q_up = matrix(n, s.heads * s.head, s.q_rank)
        self.k_up = matrix(n, s.heads * s.nope, s.kv_rank)
        self.v_up = matrix(n, s.heads * s.value, s.kv_rank)
        self.attention_out = matrix(n, s.hidden, s.heads * s.value, gain=RESIDUAL_GAIN)
        self.gate = matrix(s.dense_layers, s.mlp, s.hidden)
        self.up = matrix(s.dense_layers, s.mlp, s.hidden)
        self.down = matrix(s.dense_layers, s.hidden, s.mlp, gain=RESIDUAL_GAIN)
        self.router = matrix(m, s.experts, s.hidden)
        self.shared_gate = matrix(m, s.expert_mlp, s.hidden)
        self.shared_up = matrix(m, s.expert_mlp, s.hidden)
        self.shared_down = matrix(m, s.hidden, s.expert_mlp, gain=RESIDUAL_GAIN)
        self.expert_gate = matrix(m, s.experts, s.expert_mlp, s.hidden)
        self.expert_up = matrix(m, s.experts, s.expert_mlp, s.hidden)
        self.expert_down = matrix(m, s.experts, s.hidden, s.expert_mlp, gain=RESIDUAL_GAIN)
        self.register_buffer("rotations", rotation_table(sizes, sizes.positions), persistent=False)
        self.dense_layer = dense_layer

    def compile(self) -> None:
        """Compile the dense layer, once for all of them; needs a C++ compiler."""
        self.dense_layer = torch.compile(dense_layer, dynamic=False)

    def forward(self, tokens: Tensor, boundaries: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Logits [B, N, V], post-norm last hidden [B, N, H] and the asked boundaries {b: [B, N, H]}, b in 0..layers."""
        s, captured = self.sizes, {}
        table = self.rotations[:, : tokens.shape[1]]
        # unbind once: indexing layer by layer would add up one full-size gradient per layer
        layers = {name: getattr(self, name).unbind(0) for name in MATRICES + ("router",)}
        x = F.embedding(tokens, self.embedding)
        for layer in range(s.layers):
            if layer in boundaries:
                captured[layer] = x
            weights = [layers[name][layer] for name in ATTENTION]
            if layer < s.dense_layers:
                x = self.dense_layer(s, x, table, *weights, *(layers[name][layer] for name in DENSE))
            else:
                m = layer - s.dense_layers
                experts = [layers[name][m].unbind(0) for name in EXPERTS]
                shared = [layers[name][m] for name in SHARED]
                x = expert_layer(s, x, table, layers["router"][m], experts, shared, *weights)
        if s.layers in boundaries:
            captured[s.layers] = x
        last = rms_norm(x) * self.final_norm
        return F.linear(last, self.head), last, captured
