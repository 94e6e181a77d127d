"""Each kernel function against an independent, naive implementation (plain loops over lists)."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from wiring.errors import WiringError

SEEDS = range(25)


def table_of(rng: random.Random, requests: int, width: int) -> torch.Tensor:
    """Return a `req_to_token` table of distinct cells."""
    cells = rng.sample(range(10 * requests * width), requests * width)
    return torch.tensor(cells, dtype=torch.int32).view(requests, width)


def ragged_ranges(rng: random.Random, batch: int, width: int) -> list[tuple[int, int]]:
    """Return ranges within [0, width), some of them empty."""
    return [tuple(sorted((rng.randint(0, width), rng.choice([0, width, rng.randint(0, width)])))) for _ in range(batch)]


# --- KV bookkeeping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_written_to_the_table_and_read_back(kernels, seed):
    rng = random.Random(seed)
    requests, width, batch = 7, 12, rng.randint(0, 5)
    rows, ranges = rng.sample(range(requests), batch), ragged_ranges(rng, batch, 12)
    total = sum(end - start for start, end in ranges)
    slots = torch.tensor(rng.sample(range(1000), total + 3))  # longer than needed
    table = table_of(rng, requests, width)
    expected, at = table.tolist(), 0
    for row, (start, end) in zip(rows, ranges, strict=True):
        for column in range(start, end):
            expected[row][column] = slots[at].item()
            at += 1
    index = torch.tensor(rows, dtype=torch.int64)
    start, end = (torch.tensor([r[side] for r in ranges], dtype=torch.int64) for side in (0, 1))

    kernels.assign_req_to_token_pool_cpu(index, table, start, end, slots, width)

    assert table.tolist() == expected
    assert table.dtype == torch.int32
    read = torch.full((total + 2,), -7)
    kernels.assign_extend_cache_locs_cpu(index, table, start, end, read, width)
    assert read.tolist() == [*slots[:total].tolist(), -7, -7]


def test_front_slots_of_each_verify_window(kernels):
    """The call of `fill_front_out_cache_loc_func`: int32 window as the table, row numbers, ranges from 0."""
    window = torch.arange(100, 115, dtype=torch.int32).view(3, 5)
    out = torch.zeros(15, dtype=torch.int64)
    counts = torch.tensor([2, 0, 5], dtype=torch.int32)
    kernels.assign_extend_cache_locs_cpu(torch.arange(3), window, torch.zeros_like(counts), counts, out, 5)
    assert out.tolist() == [100, 101, 110, 111, 112, 113, 114] + [0] * 8


@pytest.mark.parametrize("topk, steps", [(1, 1), (1, 3), (4, 1), (4, 3)])
def test_draft_slots_behind_each_sequence(kernels, topk, steps):
    rng = random.Random(topk * 10 + steps)
    table = table_of(rng, 6, 40)
    rows, lengths = [5, 0, 3], [0, 17, 28 if topk * steps <= 12 else 0]
    out = torch.empty(3 * topk * steps, dtype=torch.int64)
    kernels.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor(rows, dtype=torch.int32), table, torch.tensor(lengths), out, 40, topk, steps
    )
    expected = []
    for row, length in zip(rows, lengths, strict=True):
        for column in range(length, length + topk * steps):
            expected.append(table.tolist()[row][column])
    assert out.tolist() == expected


@pytest.mark.parametrize("shape", [(0,), (1, 4), (3, 4)])
def test_slots_of_accepted_tokens_are_packed_in_order(kernels, shape):
    rng = random.Random(len(shape))
    index = torch.tensor([rng.choice([-1, rng.randrange(20)]) for _ in range(torch.Size(shape).numel())])
    index = index.view(shape).to(torch.int32)
    slots, out = torch.randperm(50)[:20], torch.full((14,), -9)
    kernels.fill_accept_out_cache_loc_cpu(index, slots, out)
    kept = [slots[i].item() for i in index.flatten().tolist() if i != -1]
    assert out.tolist() == kept + [-9] * (14 - len(kept))


@pytest.mark.parametrize("dtype, width", [(torch.float32, 3), (torch.bfloat16, 5), (torch.uint8, 7)])
def test_kv_rows_move_in_every_layer_even_when_they_overlap(kernels, dtype, width):
    rng = random.Random(width)
    buffers = [torch.randint(0, 100, (16, 2, width + layer)).to(dtype) for layer in range(3)]
    target = rng.sample(range(16), 6)
    source = [target[1], target[2], target[0], *rng.sample(range(16), 3)]  # a cycle and some more
    expected = []
    for buffer in buffers:
        before, after = buffer.clone(), buffer.clone()
        for to, origin in zip(target, source, strict=True):
            after[to] = before[origin]
        expected.append(after)
    kernels.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers]),
        torch.tensor(target),
        torch.tensor(source, dtype=torch.int32),
    )
    for buffer, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(buffer, wanted)


def test_kv_copies_of_nothing_and_of_invalid_slots(kernels):
    buffer = torch.arange(12.0).view(4, 3)
    pointers, strides = torch.tensor([buffer.data_ptr()]), torch.tensor([12])
    none = torch.empty(0, dtype=torch.int64)
    kernels.copy_all_layer_kv_cache_cpu(pointers, strides, none, none)
    for target, source, code in (([1], [-1], "kv-slot-negative"), ([1, 2], [3], "kv-copy-lengths-differ")):
        with pytest.raises(WiringError) as error:
            kernels.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor(target), torch.tensor(source))
        assert error.value.code == code
    assert torch.equal(buffer, torch.arange(12.0).view(4, 3))


# --- the draft tree ---------------------------------------------------------------------------------------------


def random_tree(rng: random.Random, topk: int, steps: int, nodes: int) -> tuple[list[int], list[int]]:
    """Return (parent_list, selected) of one request as the draft makes them.

    Level 1 has candidates 0 to topk - 1; each deeper level expands the topk best candidates of the level
    before by topk children each. Scores fall from parent to child, so that the parent of a node is a node too.
    """
    scores = [rng.random() for _ in range(topk)]
    frontier = sorted(range(topk), key=lambda candidate: -scores[candidate])[:topk]
    parent_list = [-1]  # candidate // topk == 0 is the root
    for _ in range(steps - 1):
        parent_list += frontier
        children = []
        for parent in frontier:
            for _ in range(topk):
                scores.append(scores[parent] * rng.random())
                children.append(len(scores) - 1)
        frontier = sorted(children, key=lambda candidate: -scores[candidate])[:topk]
    best = sorted(range(len(scores)), key=lambda candidate: -scores[candidate])[: nodes - 1]
    return parent_list, sorted(best)


def naive_tree(parent_list: list[int], selected: list[int], topk: int) -> list[list[int]]:
    """Return the path from the root to each node (node numbers, the root and the node included)."""
    paths = {-1: [0]}  # candidate -> path; -1 is the root
    for node, candidate in enumerate(selected, start=1):
        group = candidate // topk
        parent = -1 if group == 0 else parent_list[group]
        paths[candidate] = [*paths[parent], node]
    return [paths[-1], *(paths[candidate] for candidate in selected)]


def build(kernels, trees, lengths, topk, steps, nodes, mode):
    batch = len(trees)
    size = sum(nodes * (length * (mode == 0) + nodes) for length in lengths)
    out = {
        "tree_mask": torch.ones(size, dtype=torch.bool),
        "positions": torch.empty(batch * nodes, dtype=torch.int64),
        "retrieve_index": torch.full((batch, nodes), -1),
        "retrieve_next_token": torch.full((batch, nodes), -1),
        "retrieve_next_sibling": torch.full((batch, nodes), -1),
    }
    # SGLang passes all but the last level's parents; a chain of one step has none.
    parents = torch.tensor([tree[0] for tree in trees]).view(batch, -1) if steps > 1 else torch.empty(batch, 0)
    kernels.build_tree_kernel_efficient_cpu(
        parents.long(),
        torch.tensor([tree[1] for tree in trees]).view(batch, nodes - 1),
        torch.tensor(lengths),
        *out.values(),
        topk,
        steps,
        nodes,
        mode,
    )
    return out


@pytest.mark.parametrize("mode", (0, 1))
@pytest.mark.parametrize("topk, steps, nodes", [(1, 1, 2), (1, 3, 4), (1, 5, 6), (2, 3, 6), (4, 3, 8), (4, 5, 16)])
def test_tree_against_explicit_paths(kernels, topk, steps, nodes, mode):
    rng = random.Random(topk * 100 + steps)
    for batch in (1, 3):
        trees = [random_tree(rng, topk, steps, nodes) for _ in range(batch)]
        lengths = [rng.choice([0, 1, rng.randint(2, 9)]) for _ in range(batch)]
        out = build(kernels, trees, lengths, topk, steps, nodes, mode)
        mask = out["tree_mask"].tolist()
        for b, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            paths = naive_tree(*tree, topk)
            prefix = length if mode == 0 else 0
            for node, path in enumerate(paths):
                row, mask = mask[: prefix + nodes], mask[prefix + nodes :]
                assert row == [True] * prefix + [other in path for other in range(nodes)]
                assert out["positions"][b * nodes + node] == length + len(path) - 1
                children = [n for n, other in enumerate(paths) if len(other) > 1 and other[-2] == node]
                linked, child = [], out["retrieve_next_token"][b, node].item()
                while child != -1:
                    linked.append(child)
                    child = out["retrieve_next_sibling"][b, child].item()
                assert linked == children
            assert out["retrieve_index"][b].tolist() == list(range(b * nodes, (b + 1) * nodes))
        assert mask == []


def test_packed_tree_mask_is_refused(kernels):
    tree = random_tree(random.Random(0), 2, 2, 4)
    with pytest.raises(WiringError) as error:
        build(kernels, [tree], [5], 2, 2, 4, 2)
    assert (error.value.code, error.value.found) == ("tree-mask-unsupported-on-cpu", "2")


@pytest.mark.parametrize("topk, steps, nodes", [(1, 3, 4), (4, 3, 8), (4, 5, 16)])
def test_greedy_verification_against_all_paths(kernels, topk, steps, nodes):
    """The walk is the longest path from the root on which each draft equals the target's token before it."""
    rng = random.Random(nodes)
    accepted = []
    for _ in range(60):
        batch = rng.randint(1, 3)
        trees = [random_tree(rng, topk, steps, nodes) for _ in range(batch)]
        out = build(kernels, trees, [4] * batch, topk, steps, nodes, 1)
        # Siblings differ, as the draft's candidates do.
        tokens = torch.empty(batch, nodes, dtype=torch.int64)
        for b, tree in enumerate(trees):
            paths = naive_tree(*tree, topk)
            for node, path in enumerate(paths):
                siblings = [n for n in range(node) if len(path) > 1 and paths[n][:-1] == path[:-1]]
                taken = {tokens[b, n].item() for n in siblings}
                tokens[b, node] = rng.choice([value for value in range(topk + 1) if value not in taken])
        target = torch.empty(batch, nodes, dtype=torch.int64)
        for b, tree in enumerate(trees):
            paths = naive_tree(*tree, topk)
            for node in range(nodes):
                children = [n for n, path in enumerate(paths) if len(path) > 1 and path[-2] == node]
                is_right = children and rng.random() < 0.8
                target[b, node] = tokens[b, rng.choice(children)] if is_right else rng.randrange(topk + 1)
        predicts = torch.zeros(batch * nodes, dtype=torch.int32)
        index = torch.full((batch, steps + 1), -1, dtype=torch.int32)
        number = torch.empty(batch, dtype=torch.int32)

        kernels.verify_tree_greedy_cpu(
            predicts=predicts,
            accept_index=index,
            accept_token_num=number,
            candidates=tokens,
            retrive_index=out["retrieve_index"],
            retrive_next_token=out["retrieve_next_token"],
            retrive_next_sibling=out["retrieve_next_sibling"],
            target_predict=target.flatten() if batch == 1 else target,
        )

        expected_predicts = [0] * (batch * nodes)
        for b, tree in enumerate(trees):
            right = [
                path
                for path in naive_tree(*tree, topk)
                if all(tokens[b, child] == target[b, node] for node, child in itertools.pairwise(path))
            ]
            walk = max(right, key=len)
            accepted.append(len(walk) - 1)
            assert number[b] == len(walk) - 1
            assert index[b].tolist() == [b * nodes + node for node in walk] + [-1] * (steps + 1 - len(walk))
            for node in walk:
                expected_predicts[b * nodes + node] = target[b, node].item()
        assert predicts.tolist() == expected_predicts
    assert min(accepted) == 0 and max(accepted) == steps  # both extremes occurred


