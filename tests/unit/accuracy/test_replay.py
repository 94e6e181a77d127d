"""Replay against a simulator that serves: the draft proposes freely, the text verifies, one round after the other."""

from types import SimpleNamespace

import pytest
import torch
from slow_draft import SlowDraft, random_tensors, tiny_config

from wiring.accuracy.replay import replay, summarize
from wiring.checkpoints.draft_files import checkpoint_from
from wiring.checkpoints.states import StateSample
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Config, Eagle3Draft
from wiring.model.target_reference import ReferencePass, ReferenceTarget

LAYOUT = (0, 3, 31)


def pair(seed):
    config = tiny_config()
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes(), seed)
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(seed + 1))
    draft = Eagle3Draft.from_checkpoint(checkpoint_from(config, tensors), embedding)
    return draft, SlowDraft(tensors, config, embedding)


def half_predictable_text(slow, seed, prompt, length, steps):
    """A text that the draft guesses right in runs of random length, with random states."""
    g = torch.Generator().manual_seed(seed)
    states = torch.randn(length, 3, 16, generator=g) * 3
    ids = torch.randint(0, 40, (prompt + 1,), generator=g).tolist()
    while len(ids) < length:
        run = int(torch.randint(0, steps + 1, (1,), generator=g))
        if run:
            proposals = slow.chain(ids, states, len(ids) - 2, run).argmax(-1)
            ids += [slow.target_id(int(p)) for p in proposals]
        ids.append(int(torch.randint(0, 40, (1,), generator=g)))
    return ids[:length], states


def serve(slow, ids, states, prompt, steps, stop):
    """Rounds of a server that has emitted ids[prompt] and returns ids up to `stop`; the draft is fed its own drafts."""
    rounds, p = [], prompt
    while p < stop - 1:
        proposals = [slow.target_id(int(x)) for x in slow.chain(ids, states, p - 1, steps).argmax(-1)]
        accepted = 0
        while accepted < steps and p + 1 + accepted < len(ids) and proposals[accepted] == ids[p + 1 + accepted]:
            accepted += 1
        rounds.append((p, accepted))
        p += accepted + 1
    return rounds


@pytest.mark.parametrize("seed", range(4))
def test_replay_equals_serving_with_free_drafts(seed):
    draft, slow = pair(seed)
    prompt, steps, length = 5, 3, 30
    ids, states = half_predictable_text(slow, seed, prompt, length, steps)
    simulated = serve(slow, ids, states, prompt, steps, length)
    got = replay(draft, states, ids, prompt, LAYOUT, steps)
    last_p, last_accepted = simulated[-1]
    is_open = last_accepted < steps and last_p + 1 + last_accepted == length
    closed = [a for _, a in simulated[: -1 if is_open else None]]
    assert list(got.rounds) == closed and sum(closed) > 0
    assert got.open_round == (last_accepted if is_open else None)
    assert got.accept_length == pytest.approx(1 + sum(closed) / len(closed))


@pytest.mark.parametrize("served", [20, 21, 22, 23, 24, 25])
def test_text_beyond_the_served_length_gives_the_engines_count(served):
    """An engine counts every right draft of its last round, also those past the last token that it returns."""
    draft, slow = pair(1)
    steps = 3
    ids, states = half_predictable_text(slow, 1, 5, served + steps, steps)
    simulated = serve(slow, ids, states, 5, steps, served)
    got = replay(draft, states, ids, 5, LAYOUT, steps, end=served)
    assert list(got.rounds) == [a for _, a in simulated] and got.open_round is None


def test_states_may_come_from_a_sample_or_a_reference():
    draft, slow = pair(2)
    ids, states = half_predictable_text(slow, 2, 4, 25, 3)
    direct = replay(draft, states, ids, 4, LAYOUT, 3)
    sample = StateSample(
        source="s",
        tokens=torch.tensor(ids),
        loss_mask=torch.ones(25),
        states=states.flip(1),
        boundaries=(31, 3, 0),
        last_hidden=torch.zeros(25, 16),
    )
    assert replay(draft, sample, ids, 4, LAYOUT, 3) == direct
    boundaries = torch.zeros(32, 1, 25, 16)
    boundaries[list(LAYOUT), 0] = states.transpose(0, 1)
    reference = object.__new__(ReferenceTarget)
    reference.forward = lambda tokens: ReferencePass(boundaries, torch.empty(0), torch.empty(0))
    assert replay(draft, reference, ids, 4, LAYOUT, 3) == direct


class AlwaysRight:
    """Proposes the text's next token at every row and step, except at planted (row, step)."""

    def __init__(self, ids, wrong=()):
        self.ids, self.wrong = ids, set(wrong)
        self.fc = SimpleNamespace(weight=torch.zeros(1))

    def to_target_ids(self, ids):
        return ids

    def unrolled(self, tokens, states, steps):
        n = len(self.ids)
        for k in range(steps):
            said = [self.ids[min(t + 2 + k, n - 1)] + ((t, k) in self.wrong) for t in range(n - 1)]
            yield torch.nn.functional.one_hot(torch.tensor(said), 100).float()[None]


def test_walk_by_hand():
    """12 tokens, prompt 2, 3 steps. p=2: row 1 all right -> 3, p=6; row 5 wrong at once -> 0, p=7; row 6 wrong at
    step 1 -> 1, p=9; row 8 proposes 10, 11 right and then leaves the text: open after 2."""
    ids = list(range(12))
    draft = AlwaysRight(ids, wrong=[(5, 0), (6, 1)])
    got = replay(draft, torch.zeros(12, 1, 4), ids, 2, (3,), 3)
    assert got.rounds == (3, 0, 1) and got.open_round == 2
    assert got.accept_length == pytest.approx(1 + 4 / 3)
    assert got.acceptance_by_position == pytest.approx((2 / 3, 1 / 3, 1 / 3))
    assert got.conditional == pytest.approx((2 / 3, 1 / 2, 1))


def test_summary_of_no_acceptance_has_no_conditional():
    got = summarize([0, 0], 2)
    assert got.accept_length == 1 and got.acceptance_by_position == (0, 0) and got.conditional == (0, None)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"prompt_len": 12}, "no-text"),
        ({"steps": 0}, "no-text"),
        ({"prompt_len": 11}, "text-too-short"),
        ({"layout": (3, 4)}, "states-of-another-text"),
    ],
)
def test_what_cannot_be_replayed_is_an_error(arguments, code):
    ids = list(range(12))
    given = {"prompt_len": 2, "layout": (3,), "steps": 3} | arguments
    with pytest.raises(WiringError) as error:
        replay(AlwaysRight(ids), torch.zeros(12, 1, 4), ids, **given)
    assert error.value.code == code
