"""Compute norms and cosines of served rows against every boundary and shift of a reference.

One pass over the reference in blocks of rows. A candidate is f * r or f * w * r, with r a row of the reference, w the
weight of the final norm and f a number of the row, so two cosines and two norms give all transforms. Products are in
float64, in which an error of 1e-8 differs from none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wiring.capture.matching.match_result import EMBEDDING_SCALED, NORMED, RAW, RMS_SCALED

_BLOCK_BYTES = 256 << 20  # float64 reference rows held at once


@dataclass(frozen=True)
class Norm:
    """The target's final RMS norm: weight [H] as multiplied, and epsilon."""

    weight: Tensor
    eps: float = 1e-6


@dataclass(frozen=True)
class TextRows:
    """The origin of rows of states: `positions` int64 [M] in their texts, `texts` int64 [M]; None for one text."""

    positions: Tensor
    texts: Tensor | None = None

    @classmethod
    def whole(cls, lengths: Sequence[int]) -> TextRows:
        """Return all positions of texts of these lengths, one text after the other."""
        positions = torch.cat([torch.arange(n) for n in lengths])
        return cls(positions, torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)))

    def keys(self, low: int, span: int, shift: int = 0) -> Tensor:
        """Return a number for each text and shifted position, int64 [M]; positions are in low..low+span-1."""
        texts = torch.zeros_like(self.positions) if self.texts is None else self.texts
        return texts.cpu().long() * span + self.positions.cpu() + shift - low


def partners(served: TextRows, reference: TextRows, shift: int) -> Tensor:
    """Return for each served row the reference row of the same text `shift` positions later, -1 if none: int64 [M]."""
    low = int(torch.stack([served.positions.min().cpu() + shift, reference.positions.min().cpu()]).min())
    high = int(torch.stack([served.positions.max().cpu() + shift, reference.positions.max().cpu()]).max())
    wanted = served.keys(low, high - low + 1, shift)
    present, order = reference.keys(low, high - low + 1).sort(stable=True)
    at = torch.searchsorted(present, wanted).clamp(max=len(present) - 1)
    return torch.where(present[at] == wanted, order[at], -1)


@dataclass(frozen=True)
class Scan:
    """Float64 on the CPU. `partner` [S, M]: reference row of each served row under each shift, -1 if none.

    served_norm [n, M]; norm [S, 2, B, M] and cosine [n, S, 2, B, M] of reference rows without and with the norm's
    weight; zero without a partner or a weight.
    """

    partner: Tensor
    served_norm: Tensor
    norm: Tensor
    cosine: Tensor
    width: int
    eps: float

    def candidate(self, slot: int, shift: int, transform: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return (error, cosine, norm ratio), each [B, rows with a partner]; `shift` is an index of the shifts."""
        rows = self.partner[shift] >= 0
        family = int(transform == NORMED)
        plain, size = self.norm[shift, 0][:, rows], self.norm[shift, family][:, rows]  # [B, m]
        size = size * scale(plain, transform, self.width, self.eps)
        cosine = self.cosine[slot, shift, family][:, rows]
        ratio = self.served_norm[slot, rows] / size.clamp_min(1e-300)
        error = (ratio.square() - 2 * ratio * cosine + 1).clamp_min(0).sqrt()
        error = torch.where(error < 1e-7, 0.0, error)  # smaller errors are rounding of this formula
        error = error.nan_to_num(nan=torch.inf, posinf=torch.inf)
        return error, cosine.nan_to_num(nan=0.0), ratio.nan_to_num(nan=0.0, posinf=torch.inf)


def scale(length: Tensor, transform: str, width: int, eps: float) -> Tensor | float:
    """Return the factor of a transform for rows of norm `length` [...], without the norm's weight."""
    if transform in (NORMED, RMS_SCALED):
        return (length.square() / width + eps).rsqrt()
    return {RAW: 1.0, EMBEDDING_SCALED: width**0.5}[transform]


def transformed(rows: Tensor, transform: str, norm: Norm | None) -> Tensor:
    """Apply a transform to rows [..., H] of a boundary, in float64."""
    rows = rows.double()
    rows = rows * scale(rows.norm(dim=-1, keepdim=True), transform, rows.shape[-1], norm.eps if norm else 1e-6)
    return rows * norm.weight.to(rows.device, torch.float64) if norm and transform == NORMED else rows


def scan(served: Tensor, reference: Tensor, partner: Sequence[Tensor], norm: Norm | None) -> Scan:
    """Scan served [M, n, H] against reference [B, N, H] under the shifts' `partner` [M]."""
    count, slots, width = served.shape
    device, boundaries = reference.device, len(reference)
    sizes = torch.zeros(len(partner), 2, boundaries, count, dtype=torch.float64)
    cosine = torch.zeros(slots, len(partner), 2, boundaries, count, dtype=torch.float64)
    served_norm = torch.zeros(slots, count, dtype=torch.float64)
    weight = torch.zeros(width, dtype=torch.float64) if norm is None else norm.weight.double().cpu()
    weight = weight.to(device)
    step = max(1, _BLOCK_BYTES // (8 * boundaries * width))
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        own = served[rows].to(device, torch.float64)  # [m, n, H]
        length = own.norm(dim=-1)  # [m, n]
        served_norm[:, rows] = length.T.cpu()
        both = torch.cat([own, own * weight], 1)  # [m, 2n, H]
        for s, index in enumerate(partner):
            at = index[rows]
            theirs = reference[:, at.clamp_min(0).to(device)].double()  # [B, m, H]
            dots = torch.einsum("bmh,mkh->bmk", theirs, both).unflatten(-1, (2, slots))  # [B, m, 2, n]
            squares = theirs.square_()
            size = torch.stack([squares.sum(-1), squares @ weight.square()]).sqrt()  # [2, B, m]
            present = (at >= 0).to(device)
            found = dots.permute(3, 2, 0, 1) / (size * length.T[:, None, None]).clamp_min(1e-300)  # [n, 2, B, m]
            cosine[:, s, :, :, rows] = torch.where(present, found, 0.0).cpu()
            sizes[s, :, :, rows] = torch.where(present, size, 0.0).cpu()
    return Scan(torch.stack(list(partner)), served_norm, sizes, cosine, width, norm.eps if norm else 1e-6)