def test_walk_is_bounded_by_the_width_of_accept_index(kernels):
    predicts, index, number = torch.zeros(4, dtype=torch.int32), torch.full((1, 2), -1), torch.empty(1)
    kernels.verify_tree_greedy_cpu(
        predicts,
        index,
        number,
        torch.tensor([[5, 6, 7, 8]]),
        torch.tensor([[0, 1, 2, 3]]),
        torch.tensor([[1, 2, 3, -1]]),
        torch.full((1, 4), -1),
        torch.tensor([6, 7, 8, 9]),
    )
    assert index.tolist() == [[0, 1]] and number.tolist() == [1] and predicts.tolist() == [6, 7, 0, 0]


@pytest.mark.parametrize("stride", (1, 4))
def test_bonus_is_the_last_gained_token(kernels, stride):
    rng = random.Random(stride)
    for batch in (0, 1, 5):
        tokens = torch.randint(0, 99, (batch, stride), dtype=torch.int32)
        gained = [rng.randint(1, stride) for _ in range(batch)]  # 1: no draft accepted
        out = torch.full((batch,), -1, dtype=torch.int32)
        kernels.fill_bonus_tokens_cpu(tokens, torch.tensor(gained, dtype=torch.int32), out, stride)
        assert out.tolist() == [row[n - 1] for row, n in zip(tokens.tolist(), gained, strict=True)]


@pytest.mark.parametrize("chosen", (False, True))
def test_tokens_rotate_within_each_request(kernels, chosen):
    rng = random.Random(chosen)
    for batch in (0, 1, 4):
        lengths = [rng.choice([0, 1, rng.randint(2, 6)]) for _ in range(batch)]
        tokens = [[rng.randrange(100) for _ in range(n)] for n in lengths]
        new = [rng.randrange(100, 200) for _ in range(batch)]
        starts = list(itertools.accumulate(lengths, initial=0))[:-1]
        places = [start + (rng.randrange(n) if n else 0) for start, n in zip(starts, lengths, strict=True)]
        expected = []
        for own, token, start, place in zip(tokens, new, starts, places, strict=True):
            rotated = own[1:] + own[-1:]  # the last place keeps its token unless the new one goes there
            if rotated:
                rotated[place - start if chosen else -1] = token
            expected += rotated
        ids = torch.tensor([token for own in tokens for token in own], dtype=torch.int64)
        kernels.rotate_input_ids_cpu(
            ids,
            torch.tensor(starts),
            torch.tensor(lengths),
            torch.tensor(new).view(-1, 1),
            torch.tensor(places) if chosen else None,
        )
        assert ids.tolist() == expected
