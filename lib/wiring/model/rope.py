"""Frequencies, cosines and sines of a draft's rotary embedding, in float32, as its implementation computes them.

The three flavors of the same parameters:

- default, llama3: the same frequencies. Linear: SpecForge and SGLang divide the position, transformers the frequency.
- dynamic: transformers increases the base for texts longer than max_position_embeddings, SGLang sets it once for
  max_position_embeddings x factor, SpecForge for max_position_embeddings + 20 (the length of its cache) and for the
  length of the text beyond it.
- yarn: the frequencies are the same; cosine and sine are scaled by mscale / mscale_all_dim in SpecForge whatever their
  values, in transformers only where both are above 0 and no attention_factor is given, in SGLang where both are given,
  times attn_factor; otherwise by 0.1 ln(factor) + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wiring.checkpoints.rope_config import Rope

_SPECFORGE_MARGIN = 20  # positions that SpecForge's cache holds beyond max_position_embeddings


def cosines(rope: Rope, head_dim: int, positions: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [B or 1, 1, T, D/2] float32 at integer positions [T], on their device.

    `lengths` are the lengths of the texts in tokens so far, one per sequence or one for all; only dynamic scaling uses
    them.
    """
    lengths = lengths if depends_on_length(rope) else lengths[:1]
    inverse = torch.stack([frequencies(rope, head_dim, length) for length in lengths]).to(positions.device)
    where = positions.float()
    if rope.type == "linear" and rope.flavour != "transformers":
        where = where / rope.factor
    angles = where[:, None] * inverse[:, None, None]  # [B, 1, T, D/2]
    scale = attention_scale(rope)
    return (angles.cos(), angles.sin()) if scale == 1.0 else (angles.cos() * scale, angles.sin() * scale)


def depends_on_length(rope: Rope) -> bool:
    """Return whether the frequencies depend on the length of the text."""
    return rope.type == "dynamic" and rope.flavour != "sglang"


def frequencies(rope: Rope, head_dim: int, length: int = 0) -> Tensor:
    """Return the angle per position of each channel pair [D/2] float32, without divided positions (see `cosines`)."""
    if rope.type == "dynamic":
        return _plain(_dynamic_base(rope, head_dim, length), head_dim)
    inverse = _plain(rope.theta, head_dim)
    if rope.type == "linear" and rope.flavour == "transformers":
        return inverse / rope.factor
    if rope.type == "llama3":
        return _llama3(rope, inverse)
    if rope.type == "yarn":
        return _yarn(rope, head_dim)
    return inverse


def attention_scale(rope: Rope) -> float:
    """Return the factor of cosine and sine: 1 except for yarn."""
    if rope.type != "yarn":
        return 1.0
    mscale, all_dim = rope.mscale, rope.mscale_all_dim
    if rope.flavour == "transformers" and rope.attention_factor is not None:
        return rope.attention_factor
    if rope.flavour == "specforge":
        ratio = True
    else:
        ratio = bool(mscale and all_dim) if rope.flavour == "transformers" else None not in (mscale, all_dim)
    scale = (
        _mscale(rope.factor, mscale or 0.0) / _mscale(rope.factor, all_dim or 0.0) if ratio else _mscale(rope.factor)
    )
    return scale * (rope.attention_factor or 1.0) if rope.flavour == "sglang" else scale


def _plain(base: float, head_dim: int) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def _dynamic_base(rope: Rope, head_dim: int, length: int) -> float:
    longest, power = rope.max_position_embeddings, head_dim / (head_dim - 2) if head_dim > 2 else 0.0
    if rope.alpha is not None:
        return rope.theta * rope.alpha**power
    seen = {
        "transformers": max(length, longest),
        "specforge": max(length, longest + _SPECFORGE_MARGIN),
        "sglang": longest * rope.factor,
    }[rope.flavour]
    return rope.theta * ((rope.factor * seen / longest) - (rope.factor - 1)) ** power


def _llama3(rope: Rope, inverse: Tensor) -> Tensor:
    """Divide long waves by the factor, keep short ones, interpolate between."""
    low, high, original = rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings
    wave = 2 * math.pi / inverse
    smooth = (original / wave - low) / (high - low) if low != high else torch.zeros_like(inverse)
    mixed = (1 - smooth) * inverse / rope.factor + smooth * inverse
    long = torch.where(wave > original / low, inverse / rope.factor, mixed)
    return torch.where(wave < original / high, inverse, long)


def _yarn(rope: Rope, head_dim: int) -> Tensor:
    """Keep fast rotations, divide slow ones by the factor, with a linear ramp over the channels between."""
    power = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    kept, divided = 1.0 / power, 1.0 / (rope.factor * power)

    def channel(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = channel(rope.beta_fast), channel(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    keep = 1.0 - ramp.clamp(0, 1)
    if rope.flavour == "sglang":
        keep = keep * rope.extrapolation_factor
    return divided * (1 - keep) + kept * keep


def _mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
