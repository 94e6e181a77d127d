"""Accuracy by depth: a six-token example counted by hand, then random samples counted row by row."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from slow_draft import random_tensors, tiny_config

from wiring.accuracy.controls import CORRUPTED, with_controls
from wiring.accuracy.evaluation import accuracy_by_depth
from wiring.checkpoints.draft_files import checkpoint_from
from wiring.checkpoints.states import StateSample
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Config, Eagle3Draft

STORED = (0, 3, 31, 59)


class PlantedDraft:
    """Proposes planted draft ids: proposals[k][t] at row t of step k."""

    def __init__(self, proposals, target_ids, vocab_size):
        self.proposals = torch.tensor(proposals)
        self.target_ids = torch.tensor(target_ids)
        self.config = SimpleNamespace(vocab_size=vocab_size)
        self.fc = SimpleNamespace(weight=torch.zeros(1))

    def to_target_ids(self, ids):
        return self.target_ids[ids]

    def hidden_steps(self, tokens, states, steps, keep=None):
        for k in range(steps):
            yield torch.nn.functional.one_hot(self.proposals[k], len(self.target_ids)).float()[None]

    def logits(self, hidden):
        return hidden


def test_six_tokens_by_hand():
    """Vocabulary 8, draft ids 0..3 mean target ids 1, 3, 5, 6. The target's choices after positions 0..5 are below."""
    labels = [1, 1, 3, 5, 7, 6]  # 7 cannot be said by the draft
    sample = StateSample(
        source="by hand",
        tokens=torch.tensor([0, 1, 1, 3, 5, 7]),
        loss_mask=torch.tensor([0, 0, 1, 1, 1, 1]),
        states=torch.zeros(6, 1, 8),
        boundaries=(3,),
        last_hidden=torch.eye(8)[labels],
    )
    # Depth 0 counts rows 2, 3, 4 (the mask's last entry is cleared), labels at 3, 4, 5 = 5, 7, 6.
    #   proposals there: 5 right, 5 wrong (7 is out of vocabulary), 6 right              -> 2 of 3
    # Depth 1 counts rows 1, 2, 3 with the same labels: proposals 3 wrong, 6 wrong, 6 right -> 1 of 3
    # Depth 2 counts rows 0, 1, 2: proposals 5 right, 5 wrong, 6 right                      -> 2 of 3
    # Depth 3: row -1 does not exist, so mask[2] is met by no row; rows 0, 1 have labels 7, 6 -> 3 wrong, 6 right
    proposals = [[0, 0, 2, 2, 3], [0, 1, 3, 3, 0], [2, 2, 3, 0, 0], [1, 3, 0, 0, 0]]
    draft = PlantedDraft(proposals, [1, 3, 5, 6], 8)
    report = accuracy_by_depth(draft, [sample], (3,), 4, torch.eye(8))
    assert [(d.correct, d.total) for d in report.depths] == [(2, 3), (1, 3), (2, 3), (1, 2)]
    assert [d.out_of_vocabulary for d in report.depths] == [1, 1, 1, 1]
    assert [d.floor for d in report.depths] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 2])
    assert [d.accuracy for d in report.depths] == pytest.approx([2 / 3, 1 / 3, 2 / 3, 1 / 2])
    assert [(d.low, d.high) for d in report.depths] == [(0, 1)] * 4  # one sequence: nothing known of the spread
    assert (report.rule, report.control, report.layout, report.sequences) == ("specforge", "none", (3,), 1)


def random_draft(seed=0):
    config = tiny_config()
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes(), seed)
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(seed + 1))
    return Eagle3Draft.from_checkpoint(checkpoint_from(config, tensors), embedding)


def random_samples(lengths, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        StateSample(
            source=f"sample {i}",
            tokens=torch.randint(0, 40, (n,), generator=g),
            loss_mask=(torch.rand(n, generator=g) < 0.7).long(),
            states=torch.randn(n, 4, 16, generator=g).bfloat16(),
            boundaries=STORED,
            last_hidden=torch.randn(n, 16, generator=g).bfloat16(),
        )
        for i, n in enumerate(lengths)
    ]


HEAD = torch.randn(40, 16, generator=torch.Generator().manual_seed(9))


