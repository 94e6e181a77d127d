"""Compute which KV slots the queries of a batch see, and attention over them, in plain PyTorch.

With p tokens of a sequence in the KV cache:

- verify: the target runs n tree nodes after the prefix; a node sees the prefix and its ancestors;
- draft step i of a round: `topk` branches run one token each; a branch sees the prefix and its own i + 1 drafts;
- prefill, plain decoding, draft extend: a token sees all tokens before it.

`table` is SGLang's `req_to_token`, int32 [requests of the pool, pool_len]: the KV slot of each token of each request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_BLOCK = 256
"""Maximum number of queries of one span in a prefill, which bounds the score matrix."""


@dataclass(frozen=True)
class Span:
    """Queries of one sequence and the keys that they see.

    Attributes:
        first, count: rows of the query tensor.
        slots: int64 [S] KV slots.
        hidden: bool [count, 1, S], true where a query does not see a key (the middle axis is for heads); None where
            every query sees every key.
    """

    first: int
    count: int
    slots: Tensor
    hidden: Tensor | None


def attend(query: Tensor, keys: Tensor, values: Tensor, spans: list[Span], scale: float) -> Tensor:
    """Return scaled dot-product attention of each span's queries over its slots, [T, heads, Dv].

    Two matrix products and a softmax in float32: for a handful of queries this takes a third of the time of
    `scaled_dot_product_attention`, which first repeats the keys for each query head.

    Args:
        query: [T, heads, Dk], the spans' rows in order and without gaps.
        keys, values: [slots of the pool, KV heads, Dk or Dv]; in a latent cache (MLA) the values are the first Dv
            entries of the keys, in the same memory.
        scale: factor on the scores.
    """
    heads, kv_heads, value_width = query.shape[1], keys.shape[1], values.shape[2]
    share = heads // kv_heads  # query heads per KV head; as rows, so that no key is repeated
    latent = keys.data_ptr() == values.data_ptr()
    query = query * scale
    if not spans:
        return query.new_empty(0, heads, value_width)
    outputs = []
    for span in spans:
        rows = query[span.first : span.first + span.count].view(span.count, kv_heads, share, -1)
        q = rows.transpose(0, 1).flatten(1, 2)  # [KV heads, count * share, Dk]
        k = keys.index_select(0, span.slots).to(q.dtype).transpose(0, 1)  # [KV heads, S, Dk]
        if latent:
            v = k[..., :value_width]
        else:
            v = values.index_select(0, span.slots).to(q.dtype).transpose(0, 1)  # [KV heads, S, Dv]
        scores = torch.bmm(q, k.mT).float()  # [KV heads, count * share, S]
        if span.hidden is not None:
            scores.view(kv_heads, span.count, share, -1).masked_fill_(span.hidden, float("-inf"))
        output = torch.bmm(scores.softmax(-1).to(v.dtype), v)
        outputs.append(output.view(kv_heads, span.count, share, -1).transpose(0, 1).flatten(1, 2))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def verify_spans(table: Tensor, requests: list[int], prefixes: list[int], tree: Tensor) -> list[Span]:
    """Return the spans of a verify batch.

    Args:
        requests, prefixes: [batch] table row, and number of tokens before the tree's root.
        tree: bool [batch, n, n], true where the node of the row sees the node of the column.
    """
    nodes = tree.shape[1]
    spans = []
    for i, (request, prefix) in enumerate(zip(requests, prefixes, strict=True)):
        hidden = torch.cat([tree.new_zeros(nodes, prefix), ~tree[i]], dim=1)  # [n, prefix + n]
        spans.append(Span(i * nodes, nodes, table[request, : prefix + nodes].long(), hidden[:, None]))
    return spans


def draft_spans(
    table: Tensor, requests: list[int], prefixes: list[int], topk: int, num_steps: int, step: int
) -> list[Span]:
    """Return the spans of draft step `step` (from 0), one per sequence.

    The drafts of branch b are in the table from prefix + b * num_steps, one per step, as
    `assign_draft_cache_locs_contiguous_cpu` lays them out.
    """
    others = ~torch.eye(topk, dtype=torch.bool).repeat_interleave(step + 1, dim=1)  # [topk, topk * (step + 1)]
    spans = []
    for i, (request, prefix) in enumerate(zip(requests, prefixes, strict=True)):
        drafts = table[request, prefix : prefix + topk * num_steps].view(topk, num_steps)[:, : step + 1]
        slots = torch.cat([table[request, :prefix], drafts.reshape(-1)]).long()
        hidden = None if topk == 1 else torch.cat([others.new_zeros(topk, prefix), others], dim=1)[:, None]
        spans.append(Span(i * topk, topk, slots, hidden))
    return spans


def causal_spans(table: Tensor, requests: list[int], prefixes: list[int], counts: list[int]) -> list[Span]:
    """Return the spans of a batch that adds `counts[i]` tokens after the prefix of sequence i, in blocks."""
    spans, first = [], 0
    for request, prefix, count in zip(requests, prefixes, counts, strict=True):
        for begin in range(0, count, QUERY_BLOCK):
            queries = min(QUERY_BLOCK, count - begin)
            seen = prefix + begin  # by every query of the block
            hidden = None
            if queries > 1:
                hidden = torch.ones(queries, seen + queries, dtype=torch.bool).triu_(seen + 1)[:, None]
            spans.append(Span(first + begin, queries, table[request, : seen + queries].long(), hidden))
        first += count
    return spans
