"""Attention over spans against one query at a time in float64, with the visible slots listed by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from wiring.server.cpu import spans as kit

SLOTS, POOL_LEN = 200, 30


def naive(query, keys, values, visible: list[list[int]], scale: float) -> np.ndarray:
    """Return softmax attention of query row t over the slots visible[t]; heads share KV heads in order."""
    q, k, v = (tensor.double().numpy() for tensor in (query, keys, values))
    out = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    share = q.shape[1] // k.shape[1]
    for row, slots in enumerate(visible):
        for head in range(q.shape[1]):
            scores = np.array([scale * np.dot(q[row, head], k[slot, head // share]) for slot in slots])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            for weight, slot in zip(weights, slots, strict=True):
                out[row, head] += weight * v[slot, head // share]
    return out


def memory(kind: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return (keys, values, query heads) of a KV pool."""
    torch.manual_seed(3)
    if kind == "latent":  # MLA: one KV head, the values are the keys' first entries
        pool = torch.randn(SLOTS, 1, 12)
        return pool, pool[..., :8], 4
    heads, kv_heads = {"multi-head": (4, 4), "grouped": (6, 2)}[kind]
    return torch.randn(SLOTS, kv_heads, 8), torch.randn(SLOTS, kv_heads, 5), heads


def table_and_requests(seed: int, batch: int):
    rng = random.Random(seed)
    table = torch.tensor(rng.sample(range(SLOTS), 6 * POOL_LEN), dtype=torch.int32).view(6, POOL_LEN)
    return table, rng.sample(range(6), batch)


def check(kind: str, spans: list[kit.Span], visible: list[list[int]]) -> None:
    keys, values, heads = memory(kind)
    query = torch.randn(len(visible), heads, keys.shape[2])
    out = kit.attend(query, keys, values, spans, 0.3)
    np.testing.assert_allclose(out.numpy(), naive(query, keys, values, visible, 0.3), rtol=1e-4, atol=1e-5)


KINDS = ["latent", "multi-head", "grouped"]


@pytest.mark.parametrize("kind", KINDS)
def test_causal_batch(kind, monkeypatch):
    """Prefill after prefixes of any length, decoding (one token each), and a request that adds nothing."""
    monkeypatch.setattr(kit, "QUERY_BLOCK", 4)  # so that longer spans are split
    table, requests = table_and_requests(0, 5)
    prefixes, counts = [0, 7, 3, 5, 0], [9, 1, 4, 0, 1]
    visible = []
    for request, prefix, count in zip(requests, prefixes, counts, strict=True):
        visible += [table[request, : prefix + i + 1].tolist() for i in range(count)]
    spans = kit.causal_spans(table, requests, prefixes, counts)
    assert max(span.count for span in spans) == 4
    check(kind, spans, visible)


@pytest.mark.parametrize("kind", KINDS)
def test_verify_batch(kind):
    """Each node sees the prefix, which may be empty, and the nodes that are true in its row of the mask."""
    table, requests = table_and_requests(1, 3)
    nodes, prefixes = 5, [0, 11, 25]
    tree = torch.rand(3, nodes, nodes, generator=torch.Generator().manual_seed(1)) < 0.5
    tree = tree.tril() | torch.eye(nodes, dtype=torch.bool)
    visible = []
    for i, (request, prefix) in enumerate(zip(requests, prefixes, strict=True)):
        cells = table[request].tolist()
        visible += [
            cells[:prefix] + [cells[prefix + column] for column in range(nodes) if tree[i, row, column]]
            for row in range(nodes)
        ]
    check(kind, kit.verify_spans(table, requests, prefixes, tree), visible)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("topk", [1, 4])
def test_draft_steps(kind, topk):
    """At step i branch b sees the prefix and its own drafts 0 to i, stored at prefix + b * steps onwards."""
    table, requests = table_and_requests(2, 3)
    steps, prefixes = 3, [1, 6, 18]
    for step in range(steps - 1):
        visible = []
        for request, prefix in zip(requests, prefixes, strict=True):
            cells = table[request].tolist()
            for branch in range(topk):
                own = prefix + branch * steps
                visible.append(cells[:prefix] + cells[own : own + step + 1])
        check(kind, kit.draft_spans(table, requests, prefixes, topk, steps, step), visible)


def test_half_precision_scores_are_summed_in_float32():
    keys, values, heads = (x.bfloat16() if torch.is_tensor(x) else x for x in memory("multi-head"))
    query = torch.randn(1, heads, 8).bfloat16()
    table = torch.arange(SLOTS, dtype=torch.int32)[None]
    out = kit.attend(query, keys, values, kit.causal_spans(table, [0], [SLOTS - 1], [1]), 0.3)
    assert out.dtype == torch.bfloat16
    exact = naive(query, keys, values, [list(range(SLOTS))], 0.3)
    np.testing.assert_allclose(out.float().numpy(), exact, atol=0.02)


def test_no_queries():
    keys, values, heads = memory("latent")
    assert kit.attend(torch.empty(0, heads, 12), keys, values, [], 1.0).shape == (0, heads, 8)
