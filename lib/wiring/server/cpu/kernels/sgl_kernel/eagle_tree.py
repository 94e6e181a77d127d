"""The EAGLE draft tree: building it, walking it with the target's tokens, and what follows a walk.

A tree of one request has n = `draft_token_num` nodes: node 0 is the last verified token (the root),
nodes 1 to n - 1 are drafts, ordered by level. A "chain" is the tree of top-k 1. Nodes of request b are
numbered b * n + node across the batch. Argument names and order are those of SGLang's call sites;
tensors marked "out" are written in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wiring.errors import WiringError

_FULL_MASK, _QLEN_ONLY = 0, 1
"""Tree mask modes (TreeMaskMode in sglang/kernels/ops/speculative/spec_tree.py): each node's row covers
the whole prefix and the tree, or the tree alone. Mode 2, one bit per node, has no user on a CPU."""


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Lay out the draft tree of each request: positions, links and the ancestor mask.

    Mirrors `sgl_build_tree_kernel_efficient_triton` in sglang/kernels/ops/speculative/spec_tree.py.
    The draft proposes `topk` candidates at level 1 and `topk * topk` at each deeper level, numbered
    through; `selected_index` names those that became nodes, in ascending order, so that
    `candidate // topk` is 0 for a child of the root and otherwise points into `parent_list`, which
    gives the parent's own candidate number.

    Args:
        parent_list: [batch, 1 + topk * (steps - 2)] int64; empty for one step.
        selected_index: [batch, n - 1] int64 candidate number of each node but the root.
        verified_seq_len: [batch] tokens before the root (the root's position).
        tree_mask: bool, out. Row of node i: true at its ancestors and itself; in full mode
            also at the whole prefix. Flat, n rows of `n` (or `seq_len + n`) per request.
        positions: [batch * n], out: the token position of each node.
        retrieve_index: [batch, n], out: batch-wide node number.
        retrieve_next_token, retrieve_next_sibling: [batch, n], given as -1, out: first child and
            next sibling of each node, or -1.
        topk: candidates per expanded node.
        depth: the greatest number of levels (the draft's steps).
        draft_token_num: n.
        tree_mask_mode: 0 or 1, see above.

    Raises:
        WiringError: any other mask mode.
    """
    mode, n = int(tree_mask_mode), draft_token_num
    if mode not in (_FULL_MASK, _QLEN_ONLY):
        raise WiringError(
            "the CPU kit cannot build this kind of tree mask",
            where="build_tree_kernel_efficient_cpu",
            expected="TreeMaskMode 0 (full) or 1 (drafts only)",
            found=mode,
            remedy="Serve with --attention-backend torch_native",
        )
    batch = verified_seq_len.numel()
    prefixes = verified_seq_len.tolist()
    candidate_parents = parent_list.reshape(batch, -1).tolist() if batch else []
    flat_mask, written = tree_mask.view(-1), 0
    for b, (prefix, selected) in enumerate(zip(prefixes, selected_index.tolist(), strict=True)):
        parents = _parents(selected, candidate_parents[b], topk)
        ancestry = _ancestry(parents, depth)
        first_child, next_sibling = _links(parents)
        block = torch.tensor(ancestry, dtype=torch.bool)  # [n, n]
        if mode == _FULL_MASK:
            block = torch.cat([block.new_ones(n, prefix), block], dim=1)
        flat_mask[written : written + block.numel()] = block.view(-1).to(tree_mask.dtype)
        written += block.numel()
        levels = torch.tensor([sum(row) - 1 for row in ancestry])
        positions[b * n : (b + 1) * n] = prefix + levels
        retrieve_index[b] = torch.arange(b * n, (b + 1) * n)
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(next_sibling)


def _parents(selected: list[int], candidate_parents: list[int], topk: int) -> list[int]:
    """The parent of each node; -1 for the root and for a node whose parent was not selected."""
    node_of = {}
    for node, candidate in enumerate(selected, start=1):
        node_of.setdefault(candidate, node)
    parents = [-1]
    for candidate in selected:
        expanded = candidate // topk
        parents.append(0 if expanded == 0 else node_of.get(candidate_parents[expanded], -1))
    return parents


def _ancestry(parents: list[int], depth: int) -> list[list[bool]]:
    """Row i is true at the ancestors of node i, at i itself, and at the root; at most `depth` levels."""
    rows = []
    for node in range(len(parents)):
        row = [False] * len(parents)
        row[0] = True
        for _ in range(depth):
            if node <= 0:
                break
            row[node] = True
            node = parents[node]
        rows.append(row)
    return rows


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node, children in ascending order; -1 for none."""
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node] = first_child[parent]
            first_child[parent] = node
    return first_child, next_sibling


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root along the drafts that equal the target's own next token.

    Mirrors `verify_tree_greedy_kernel_triton` in sglang/kernels/ops/speculative/spec_tree.py, whose
    CPU call site spells three arguments `retrive_*`.

    Args:
        predicts: [batch * n] int32, out: the target's token at every node of the walk; the last of
            them is the bonus token.
        accept_index: [batch, at most levels] int32, given as -1, out: batch-wide numbers of the nodes of
            the walk, the root first. Its width bounds the walk.
        accept_token_num: [batch] int32, out: accepted drafts, the root and the bonus not counted.
        candidates: [batch, n] token of each node.
        retrive_index, retrive_next_token, retrive_next_sibling: [batch, n] as built above.
        target_predict: [batch * n] or [batch, n]: the target's token after each node.
    """
    width = accept_index.shape[1]
    wanted = target_predict.reshape(-1).tolist()
    trees = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    for b, (tokens, numbers, first_child, next_sibling) in enumerate(trees):
        node, walk = 0, [numbers[0]]
        while len(walk) < width:
            child = first_child[node]
            while child != -1 and tokens[child] != wanted[walk[-1]]:
                child = next_sibling[child]
            if child == -1:
                break
            node = child
            walk.append(numbers[node])
        accept_index[b, : len(walk)] = torch.tensor(walk, dtype=accept_index.dtype)
        accept_token_num[b] = len(walk) - 1
        predicts[walk] = torch.tensor([wanted[number] for number in walk], dtype=predicts.dtype)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last token that each request gained in a round: `accept_tokens[b, accept_lens[b] - 1]`.

    Mirrors `fill_bonus_tokens` in sglang/kernels/ops/speculative/eagle.py.

    Args:
        accept_tokens: [batch, accept_stride] or flat.
        accept_lens: [batch] tokens gained, the bonus included (at least 1).
        bonus_tokens: [batch] int32, out.
        accept_stride: row width of `accept_tokens`.
    """
    index = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[index])


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one and put its new token last.

    Mirrors `rotate_input_ids_kernel` in sglang/kernels/ops/speculative/multi_layer_eagle.py.

    Args:
        input_ids: [tokens], out: packed tokens of the batch.
        extend_start_loc, extend_seq_lens: [batch] range of each request; an empty one is left alone.
        topk_index: [batch] or [batch, 1] new token of each request.
        select_index: [batch] where in `input_ids` the new token goes instead of the last place.
    """
    ranges = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), topk_index.reshape(-1).tolist(), strict=True)
    places = None if select_index is None else select_index.tolist()
    for b, (start, length, token) in enumerate(ranges):
        if length == 0:
            continue
        last = start + length - 1
        input_ids[start:last] = input_ids[start + 1 : last + 1].clone()
        input_ids[last if places is None else places[b]] = token
