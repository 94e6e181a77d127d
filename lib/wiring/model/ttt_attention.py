"""Attention of EAGLE-3's training-time test: step-0 keys of the rows before, and each row's own keys of later steps.

Rows are processed in blocks, each with the step-0 keys that it attends to: half the work of a full square, with the
scores of one block in memory. Key heads shared by several query heads are never repeated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CPU_ROWS = 64  # rows of a block: a small block wastes less beyond the diagonal, and its scores stay in the cache
_GPU_ROWS = 1024  # a launch costs more than the waste


def ttt_attention(q: Tensor, keys: list[Tensor], values: list[Tensor], window: int | None = None) -> Tensor:
    """Attention of row t over step-0 keys and row t's own keys of the later steps, one softmax over both.

    q [B, h, T, D]; keys and values one [B, kv, T, D] per step so far, h a multiple of kv. Row t attends to
    the step-0 keys 0..t, with a window to the last `window` of these. Returns [B, h, T, D].
    """
    rows = q.shape[2]
    if window is not None and window >= rows:
        window = None
    if rows == 0:
        return q
    if len(keys) == 1 and window is None:
        return F.scaled_dot_product_attention(
            q, keys[0], values[0], is_causal=True, enable_gqa=q.shape[1] != keys[0].shape[1]
        )
    shared = keys[0].shape[1]
    q = (q * q.shape[-1] ** -0.5).unflatten(1, (shared, -1))  # [B, kv, g, T, D]
    own = [(q * key.unsqueeze(2)).sum(-1, keepdim=True) for key in keys[1:]]  # each [B, kv, g, T, 1]
    size = block_rows(q.device)
    blocks = []
    for start in range(0, rows, size):
        end = min(start + size, rows)
        first = 0 if window is None else max(start - window + 1, 0)
        block, seen = q[:, :, :, start:end], end - first
        scores = (block.flatten(2, 3) @ keys[0][:, :, first:end].mT).unflatten(2, (-1, end - start))
        # [B, kv, g, block, seen]
        _hide(scores, start - first, window)
        weights = torch.cat([scores, *(one[:, :, :, start:end] for one in own)], -1)
        weights = weights.softmax(-1, dtype=torch.promote_types(weights.dtype, torch.float32)).to(q.dtype)
        past = weights[..., :seen].flatten(2, 3) @ values[0][:, :, first:end]  # [B, kv, g * block, D]
        mixed = past.unflatten(2, (-1, end - start))
        for step, value in enumerate(values[1:]):
            mixed = mixed + weights[..., seen + step, None] * value.unsqueeze(2)[:, :, :, start:end]
        blocks.append(mixed)
    return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, 3)).flatten(1, 2)


def block_rows(device: torch.device) -> int:
    """Return the rows of a block."""
    return _CPU_ROWS if device.type == "cpu" else _GPU_ROWS


def _hide(scores: Tensor, offset: int, window: int | None) -> None:
    """Mask in place the keys that row i of the block, with its step-0 key in column offset + i, does not attend to."""
    rows, columns = scores.shape[-2:]
    ahead = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu(1)
    scores[..., columns - rows :].masked_fill_(ahead, float("-inf"))
    if window is not None and offset + rows > window:
        behind = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril(offset - window)
        scores.masked_fill_(behind, float("-inf"))
