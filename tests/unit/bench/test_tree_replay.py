"""Tree replay against a second, slow draft whose tree is grown one path at a time, and against the replay of chains."""

import pytest
import torch
from slow_draft import SlowDraft, random_tensors, tiny_config
from tree_replay import draft_tree, tree_replay

from wiring.accuracy.replay import replay
from wiring.checkpoints.draft_files import checkpoint_from
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Config, Eagle3Draft

LAYOUT, PROMPT, LENGTH = (0, 3, 31), 5, 22


@pytest.fixture(scope="module", params=range(2))
def pair(request):
    """A fast and a slow draft of the same weights, in float64 both, so that close scores rank alike."""
    config = tiny_config()
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes(), request.param)
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(request.param + 1))
    draft = Eagle3Draft.from_checkpoint(checkpoint_from(config, tensors), embedding, dtype=torch.float64)
    return draft, SlowDraft(tensors, config, embedding)


@pytest.fixture(scope="module")
def text(pair):
    """A text that often goes on with one of the draft's three likeliest tokens."""
    _, slow = pair
    g = torch.Generator().manual_seed(9)
    states = (torch.randn(LENGTH, 3, 16, generator=g) * 3).double()  # exact in float32, which the replay takes
    ids = torch.randint(0, 40, (PROMPT + 1,), generator=g).tolist()
    while len(ids) < LENGTH:
        best = slow.chain(ids, states, len(ids) - 2, 1)[0].topk(3).indices.tolist()
        choice = int(torch.randint(0, 5, (1,), generator=g))
        ids.append(slow.target_id(best[choice]) if choice < 3 else int(torch.randint(0, 40, (1,), generator=g)))
    return ids, states


def slow_tree(slow, ids, states, row, speculation):
    """Paths of the verified drafts: every path's probability is the product of its own steps, worked out one by one."""
    level, drafts = {(): 1.0}, {}
    for _ in range(speculation.steps):
        grown = {}
        for path, score in level.items():
            logits = slow.chain(ids, states, row, len(path) + 1, teacher=list(path))[-1]
            shares = logits.softmax(-1)
            for draft_id in shares.topk(speculation.topk).indices.tolist():
                grown[(*path, slow.target_id(draft_id))] = score * float(shares[draft_id])
        drafts |= grown
        level = dict(sorted(grown.items(), key=lambda item: -item[1])[: speculation.topk])
    best = sorted(drafts.items(), key=lambda item: -item[1])[: speculation.draft_tokens - 1]
    return {path for path, _ in best}


@pytest.mark.parametrize("shape", [(3, 2, 6), (3, 3, 8), (2, 4, 16), (1, 3, 4), (4, 2, 20)])
def test_the_tree_is_the_slow_drafts(pair, text, shape):
    (draft, slow), (ids, states), speculation = pair, text, Speculation(*shape)
    fused = draft.project(states[None])[0]
    for p in range(PROMPT, LENGTH - 1, 3):
        wanted = slow_tree(slow, ids, states, p - 1, speculation)
        assert draft_tree(draft, fused[:p], ids[: p + 1], speculation) == wanted


@pytest.mark.parametrize("shape", [(3, 2, 6), (3, 3, 8)])
def test_rounds_take_the_longest_path_that_the_text_goes_on_with(pair, text, shape):
    (draft, slow), (ids, states), speculation = pair, text, Speculation(*shape)
    rounds, p, end = [], PROMPT, LENGTH - speculation.steps
    while p < end - 1:
        paths = slow_tree(slow, ids, states, p - 1, speculation)
        rounds.append(max((n for n in range(1, 4) if tuple(ids[p + 1 : p + 1 + n]) in paths), default=0))
        p += rounds[-1] + 1
    got = tree_replay(draft, states, ids, PROMPT, LAYOUT, speculation, end=end)
    assert list(got.rounds) == rounds and sum(rounds) > 0
    # The control: the likeliest chain alone accepts less on a text made of second and third choices.
    chain = tree_replay(draft, states, ids, PROMPT, LAYOUT, Speculation(3, 1, 4), end=end)
    assert got.accept_length > chain.accept_length


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_tree_of_one_branch_is_the_chain(pair, text, steps):
    (draft, _), (ids, states) = pair, text
    # A server with top-k 1 verifies steps + 1 tokens whatever it was asked for.
    assert tree_replay(draft, states, ids, PROMPT, LAYOUT, Speculation(steps, 1, 30)) == replay(
        draft, states, ids, PROMPT, LAYOUT, steps
    )


def test_a_text_without_a_continuation_is_refused(pair, text):
    (draft, _), (ids, states) = pair, text
    with pytest.raises(WiringError, match="no text to replay"):
        tree_replay(draft, states, ids, LENGTH, LAYOUT, Speculation(3, 2, 6))
    with pytest.raises(WiringError, match="do not belong to this text"):
        tree_replay(draft, states[:-1], ids, PROMPT, LAYOUT, Speculation(3, 2, 6))
