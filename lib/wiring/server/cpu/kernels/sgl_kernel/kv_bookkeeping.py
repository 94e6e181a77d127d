"""Assign KV slots to tokens in the table `req_to_token`, and copy between slots.

`req_to_token[r, t]` (int32, [requests, pool_len]) is the KV slot of token t of the request in row r. A packed tensor
holds the entries of one request after the other. `pool_len` is the table's width, which the functions do not need.
Names and order of arguments are those of SGLang's call sites; tensors marked "out" are written in place.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from wiring.errors import WiringError


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write packed slots into the table: `req_to_token[r, start:end] = next end - start slots`.

    Source: `assign_req_to_token_pool` in sglang/srt/mem_cache/allocation.py.

    Args:
        req_pool_indices: [batch], table row of each request.
        req_to_token: out.
        start_offset, end_offset: [batch], token range of each request, may be empty.
        out_cache_loc: [sum of the range lengths, or more] packed slots.
    """
    rows, columns = _table_cells(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read ranges of the table into packed slots: the inverse of `assign_req_to_token_pool_cpu`.

    Source: `assign_extend_cache_locs` in sglang/kernels/ops/speculative/cache_locs.py. Further entries of
    `out_cache_loc` (out) keep their values.
    """
    rows, columns = _table_cells(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def _table_cells(requests: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of each table cell in the ranges [start, end), request after request."""
    lengths = (end - start).long()
    rows = requests.long().repeat_interleave(lengths)
    first_in_pack = lengths.cumsum(0) - lengths
    columns = torch.arange(rows.numel()) + (start.long() - first_in_pack).repeat_interleave(lengths)
    return rows, columns


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Return in `out_cache_loc` the slots for a round's drafts: `topk * num_steps` after each sequence.

    Source: `assign_draft_cache_locs_contiguous` in sglang/kernels/ops/speculative/cache_locs.py.

    Args:
        req_pool_indices, seq_lens: [batch].
        out_cache_loc: [batch * topk * num_steps], out.
    """
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_steps)  # [batch, topk * num_steps]
    slots = req_to_token[req_pool_indices.long()[:, None], columns]
    out_cache_loc.copy_(slots.reshape(-1))


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots of accepted tokens to the front, in order.

    Source: `fill_accept_out_cache_loc` in sglang/kernels/ops/speculative/eagle.py.

    Args:
        accept_index: any shape, index into `out_cache_loc`, or -1 where nothing was accepted.
        out_cache_loc: [tokens], the slot of each verified token.
        accept_out_cache_loc: [accepted tokens, or more], out; further entries keep their values.
    """
    index = accept_index.reshape(-1)
    slots = out_cache_loc[index[index != -1].long()]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slot `src_loc[i]` over slot `tgt_loc[i]` in every layer's buffer.

    Source: `copy_all_layer_kv_cache_tiled` in sglang/kernels/ops/kvcache/cache_move.py: all sources are read before a
    target is written, so overlapping moves are safe.

    Args:
        data_ptrs: [buffers], address of each buffer (keys and values of each layer).
        strides: [buffers], bytes per slot.
        tgt_loc, src_loc: [moves], slots; targets are distinct.

    Raises:
        WiringError: the two lists differ in length ("kv-copy-lengths-differ"), or a slot is negative
            ("kv-slot-negative").
    """
    if tgt_loc.numel() != src_loc.numel():
        raise WiringError(
            "targets and sources differ in number",
            code="kv-copy-lengths-differ",
            where="copy_all_layer_kv_cache_cpu",
            expected=f"{tgt_loc.numel()} sources",
            found=src_loc.numel(),
        )
    if tgt_loc.numel() == 0:
        return
    lowest = min(int(tgt_loc.min()), int(src_loc.min()))
    if lowest < 0:  # an address before the buffer
        raise WiringError(
            "negative KV slot", code="kv-slot-negative", where="copy_all_layer_kv_cache_cpu", found=lowest
        )
    slots = max(int(tgt_loc.max()), int(src_loc.max())) + 1
    source, target = src_loc.long(), tgt_loc.long()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[target] = buffer[source]
