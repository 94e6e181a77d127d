"""`wiring ab` on a real server of the tiny pair, compared with replays without a server."""

import json
from functools import cached_property
from pathlib import Path

import pytest
import torch
from tree_replay import tree_replay

from wiring.accuracy.replay import states_of
from wiring.bench.acceptance_difference import Request, compare
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.target_files import read_tensor
from wiring.engines.sglang import Speculation
from wiring.logs.evidence import AcceptanceRecord, DifferenceRecord
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget
from wiring.server.launch import start
from wiring.server.server_spec import ServerSpec
from wiring.workbook.live import read_prompts

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(900)]

TINY = Path(__file__).parents[2] / "data" / "tiny"
LAYOUT, COUNT, NEW = (0, 3, 31), 8, 32
CHAIN, TREE = Speculation(5, 1, 6), Speculation(5, 4, 16)


@pytest.fixture(scope="module")
def chain(trained_draft):
    """Start a server that drafts chains."""
    spec = ServerSpec(TINY / "target", trained_draft, CHAIN)
    with start(spec, trained_draft.with_name("chain.log"), timeout_s=500) as server:
        yield server


class Alone:
    """Accepted drafts on the target's own greedy texts, replayed without a server."""

    def __init__(self, folder):
        self.target = ReferenceTarget.load(TINY / "target")
        embedding = read_tensor(TINY / "target", "model.embed_tokens.weight").float()
        checkpoint = read_draft(folder, producer="sglang")
        self.draft = Eagle3Draft.from_checkpoint(checkpoint, embedding, self.target.head.weight)
        self.prompts = read_prompts(TINY / "prompts.json", COUNT)

    @cached_property
    def texts(self):
        """Return each prompt with the longest continuation that a round may read."""
        return [prompt + self.target.greedy(prompt, NEW + CHAIN.steps) for prompt in self.prompts]

    @cached_property
    def states(self):
        return [states_of(self.target, torch.tensor(text), LAYOUT) for text in self.texts]

    def rounds(self, speculation):
        """Return the accepted drafts of every round of each prompt."""
        found = zip(self.prompts, self.texts, self.states, strict=True)
        return [
            tree_replay(self.draft, states, text, len(prompt), LAYOUT, speculation, len(prompt) + NEW).rounds
            for prompt, text, states in found
        ]


@pytest.fixture(scope="module")
def alone(trained_draft):
    return Alone(trained_draft)


def accept_length(rounds):
    counts = [accepted for request in rounds for accepted in request]
    return 1 + sum(counts) / len(counts)


@pytest.fixture
def ab(wiring_call, chain):
    """Run `wiring ab` on the chain's server; return the exit status and the JSON."""

    def run(factor, *words):
        prompts = ("--prompts", TINY / "prompts.json", "--count", COUNT, "--new-tokens", NEW)
        status, out, err = wiring_call("ab", "--server", chain.url, *prompts, "--factor", factor, *words, "--json")
        assert status in (0, 1), err
        return status, json.loads(out)

    return run


def test_a_cached_prefix_changes_nothing_on_a_healthy_server(ab, alone):
    status, found = ab("flush")
    assert status == 0 and found["real"] is False and found["same_outputs"] == [True] * COUNT
    assert found["notes"] == []  # the cache was empty before, and held the prompts afterwards
    wanted = accept_length(alone.rounds(CHAIN))
    empty, warm = (AcceptanceRecord.model_validate(row) for row in found["acceptance"])
    assert (empty.condition["cached"], warm.condition["cached"]) == (False, True)
    assert empty.accept_length == pytest.approx(wanted, rel=0.01) == warm.accept_length
    DifferenceRecord.model_validate(found["differences"][0])


def test_a_batch_accepts_as_many_drafts_as_single_requests(ab, alone):
    status, found = ab("batch", "--batch", 4)
    assert status == 0 and found["real"] is False
    assert found["b"]["acceptance"]["value"] == 4
    assert found["b"]["acceptance"]["accept_length"] == pytest.approx(accept_length(alone.rounds(CHAIN)), rel=0.05)


def test_the_first_round_equals_that_of_the_replay(ab, alone):
    _, found = ab("first-round")
    rounds = alone.rounds(CHAIN)
    first, later = [request[:1] for request in rounds], [request[1:] for request in rounds]
    assert found["b"]["acceptance"]["rounds"] == COUNT
    assert found["b"]["acceptance"]["accept_length"] == pytest.approx(accept_length(first), abs=0.13)
    assert found["a"]["acceptance"]["accept_length"] == pytest.approx(accept_length(later), rel=0.02)


def test_a_tree_accepts_more_than_a_chain(ab, alone, trained_draft):
    spec = ServerSpec(TINY / "target", trained_draft, TREE, extra_flags=("--random-seed", "1"))
    with start(spec, trained_draft.with_name("tree.log"), timeout_s=500) as tree:
        status, found = ab("tree", "--against", tree.url)
    requests = [
        [Request(tuple(rounds.count(a) for a in range(6)), index) for index, rounds in enumerate(alone.rounds(s))]
        for s in (CHAIN, TREE)
    ]
    expected = compare(*requests)
    assert found["difference"]["difference"] == pytest.approx(expected.difference, abs=0.05) and expected.difference > 0
    assert found["real"] is expected.real and status == int(expected.real)
    assert [found[side]["acceptance"]["value"] for side in ("a", "b")] == [1, 4]
    for side, speculation in (("a", CHAIN), ("b", TREE)):
        wanted = accept_length(alone.rounds(speculation))
        assert found[side]["acceptance"]["accept_length"] == pytest.approx(wanted, rel=0.02), side
    assert all(found["same_outputs"])
