"""Every counting preset against its trainer's own procedure, written out here row by row as the trainer shifts."""

import numpy as np
import pytest
import torch
from planted import HEAD, VOCAB, NoisyDraft, random_samples

from wiring.accuracy.counting import PRESETS, counting_rule
from wiring.accuracy.evaluation import evaluate
from wiring.accuracy.target_head import TargetHead
from wiring.errors import WiringError

DEPTHS = 4
LAYOUT = (0,)
KEPT = [0, 2, 3, 7, 8, 11]


def padded(row, by=1):
    """Shift left by one, zeros behind: how SpecForge, SafeAILab and TorchSpec move ids, masks and targets."""
    return torch.cat([row[by:], torch.zeros_like(row[:by])])


def specforge(draft, sample):
    """Targets shifted once, mask not; then everything by one per step; the loader clears the mask's last entry."""
    logits = sample.last_hidden @ HEAD.T
    target, mask = padded(logits).argmax(-1), sample.loss_mask.clone()
    mask[-1] = 0
    target[-1] = 0
    for k in range(DEPTHS):
        proposed = draft.target_ids[draft.plan(sample, k)]
        yield int(((proposed == target) * mask).sum()), int(mask.sum())
        target, mask = padded(target), padded(mask)


def safeailab(draft, sample):
    """Logits are shifted, with a row of zeros behind; the best id inside the draft's vocabulary must be right, and
    rows whose target lies outside count in the denominator alone."""
    logits, mask = padded(sample.last_hidden @ HEAD.T), sample.loss_mask.clone()
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[draft.target_ids] = True
    for k in range(DEPTHS):
        position = t2d[logits.argmax(-1)] * mask
        inside = logits[:, t2d].argmax(-1)
        yield int(((draft.plan(sample, k) == inside) * position).sum()), int(mask.sum())
        logits, mask = padded(logits), padded(mask)


def torchspec(draft, sample):
    """As SafeAILab shifts; only rows whose target lies inside the draft's vocabulary count at all."""
    hidden, mask = padded(sample.last_hidden), sample.loss_mask.clone()
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[draft.target_ids] = True
    position = t2d[(hidden @ HEAD.T).argmax(-1)] * mask
    for k in range(DEPTHS):
        inside = (hidden @ HEAD[t2d].T).argmax(-1)
        yield int(((draft.plan(sample, k) == inside) * position).sum()), int(position.sum())
        hidden, position = padded(hidden), padded(position)


def speculators(draft, sample, given):
    """Rows (x[t+1], g[t], y[t+1], mask[t+1]), one fewer than tokens; step k cuts k rows off each side."""
    target = (sample.last_hidden[1:] @ HEAD[draft.target_ids].T).argmax(-1)
    mask = sample.loss_mask[1:].bool()
    right_so_far = mask.clone()
    for k in range(DEPTHS):
        rows = len(target) - k
        if rows <= 0:
            yield 0, 0
            continue
        at_risk = int(right_so_far[:rows].sum())
        right_so_far[:rows] &= draft.plan(sample, k)[:rows] == target[k:]
        right = int((right_so_far[:rows] & mask[k:]).sum())
        yield right, at_risk if given else int(mask[k:].sum())


def modelopt(draft, sample, answer_only):
    """Base predictions [1+k:] against draft logits of the rows whose last seen token is k..N-2."""
    target = (sample.last_hidden @ HEAD[draft.target_ids].T).argmax(-1)
    mask = sample.loss_mask if answer_only else torch.ones_like(sample.loss_mask)
    for k in range(DEPTHS):
        rows = max(len(target) - 1 - k, 0)
        right = draft.plan(sample, k)[:rows] == target[1 + k :]
        yield int((right & mask[1 + k :].bool()).sum()), int(mask[1 + k :].sum())


PROCEDURES = {
    "specforge": specforge,
    "safeailab": safeailab,
    "torchspec": torchspec,
    "speculators-full": lambda d, s: speculators(d, s, given=False),
    "speculators-cond": lambda d, s: speculators(d, s, given=True),
    "modelopt": lambda d, s: modelopt(d, s, answer_only=False),
    "modelopt-answer-only": lambda d, s: modelopt(d, s, answer_only=True),
}
POOLED = {"specforge", "speculators-full", "speculators-cond"}


def test_every_preset_has_a_procedure_here():
    assert set(PROCEDURES) == set(PRESETS)


