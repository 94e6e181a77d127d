"""Accuracy on served and on trained states of the same rows: counted row by row, and against the evaluator."""

import dataclasses

import numpy as np
import pytest
import torch
from planted import HEAD, WIDTH, NoisyDraft, random_samples

from wiring.accuracy.evaluation import evaluate
from wiring.capture.served_accuracy import ServedText, as_text, from_the_start, serving_accuracy
from wiring.errors import WiringError

KEPT = (0, 2, 3, 5, 6, 7, 9, 10, 11)
LENGTHS = (12, 9, 15, 7)


@pytest.fixture(scope="module")
def planted():
    """(draft, samples with trained states, samples with served states): the draft has another plan for each."""
    samples = random_samples([*LENGTHS, *LENGTHS], seed=3)
    trained = samples[: len(LENGTHS)]
    served = [
        dataclasses.replace(one, states=other.states)
        for one, other in zip(trained, samples[len(LENGTHS) :], strict=True)
    ]
    draft = NoisyDraft([*trained, *served], KEPT, HEAD)
    return draft, trained, served


def texts(trained, served):
    return [
        ServedText(t.source, t.tokens, t.loss_mask, s.states, t.states, t.last_hidden)
        for t, s in zip(trained, served, strict=True)
    ]


def counted(draft, sample, k):
    """(right, rows) of depth k by SpecForge's rule: row t counts where the mask names token t + k."""
    best = (sample.last_hidden @ HEAD.T).argmax(-1)
    rows = [t for t in range(len(best) - 1 - k) if sample.loss_mask[t + k]]
    plan = draft.to_target_ids(draft.plan(sample, k))
    return sum(int(plan[t] == best[t + 1 + k]) for t in rows), len(rows)


def test_both_are_counted_on_the_same_rows(planted):
    draft, trained, served = planted
    result = serving_accuracy(draft, texts(trained, served), (7,), 3, HEAD)
    for k, depth in enumerate(result.depths):
        t = np.array([counted(draft, sample, k) for sample in trained]).sum(0)
        s = np.array([counted(draft, sample, k) for sample in served]).sum(0)
        assert (depth.trained_correct, depth.rows) == tuple(t) and (depth.served_correct, depth.rows) == tuple(s)
        assert depth.difference == pytest.approx((s[0] - t[0]) / t[1])
    assert (result.layout, result.texts) == ((7,), 4)
    assert result.rule.startswith("specforge: loss mask tested at")
    shares = [depth.trained for depth in result.depths]
    assert result.trained_accept_length == pytest.approx(1 + sum(np.cumprod(shares)))


@pytest.mark.parametrize("rule", ["specforge", "safeailab", "speculators-full", "modelopt", "torchspec"])
def test_each_side_is_what_the_evaluator_says_of_it_alone(planted, rule):
    draft, trained, served = planted
    result = serving_accuracy(draft, texts(trained, served), (0,), 2, HEAD, rule=rule, seed=5)
    for side, samples in (("trained", trained), ("served", served)):
        alone = evaluate(draft, samples, (0,), 2, HEAD, rule=rule, seed=5)["none"]
        for paired, depth in zip(result.depths, alone.depths, strict=True):
            assert (getattr(paired, f"{side}_correct"), paired.rows) == (depth.correct, depth.total)
            assert getattr(paired, side) == pytest.approx(depth.accuracy)
            assert getattr(paired, f"{side}_low") == pytest.approx(depth.low)
            assert getattr(paired, f"{side}_high") == pytest.approx(depth.high)
        assert getattr(result, f"{side}_accept_length") == pytest.approx(alone.accept_length_with_bonus)


def test_the_interval_of_the_difference_is_paired(planted):
    """Two texts alike in rows: of the mean of two draws, one in four is the lesser text alone, one the greater."""
    draft, trained, served = planted
    pair = [dataclasses.replace(t, loss_mask=torch.ones_like(t.loss_mask)) for t in trained[:1] * 2]
    other = [dataclasses.replace(served[0], loss_mask=pair[0].loss_mask), pair[0]]  # the second is fed as trained
    result = serving_accuracy(draft, texts(pair, other), (0,), 1, HEAD)
    (depth,) = result.depths
    gap = (counted(draft, other[0], 0)[0] - counted(draft, pair[0], 0)[0]) / (LENGTHS[0] - 1)
    assert gap != 0
    assert depth.difference == pytest.approx(gap / 2)
    assert sorted((depth.difference_low, depth.difference_high)) == pytest.approx(sorted((gap, 0.0)))
    same = serving_accuracy(draft, texts(trained, trained), (0,), 2, HEAD)
    assert [(d.difference, d.difference_low, d.difference_high) for d in same.depths] == [(0, 0, 0)] * 2


def test_one_text_says_nothing_of_the_spread(planted):
    draft, trained, served = planted
    (depth,) = serving_accuracy(draft, texts(trained[:1], served[:1]), (0,), 1, HEAD).depths
    assert (depth.served_low, depth.served_high, depth.difference_low, depth.difference_high) == (0, 1, -1, 1)


def test_what_cannot_be_paired_is_refused(planted):
    draft, trained, served = planted
    with pytest.raises(WiringError, match="takes other rows for each source"):
        serving_accuracy(draft, texts(trained, served), (0,), 2, HEAD, rule="speculators-cond")
    with pytest.raises(WiringError, match="no texts"):
        serving_accuracy(draft, [], (0,), 2, HEAD)
    blank = [dataclasses.replace(t, loss_mask=torch.zeros_like(t.loss_mask)) for t in trained]
    with pytest.raises(WiringError, match="no row counts at depth 0"):
        serving_accuracy(draft, texts(blank, served), (0,), 2, HEAD)


def test_a_text_without_rows_beside_one_with_them_counts_nothing(planted):
    draft, trained, served = planted
    blank = [dataclasses.replace(trained[0], loss_mask=torch.zeros_like(trained[0].loss_mask)), trained[1]]
    both = serving_accuracy(draft, texts(blank, served[:2]), (0,), 2, HEAD)
    alone = serving_accuracy(draft, texts(trained[1:2], served[1:2]), (0,), 2, HEAD)
    assert [d.rows for d in both.depths] == [d.rows for d in alone.depths]
    assert [d.served_correct for d in both.depths] == [d.served_correct for d in alone.depths]


def test_states_are_used_up_to_the_first_gap():
    states = torch.arange(6)[:, None, None].float()
    assert from_the_start(torch.tensor([2, 0, 1, 5, 4, 0]), states).flatten().tolist() == [5, 2, 0]  # 0 given twice
    with pytest.raises(WiringError, match="the first position's state is missing.*from 3"):
        from_the_start(torch.tensor([3, 4]), states[:2])
    text = as_text("a", torch.arange(5), torch.ones(5), states[:3], torch.zeros(5, 1, 1), torch.zeros(5, WIDTH))
    assert [len(part) for part in (text.tokens, text.loss_mask, text.trained, text.last_hidden)] == [3] * 4
    with pytest.raises(WiringError, match="more served states than tokens"):
        as_text("a", torch.arange(2), torch.ones(2), states[:3], torch.zeros(2, 1, 1), torch.zeros(2, WIDTH))
