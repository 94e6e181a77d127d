"""Split and compare: no effect is rarely called real, an effect is, and rounds are not taken for requests."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from wiring.bench.acceptance_splits import Request, compare, from_meta, from_rounds, from_trial, split
from wiring.bench.measurement import Trial
from wiring.errors import WiringError

STEPS = 4


def histogram(rng, share, rounds=13):
    """A request whose drafts are right with probability `share`."""
    accepted = (rng.random((rounds, STEPS)) < share).cumprod(1).sum(1)
    return tuple(int((accepted == a).sum()) for a in range(STEPS + 1))


def requests(rng, shares, named=True, **condition):
    return [Request(histogram(rng, share), prompt if named else None, condition) for prompt, share in enumerate(shares)]


def test_a_group_without_effect_is_rarely_called_different_and_rounds_would_be_too_often():
    # Prompts differ in how well they are guessed; both groups are drawn alike.
    rng, called, by_rounds, repeats = np.random.default_rng(0), 0, 0, 60
    for _ in range(repeats):
        a, b = (requests(rng, rng.uniform(0.3, 0.9, 6), named=False) for _ in range(2))
        called += compare(a, b).p_value <= 0.05
        # The control: as if every round were independent.
        left, right = (np.repeat(range(STEPS + 1), np.sum([r.histogram for r in g], 0)) for g in (a, b))
        error = np.sqrt(left.var() / len(left) + right.var() / len(right))
        by_rounds += abs(left.mean() - right.mean()) > 1.96 * error
    assert called <= 0.15 * repeats < by_rounds


def test_pairing_finds_what_unpaired_requests_hide():
    rng = np.random.default_rng(1)
    shares = rng.uniform(0.3, 0.9, 10)
    a, b = requests(rng, shares), requests(rng, shares - 0.15)
    found = compare(a, b)
    assert found.paired and found.real and found.high < 0 and found.difference < 0
    loose = compare([Request(r.histogram) for r in a], [Request(r.histogram) for r in b])
    assert not loose.paired and loose.p_value > found.p_value
    assert loose.difference == pytest.approx(found.difference)


def test_the_difference_is_of_pooled_accept_lengths():
    a, b = [Request((1, 1), 0), Request((0, 2), 1)], [Request((4, 0), 0), Request((0, 2), 1)]
    got = compare(a, b)
    assert (got.accept_length_a, got.accept_length_b) == pytest.approx((1 + 3 / 4, 1 + 2 / 6))
    assert got.difference == pytest.approx(2 / 6 - 3 / 4) and (got.rounds_a, got.rounds_b) == (4, 6)


def test_few_prompts_cannot_tell_and_say_so():
    a = [Request((0, 0, 0, 0, 9), p) for p in range(3)]
    b = [Request((9,), p) for p in range(3)]
    got = compare(a, b)
    assert got.p_value == pytest.approx(2 / 8) == got.least_p and got.real is None and "too few" in str(got)
    six = compare([Request((0, 0, 0, 0, 9), p) for p in range(6)], [Request((9,), p) for p in range(6)])
    assert six.p_value == pytest.approx(2 / 64) and six.real is True


def test_the_unpaired_p_value_is_that_of_all_relabellings():
    rng = np.random.default_rng(5)
    a, b = requests(rng, [0.8] * 4, named=False), requests(rng, [0.5] * 5, named=False)
    pooled = [*a, *b]

    def gap(left):
        sides = [[r for i, r in enumerate(pooled) if (i in left) is side] for side in (True, False)]
        first, second = (sum(r.correct for r in s) / sum(r.rounds for r in s) for s in sides)
        return abs(second - first)

    every = [gap(set(chosen)) for chosen in combinations(range(9), 4)]
    exact = np.mean([g >= gap({0, 1, 2, 3}) - 1e-12 for g in every])
    got = compare(a, b)
    assert got.p_value == pytest.approx(exact, abs=0.02) and got.least_p == pytest.approx(1 / comb(9, 4))


def test_identical_groups_do_not_differ():
    a = requests(np.random.default_rng(2), [0.5, 0.6, 0.7, 0.4, 0.5, 0.8])
    got = compare(a, a)
    assert got.difference == 0 == got.low == got.high and got.p_value == 1.0 and got.real is False


def test_repeats_of_a_prompt_are_one_unit():
    rng = np.random.default_rng(3)
    a, b = requests(rng, [0.8] * 4), requests(rng, [0.4] * 4)
    once, thrice = compare(a, b), compare(a * 3, b * 3)
    assert (thrice.units_a, thrice.requests_a) == (4, 12) and thrice.p_value == once.p_value
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))


def test_a_split_has_a_row_for_each_value_with_marginals_and_conditionals():
    rows = split(
        [Request((1, 2, 0, 1), 0, {"cached": True}), Request((2, 2), 1, {"cached": False}), Request((9,), 2)],
        "cached",
        steps=3,
    )
    assert [(r.value, r.requests, r.rounds) for r in rows] == [(False, 1, 4), (True, 1, 4)]
    assert rows[1].by_position == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert rows[1].conditional == pytest.approx((3 / 4, 1 / 3, 1.0))
    assert rows[1].accept_length == pytest.approx(2.25) and np.isnan(rows[1].low)  # one request has no spread


def test_lengths_go_into_buckets_named_by_their_upper_end():
    lengths = (100, 512, 513, 9000)
    rows = split(
        [Request((1, n % 2), 0, {"prompt_tokens": n}) for n in lengths], "prompt_tokens", steps=1, edges=(2048, 512)
    )
    assert [(r.value, r.requests) for r in rows] == [(512, 2), (2048, 1), (float("inf"), 1)]


def test_the_interval_of_a_split_covers_the_truth():
    rng, hit = np.random.default_rng(4), 0
    for _ in range(60):
        # 1 + sum of E[share^k] over shares that are uniform on 0.4..0.8
        (row,) = split(requests(rng, rng.uniform(0.4, 0.8, 20), topk=1), "topk", steps=STEPS)
        truth = 1 + sum((0.8 ** (k + 1) - 0.4 ** (k + 1)) / (0.4 * (k + 1)) for k in range(1, STEPS + 1))
        hit += row.low <= truth <= row.high
    assert hit >= 50  # 57 of 60 at 95 %


def test_nothing_to_split_or_to_compare_is_refused():
    with pytest.raises(WiringError, match="expected batch"):
        split([Request((1, 2))], "batch", steps=1)
    with pytest.raises(WiringError, match="group b.*no rounds"):
        compare([Request((1, 2))], [Request(())])


@pytest.mark.parametrize("name", ["spec_correct_drafts_histogram", "spec_accept_histogram"])
def test_meta_info_of_each_release_gives_histogram_and_conditions(name):
    got = from_meta({name: [2, 1], "cached_tokens": 7, "prompt_tokens": 9}, 3, batch=4)
    assert got == Request((2, 1), 3, {"cached": True, "prompt_tokens": 9, "batch": 4})
    assert (got.rounds, got.correct) == (3, 1)


def test_meta_info_without_a_histogram_is_refused():
    with pytest.raises(WiringError, match="no histogram.*found spec_verify_ct"):
        from_meta({"spec_verify_ct": 3, "completion_tokens": 9})


def test_a_replay_beside_a_server_that_serves_as_replayed_leaves_nothing():
    replayed = [from_rounds((2, 0, 1, 3), p) for p in range(6)]
    assert replayed[0].histogram == (1, 1, 1, 1) and from_rounds(()).rounds == 0
    served = [Request((1, 1, 1, 1, 0), p) for p in range(6)]
    assert compare(replayed, served).difference == 0
    starved = compare(replayed, [Request((6, 1), p) for p in range(6)])
    assert starved.real and starved.difference == pytest.approx(1 / 7 - 6 / 4)


def test_a_trial_is_a_request():
    trial = Trial(
        arm="x",
        prompt=2,
        repeat=0,
        order=0,
        seconds=1,
        prefill_s=0,
        output_ids=(1,),
        rounds=3,
        correct_drafts=2,
        histogram=(1, 2),
    )
    assert from_trial(trial, topk=1) == Request((1, 2), 2, {"topk": 1})