def count_like_the_trainer(draft, sample, states, head, depths):
    """SpecForge's own procedure for one sequence: shift left with zeros, N rows, masks multiplied."""
    n = len(sample.tokens)
    mask = sample.loss_mask.clone()
    mask[-1] = 0
    label = [int((head @ sample.last_hidden[i].float()).argmax()) for i in range(n)][1:] + [0]
    logits = list(draft.unrolled(sample.tokens[None], states[None].float(), depths))
    counts = []
    for k in range(depths):
        right = rows = 0
        for t in range(n):
            if mask[t]:
                rows += 1
                right += int(draft.target_ids[logits[k][0, t].argmax()]) == label[t]
        counts.append((right, rows))
        mask = torch.cat([mask[1:], mask.new_zeros(1)])
        label = label[1:] + [0]
    return np.array(counts)  # [depths, 2]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_ragged_sequences_in_batches_equal_counting_one_by_one(batch):
    draft, samples = random_draft(), random_samples([9, 30, 4, 17, 2, 1, 23])
    # Labels that the draft gets right about half the time, or nearly every count would be zero.
    for sample in samples:
        proposed = list(draft.unrolled(sample.tokens[None], sample.select((0, 3, 31))[None].float(), 1))[0][0].argmax(
            -1
        )
        for t in range(0, len(sample.tokens) - 1, 2):
            sample.last_hidden[t + 1] = HEAD[draft.target_ids[proposed[t]]]
    seen = []
    report = accuracy_by_depth(draft, iter(samples), (0, 3, 31), 4, HEAD, batch=batch, progress=seen.append)
    each = [count_like_the_trainer(draft, s, s.select((0, 3, 31)), HEAD, 4) for s in samples]
    pooled = sum(each)
    assert [(d.correct, d.total) for d in report.depths] == [tuple(row) for row in pooled]
    assert report.depths[0].accuracy > 0.25
    assert seen[-1] == 7

    rng = np.random.default_rng(5)  # the interval: a plain bootstrap with indices instead of counts
    shares = []
    for _ in range(4000):
        drawn = sum(each[i] for i in rng.integers(0, 7, 7))
        if drawn[0, 1]:
            shares.append(drawn[0, 0] / drawn[0, 1])
    low, high = np.quantile(shares, [0.025, 0.975])
    assert report.depths[0].low == pytest.approx(low, abs=0.03)
    assert report.depths[0].high == pytest.approx(high, abs=0.03)


def test_the_interval_repeats_with_the_seed():
    draft, samples = random_draft(), random_samples([12, 9, 15])
    reports = [accuracy_by_depth(draft, samples, (0, 3, 31), 2, HEAD, seed=seed) for seed in (1, 1)]
    assert reports[0] == reports[1]


def test_controls_change_the_states_as_they_say():
    samples = random_samples([5, 3, 7])
    layout = (0, 3, 31)
    plain = [s.select(layout) for s in samples]

    def controlled(name):
        return {s.source: states[name] for s, states in with_controls(iter(samples), layout, (name,))}

    assert all(torch.equal(controlled("none")[s.source], p) for s, p in zip(samples, plain, strict=True))
    assert not any(x.any() for x in controlled("zeroed").values())
    for s, p in zip(samples, plain, strict=True):
        assert torch.equal(controlled("shifted")[s.source], torch.cat([p[:1], p[:-1]]))
        assert torch.equal(controlled("permuted")[s.source], torch.stack([p[:, 1], p[:, 2], p[:, 0]], 1))
    other = controlled("other_sequence")
    assert torch.equal(other["sample 1"], plain[0][:3])
    assert torch.equal(other["sample 2"], torch.cat([plain[1], plain[1], plain[1][:1]]))
    assert torch.equal(other["sample 0"], torch.cat([plain[1], plain[1][:2]]))


@pytest.mark.parametrize("control", CORRUPTED)
def test_accuracy_under_a_control_is_the_trainers_count_on_the_changed_states(control):
    draft, samples = random_draft(), random_samples([8, 11, 6])
    report = accuracy_by_depth(draft, samples, (0, 3, 31), 2, HEAD, control=control)
    changed = with_controls(samples, (0, 3, 31), (control,))
    pooled = sum(count_like_the_trainer(draft, sample, states[control], HEAD, 2) for sample, states in changed)
    assert [(d.correct, d.total) for d in report.depths] == [tuple(row) for row in pooled]
    assert report.control == control


def one(**changes):
    return [StateSample(**(random_samples([6])[0].__dict__ | changes))]


@pytest.mark.parametrize(
    ("samples", "options", "code", "found"),
    [
        ([], {}, "no-sequences", None),
        (one(loss_mask=torch.zeros(6, dtype=torch.int64)), {}, "no-counted-rows", "1 sequences"),
        (one(), {"layout": (0, 3, 30)}, "boundary-not-stored", None),
        (one(), {"layout": (0, 3)}, "fc-input-shape", "2 states of width 16"),
        (one(), {"head": torch.zeros(40, 8)}, "head-width", "width 16"),
        (one(tokens=torch.full((6,), 40)), {}, "token-outside-vocabulary", "40..40"),
        (one(), {"depths": 0}, "no-depths", "0"),
        (one(), {"control": "blurred"}, "control-unknown", "blurred"),
        (one(), {"control": "other_sequence"}, "one-sequence", None),
        (one(), {"control": "permuted", "layout": (3, 3, 3)}, "control-without-effect", None),
    ],
)
def test_what_cannot_be_measured_is_an_error(samples, options, code, found):
    arguments = {"layout": (0, 3, 31), "depths": 2, "head": HEAD} | options
    with pytest.raises(WiringError) as error:
        accuracy_by_depth(random_draft(), samples, **arguments)
    assert error.value.code == code
    assert found is None or error.value.found == found