@pytest.mark.parametrize("vocabulary", ["with id 0", "without id 0", "whole"])
@pytest.mark.parametrize("name", PROCEDURES)
def test_counts_are_the_trainers(name, vocabulary):
    kept = {"with id 0": [0, 2, 3, 7, 8, 11], "without id 0": [1, 2, 3, 5, 7, 8, 9, 11, 12], "whole": range(VOCAB)}[
        vocabulary
    ]
    samples = random_samples([9, 30, 5, 17, 2, 1, 23])
    draft = NoisyDraft(samples, kept, HEAD)
    report = evaluate(draft, samples, LAYOUT, DEPTHS, HEAD, rule=name, batch=3)["none"]
    each = np.array([list(PROCEDURES[name](draft, sample)) for sample in samples])  # [S, depths, 2]
    pooled = each.sum(0)
    assert [(d.correct, d.total) for d in report.depths] == [tuple(row) for row in pooled]
    assert 0.15 < report.depths[0].accuracy < 0.95, "a count that is nearly always 0 or 1 tells nothing"
    shares = each[..., 0] / np.maximum(each[..., 1], 1)
    expected = pooled[:, 0] / pooled[:, 1] if name in POOLED else shares.mean(0)
    assert [d.accuracy for d in report.depths] == pytest.approx(list(expected))


def test_averages_over_batches_of_the_trainers_size():
    samples = random_samples([9, 30, 5, 17, 12])
    draft = NoisyDraft(samples, KEPT, HEAD)
    each = np.array([list(safeailab(draft, sample)) for sample in samples])
    groups = np.array([each[0:2].sum(0), each[2:4].sum(0), each[4:].sum(0)])
    report = evaluate(draft, samples, LAYOUT, DEPTHS, HEAD, rule="safeailab", trainer_batch=2)["none"]
    expected = (groups[..., 0] / groups[..., 1]).mean(0)
    assert [d.accuracy for d in report.depths] == pytest.approx(list(expected))


def test_share_outside_links_specforge_and_torchspec():
    """On the same rows: SpecForge's accuracy = (1 - share outside) x TorchSpec's, here with masks that end early."""
    samples = random_samples([20, 31, 12])
    for sample in samples:
        sample.loss_mask[-1] = 0
    draft = NoisyDraft(samples, KEPT, HEAD)
    ours, theirs = (
        evaluate(draft, samples, LAYOUT, 2, HEAD, rule=name)["none"].depths[0] for name in ("specforge", "torchspec")
    )
    assert ours.out_of_vocabulary > 0
    assert ours.correct == theirs.correct
    assert ours.total - ours.out_of_vocabulary == theirs.total


def test_accept_length_is_the_sum_of_products():
    samples = random_samples([25, 31, 12])
    draft = NoisyDraft(samples, KEPT, HEAD)
    report = evaluate(draft, samples, LAYOUT, 3, HEAD, rule="specforge")["none"]
    a, b, c = (d.correct / d.total for d in report.depths)
    assert report.accept_length == pytest.approx(a + a * b + a * b * c)
    assert report.accept_length_with_bonus == pytest.approx(1 + report.accept_length)
    assert report.accept_length_low <= report.accept_length <= report.accept_length_high
    cumulative = evaluate(draft, samples, LAYOUT, 3, HEAD, rule="speculators-full")["none"]
    assert cumulative.accept_length == pytest.approx(sum(d.correct / d.total for d in cumulative.depths))


def test_positions_split_the_same_rows():
    samples = random_samples([300, 40, 150])
    draft = NoisyDraft(samples, KEPT, HEAD)
    report = evaluate(draft, samples, LAYOUT, 2, HEAD)["none"]
    for k, depth in enumerate(report.depths):
        parts = [p for p in report.positions if p.depth == k]
        assert (sum(p.correct for p in parts), sum(p.total for p in parts)) == (depth.correct, depth.total)
    mask = [s.loss_mask[:-1] for s in samples]
    early = [p for p in report.positions if (p.depth, p.first, p.last) == (0, 0, 31)]
    assert early[0].total == sum(int(m[:32].sum()) for m in mask)


def test_floors_are_what_tables_score():
    samples = random_samples([40, 30, 25, 50])
    draft = NoisyDraft(samples, KEPT, HEAD)
    report = evaluate(draft, samples, LAYOUT, 1, HEAD)["none"]
    right = [0, 0]
    rows = 0
    pairs = [[], []]
    for i, sample in enumerate(samples):
        labels = (sample.last_hidden @ HEAD.T).argmax(-1)
        for t in range(len(labels) - 1):
            if sample.loss_mask[t]:
                pairs[bin(i).count("1") % 2].append((int(sample.tokens[t + 1]), int(labels[t + 1])))
    kept = set(draft.target_ids.tolist())
    for known, asked in ((0, 1), (1, 0)):
        sayable = [label for _, label in pairs[known] if label in kept]
        usual = max(sorted(set(sayable)), key=sayable.count)
        for token, label in pairs[asked]:
            after = [x for prev, x in pairs[known] if prev == token and x in kept]
            guess = max(sorted(set(after)), key=after.count) if after else usual
            right[0] += label == usual and label in kept
            right[1] += label == guess and label in kept
            rows += 1
    assert (report.unigram, report.bigram) == pytest.approx((right[0] / rows, right[1] / rows))


