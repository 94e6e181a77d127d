"""Build the EAGLE draft tree, verify it against the target's tokens, and update tokens after a round.

A tree of one request has n = `draft_token_num` nodes: node 0 is the last verified token (the root), nodes 1 to n - 1
are drafts, ordered by level. A chain is the tree of top-k 1. Node i of request b has number b * n + i in the batch.
Names and order of arguments are those of SGLang's call sites; tensors marked "out" are written in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wiring.errors import WiringError

# TreeMaskMode in sglang/kernels/ops/speculative/spec_tree.py: a row covers prefix and tree, or the tree alone. Mode 2,
# one bit per node, is not used on a CPU.
_FULL_MASK, _QLEN_ONLY = 0, 1


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
    """Write the positions, links and ancestor mask of each request's draft tree.

    Source: `sgl_build_tree_kernel_efficient_triton` in sglang/kernels/ops/speculative/spec_tree.py. The draft proposes
    `topk` candidates at level 1 and `topk * topk` at each deeper level, numbered consecutively. For a node with
    candidate number c, `c // topk` is 0 for a child of the root, and otherwise an index into `parent_list`, which
    gives the candidate number of the parent.

    Args:
        parent_list: int64 [batch, 1 + topk * (steps - 2)]; empty for one step.
        selected_index: int64 [batch, n - 1], candidate number of each node but the root, ascending.
        verified_seq_len: [batch], tokens before the root, which is the root's position.
        tree_mask: bool, out. In row i true at node i and its ancestors, in full mode also at the prefix. Flat, n rows
            of n (full mode: prefix + n) per request.
        positions: [batch * n], out: the token position of each node.
        retrieve_index: [batch, n], out: batch-wide node number.
        retrieve_next_token, retrieve_next_sibling: [batch, n] filled with -1, out: first child, next sibling.
        depth: maximum number of levels (the draft's steps).
        tree_mask_mode: 0 (full) or 1.

    Raises:
        WiringError: another mask mode ("tree-mask-unsupported-on-cpu").
    """
    mode, n = int(tree_mask_mode), draft_token_num
    if mode not in (_FULL_MASK, _QLEN_ONLY):
        raise WiringError(
            "the CPU kit cannot build this kind of tree mask",
            code="tree-mask-unsupported-on-cpu",
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
    """Return the parent of each node; -1 for the root and for a node without a selected parent."""
    node_of = {}
    for node, candidate in enumerate(selected, start=1):
        node_of.setdefault(candidate, node)
    parents = [-1]
    for candidate in selected:
        expanded = candidate // topk
        parents.append(0 if expanded == 0 else node_of.get(candidate_parents[expanded], -1))
    return parents


def _ancestry(parents: list[int], depth: int) -> list[list[bool]]:
    """Return n rows; row i is true at node i, its ancestors (at most `depth` levels) and the root."""
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
    """Return first child and next sibling of each node, children in ascending order; -1 for none."""
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

    Source: `verify_tree_greedy_kernel_triton` in sglang/kernels/ops/speculative/spec_tree.py. SGLang's CPU call site
    spells three arguments `retrive_*`.

    Args:
        predicts: int32 [batch * n], out: the target's token at every node of the walk; the last is the bonus token.
        accept_index: int32 [batch, maximum walk] filled with -1, out: batch-wide numbers of the walk's nodes.
        accept_token_num: int32 [batch], out: accepted drafts, without the root and the bonus token.
        candidates: [batch, n], token of each node.
        retrive_index, retrive_next_token, retrive_next_sibling: [batch, n] as written by
            `build_tree_kernel_efficient_cpu`.
        target_predict: [batch * n] or [batch, n], the target's token after each node.
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
    """Write the last token that each request gained in a round: `accept_tokens[b, accept_lens[b] - 1]`.

    Source: `fill_bonus_tokens` in sglang/kernels/ops/speculative/eagle.py.

    Args:
        accept_tokens: [batch, accept_stride] or flat.
        accept_lens: [batch], tokens gained, the bonus token included (at least 1).
        bonus_tokens: int32 [batch], out.
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

    Source: `rotate_input_ids_kernel` in sglang/kernels/ops/speculative/multi_layer_eagle.py.

    Args:
        input_ids: [tokens], out: packed tokens of the batch.
        extend_start_loc, extend_seq_lens: [batch] range of each request, may be empty.
        topk_index: [batch] or [batch, 1] new token of each request.
        select_index: [batch], index in `input_ids` that takes the new token instead of the last place.
    """
    ranges = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), topk_index.reshape(-1).tolist(), strict=True)
    places = None if select_index is None else select_index.tolist()
    for b, (start, length, token) in enumerate(ranges):
        if length == 0:
            continue
        last = start + length - 1
        input_ids[start:last] = input_ids[start + 1 : last + 1].clone()
        input_ids[last if places is None else places[b]] = token
