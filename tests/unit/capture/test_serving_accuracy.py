"""Accuracy on served and on trained states of the same rows, counted row by row and compared with the evaluator."""

import dataclasses

import numpy as np
import pytest
import torch
from planted import HEAD, NoisyDraft, random_samples

from wiring.accuracy.evaluation import evaluate
from wiring.capture.served_accuracy import ServedText, from_the_start, serving_accuracy
from wiring.errors import WiringError

KEPT = (0, 2, 3, 5, 6, 7, 9, 10, 11)
LENGTHS = (12, 9, 15, 7)


@pytest.fixture(scope="module")
def planted():
    """Return (draft, samples with trained states, samples with served states); the draft has another plan for each."""
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
    """Return (right, rows) of depth k by SpecForge's rule: row t counts if the mask holds token t + k."""
    best = (sample.last_hidden @ HEAD.T).argmax(-1)
    rows = [t for t in range(len(best) - 1 - k) if sample.loss_mask[t + k]]
    plan = draft.to_target_ids(draft.plan(sample, k))
    return sum(int(plan[t] == best[t + 1 + k]) for t in rows), len(rows)


def test_both_are_counted_on_the_same_rows(planted):
    draft, trained, served = planted
    result = serving_accuracy(draft, texts(trained, served), 3, HEAD)
    for k, depth in enumerate(result.depths):
        t = np.array([counted(draft, sample, k) for sample in trained]).sum(0)
        s = np.array([counted(draft, sample, k) for sample in served]).sum(0)
        assert depth.rows == t[1] == s[1]
        assert (depth.trained, depth.served) == pytest.approx((t[0] / t[1], s[0] / s[1]))
        assert depth.difference_low <= depth.served - depth.trained <= depth.difference_high
    assert result.rule.startswith("specforge: ")


def test_each_source_has_the_evaluators_accuracy(planted):
    draft, trained, served = planted
    result = serving_accuracy(draft, texts(trained, served), 2, HEAD)
    for source, samples in (("trained", trained), ("served", served)):
        alone = evaluate(draft, samples, (0,), 2, HEAD)["none"]
        for paired, depth in zip(result.depths, alone.depths, strict=True):
            assert (paired.rows, getattr(paired, source)) == (depth.total, pytest.approx(depth.accuracy))


def test_the_interval_of_the_difference_is_paired(planted):
    """Two texts with equal rows: of the mean of two draws, one in four is the lesser text alone, one the greater."""
    draft, trained, served = planted
    pair = [dataclasses.replace(t, loss_mask=torch.ones_like(t.loss_mask)) for t in trained[:1] * 2]
    other = [dataclasses.replace(served[0], loss_mask=pair[0].loss_mask), pair[0]]  # the second is fed as trained
    (depth,) = serving_accuracy(draft, texts(pair, other), 1, HEAD).depths
    gap = (counted(draft, other[0], 0)[0] - counted(draft, pair[0], 0)[0]) / (LENGTHS[0] - 1)
    assert gap != 0
    assert depth.served - depth.trained == pytest.approx(gap / 2)
    assert sorted((depth.difference_low, depth.difference_high)) == pytest.approx(sorted((gap, 0.0)))
    same = serving_accuracy(draft, texts(trained, trained), 2, HEAD).depths
    assert [(d.served - d.trained, d.difference_low, d.difference_high) for d in same] == [(0, 0, 0)] * 2
    (alone,) = serving_accuracy(draft, texts(trained[:1], served[:1]), 1, HEAD).depths
    assert (alone.difference_low, alone.difference_high) == (-1, 1)  # one text has no spread


def test_a_text_without_rows_counts_nothing(planted):
    draft, trained, served = planted
    blank = [dataclasses.replace(t, loss_mask=torch.zeros_like(t.loss_mask)) for t in trained]
    both = serving_accuracy(draft, texts([blank[0], trained[1]], served[:2]), 2, HEAD)
    alone = serving_accuracy(draft, texts(trained[1:2], served[1:2]), 2, HEAD)
    assert [(d.rows, d.served) for d in both.depths] == [(d.rows, d.served) for d in alone.depths]
    for refused in (texts(blank, served), []):
        with pytest.raises(WiringError) as error:
            serving_accuracy(draft, refused, 2, HEAD)
        assert (error.value.code, error.value.where) == ("no-counted-rows", "loss_mask")


def test_states_are_used_up_to_the_first_gap():
    states = torch.arange(6)[:, None, None].float()
    assert from_the_start(torch.tensor([2, 0, 1, 5, 4, 0]), states).flatten().tolist() == [5, 2, 0]  # 0 given twice
    with pytest.raises(WiringError) as error:
        from_the_start(torch.tensor([3, 4]), states[:2])
    assert error.value.code == "first-position-missing" and "from 3" in error.value.found