def test_states_that_are_not_normed_get_the_targets_norm():
    samples = random_samples([25, 18])
    weight = torch.rand(HEAD.shape[1], generator=torch.Generator().manual_seed(3)) + 0.5
    normed = [s.last_hidden / (s.last_hidden.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight for s in samples]
    plain = [type(s)(**(s.__dict__ | {"last_hidden": n})) for s, n in zip(samples, normed, strict=True)]
    raw = [type(s)(**(s.__dict__ | {"norm": "pre"})) for s in samples]
    draft = NoisyDraft(plain, KEPT, HEAD)
    expected = evaluate(draft, plain, LAYOUT, 2, TargetHead(HEAD))["none"].depths
    assert evaluate(draft, raw, LAYOUT, 2, TargetHead(HEAD, weight, 1e-5))["none"].depths == expected
    with pytest.raises(WiringError) as error:
        evaluate(draft, raw, LAYOUT, 2, TargetHead(HEAD))
    assert error.value.code == "final-norm-unknown"
    open_question = [type(s)(**(s.__dict__ | {"norm": "undecided"})) for s in samples]
    with pytest.raises(WiringError) as error:
        evaluate(draft, open_question, LAYOUT, 2, TargetHead(HEAD, weight, 1e-5))
    assert error.value.code == "norm-state-unknown"


def test_all_controls_in_one_pass_equal_each_alone():
    samples = random_samples([25, 18, 9])
    draft = NoisyDraft(samples, KEPT, HEAD)
    names = ("none", "shifted", "zeroed", "other_sequence")
    together = evaluate(draft, samples, LAYOUT, 2, HEAD, controls=names, batch=2)
    for name in names:
        alone = evaluate(draft, samples, LAYOUT, 2, HEAD, controls=(name,), batch=2)[name]
        assert together[name] == alone
    limited = evaluate(draft, samples, LAYOUT, 2, HEAD, controls=names, batch=2, control_sequences=1)
    assert [limited[name].sequences for name in names] == [3, 1, 1, 1]


def test_unknown_preset_lists_the_known():
    with pytest.raises(WiringError) as error:
        counting_rule("sglang")
    assert error.value.code == "preset-unknown"
    assert error.value.expected.split(", ") == list(PRESETS)


@pytest.mark.parametrize("name", ["speculators-full", "modelopt"])
def test_labels_inside_need_no_whole_vocabulary(name):
    """Counts are the same however many sequences are looked at for labels outside; the share is of those."""
    samples = random_samples([20, 31, 12, 17])
    draft = NoisyDraft(samples, KEPT, HEAD)
    every, some, none = (
        evaluate(draft, samples, LAYOUT, 2, HEAD, rule=name, batch=3, outside_sequences=n)["none"].depths
        for n in (None, 2, 0)
    )
    assert [(d.correct, d.total) for d in every] == [(d.correct, d.total) for d in some]
    assert [(d.correct, d.total) for d in every] == [(d.correct, d.total) for d in none]
    kept = set(KEPT)
    for report, looked in ((every, 4), (some, 2), (none, 0)):
        outside = rows = 0
        for sample in samples[:looked]:
            mask = torch.ones_like(sample.loss_mask) if name == "modelopt" else sample.loss_mask
            for j in range(1, len(mask)):
                if mask[j]:
                    rows += 1
                    outside += int((sample.last_hidden[j] @ HEAD.T).argmax()) not in kept
        assert (report[0].out_of_vocabulary, report[0].out_of_vocabulary_of) == (outside, rows)


def test_depths_that_no_row_reaches_are_0_of_0():
    """Among rows right so far a blind draft soon has none left; that is no error."""
    samples = random_samples([20, 31])
    draft = NoisyDraft(samples, KEPT, HEAD)
    for key, plan in draft._plans.items():
        if key[1] == 1:
            plan.copy_((plan + 1 + torch.arange(len(plan)) % 4) % len(KEPT))  # hardly anything right at depth 1
    for sample in samples:
        wrong = draft._plans[int(sample.states[0, 0, 0]), 1]
        best = (sample.last_hidden @ HEAD[draft.target_ids].T).argmax(-1)
        label = torch.cat([best[2:], best[:2]])
        wrong.copy_(torch.where(wrong == label, (wrong + 1) % len(KEPT), wrong))
    depths = evaluate(draft, samples, LAYOUT, 3, HEAD, rule="speculators-cond")["none"].depths
    assert depths[1].correct == 0 and depths[1].total > 0
    assert (depths[2].correct, depths[2].total, depths[2].accuracy) == (0, 0, 0.0)
    assert (depths[2].low, depths[2].high) == (0.0, 1.0)
