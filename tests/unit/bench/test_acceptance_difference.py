"""Comparison of two groups of requests: false positives are rare, effects are found, the unit is the request."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from wiring.bench.acceptance_difference import Request, compare, from_meta, split_row
from wiring.errors import WiringError

STEPS = 4


def histogram(rng, share, rounds=13):
    """A request whose drafts are right with probability `share`."""
    accepted = (rng.random((rounds, STEPS)) < share).cumprod(1).sum(1)
    return tuple(int((accepted == a).sum()) for a in range(STEPS + 1))


def requests(rng, shares, named=True):
    return [Request(histogram(rng, share), prompt if named else None) for prompt, share in enumerate(shares)]


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


def test_few_prompts_cannot_decide():
    a = [Request((0, 0, 0, 0, 9), p) for p in range(3)]
    b = [Request((9,), p) for p in range(3)]
    got = compare(a, b)
    assert got.p_value == pytest.approx(2 / 8) == got.least_p and got.real is None
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


def test_a_row_has_marginals_conditionals_and_no_interval_for_one_request():
    row = split_row([Request((1, 2, 0, 1), 0), Request((), 1)], "cached", True, 3)
    assert (row.by, row.value, row.requests, row.rounds) == ("cached", True, 1, 4)
    assert row.by_position == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert row.conditional == pytest.approx((3 / 4, 1 / 3, 1.0))
    assert row.accept_length == pytest.approx(2.25) and np.isnan(row.low)


def test_the_interval_of_a_split_covers_the_truth():
    rng, hit = np.random.default_rng(4), 0
    for _ in range(60):
        # 1 + sum of E[share^k] over shares that are uniform on 0.4..0.8
        row = split_row(requests(rng, rng.uniform(0.4, 0.8, 20)), "topk", 1, STEPS)
        truth = 1 + sum((0.8 ** (k + 1) - 0.4 ** (k + 1)) / (0.4 * (k + 1)) for k in range(1, STEPS + 1))
        hit += row.low <= truth <= row.high
    assert hit >= 50  # 57 of 60 at 95 %


def test_a_group_without_rounds_is_refused():
    with pytest.raises(WiringError) as error:
        compare([Request((1, 2))], [Request(())])
    assert (error.value.code, error.value.where) == ("no-rounds", "group b")


@pytest.mark.parametrize("name", ["spec_correct_drafts_histogram", "spec_accept_histogram"])
def test_meta_info_of_each_release_gives_the_histogram(name):
    got = from_meta({name: [2, 1], "cached_tokens": 7}, 3)
    assert got == Request((2, 1), 3) and (got.rounds, got.correct) == (3, 1)


def test_meta_info_without_a_histogram_is_refused():
    with pytest.raises(WiringError) as error:
        from_meta({"spec_verify_ct": 3, "completion_tokens": 9})
    assert (error.value.code, error.value.found) == ("acceptance-histogram-missing", "spec_verify_ct")


def test_a_group_of_one_request_is_compared_exactly():
    counts = [(1, 2), (0, 4), (1, 4), (4, 4)]  # accepted drafts, rounds of each request; the first is a group alone
    requests = [Request((1, 1)), Request((4, 0)), Request((3, 1)), Request((0, 4))]
    apart = []
    for drafts, rounds in counts:
        rest_drafts, rest_rounds = 6 - drafts, 14 - rounds
        apart.append(abs(drafts / rounds - rest_drafts / rest_rounds))
    expected = sum(x >= apart[0] - 1e-12 for x in apart) / len(apart)
    assert compare(requests[:1], requests[1:]).p_value == compare(requests[1:], requests[:1]).p_value == expected
    assert compare([Request((1, 1), "a")], [Request((0, 2), "a")]).p_value == 1.0
