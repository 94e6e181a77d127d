"""Accept lengths of other chains and the best setting: closed forms, a simulated server, the model of `cost`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiring.bench.acceptance import acceptance
from wiring.bench.cost_model import chain_length, request_seconds
from wiring.bench.round_cost import Estimate, PricedRound, chain, fit_rounds
from wiring.bench.tuning import (
    Workload,
    alike,
    chain_accept_length,
    chain_marginals,
    outlook,
    outlooks,
    overshoot,
    speedup,
)
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError

LINE = fit_rounds([PricedRound(chain(n), 1.1 + 0.05 * n, 0.01) for n in (1, 3, 5, 7)])


def test_a_longer_chain_gives_the_marginals_of_a_shorter_one_and_the_last_conditional_goes_on():
    assert chain_marginals((0.8, 0.6, 0.3), 2) == (0.8, 0.6)
    assert chain_marginals((0.8, 0.4), 4) == pytest.approx((0.8, 0.4, 0.2, 0.1))
    assert chain_accept_length((0.769,), 5) == pytest.approx(chain_length(0.769, 5))
    assert chain_marginals((0.5, 0.0), 3) == (0.5, 0.0, 0.0) and chain_marginals((0.0,), 2) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", [(), (1.2,), (0.5, 0.6), (0.5, -0.1)])
def test_what_is_no_acceptance_by_position_is_refused(wrong):
    with pytest.raises(WiringError, match="not acceptance by position"):
        chain_marginals(wrong, 3)


def rounds_of_answers(marginals, tokens, answers, rng):
    """Rounds that a server with independent rounds needs for `answers` answers, and the histogram that it reports."""
    steps, needed, histogram = len(marginals), [], np.zeros(len(marginals) + 1, int)
    for _ in range(answers):
        done, rounds = 1, 0  # the first token comes with the prefill
        while done < tokens:
            accepted = int((rng.random() < np.array(marginals)).sum())  # marginals fall, so one draw decides all
            histogram[accepted] += 1
            done, rounds = done + accepted + 1, rounds + 1
        needed.append(rounds)
    return float(np.mean(needed)), acceptance(histogram.tolist(), steps)


@pytest.mark.parametrize("marginals", [(0.7, 0.5, 0.35, 0.25, 0.2), (0.9, 0.1), (0.2, 0.2, 0.2)])
def test_overshoot_makes_up_for_the_last_round(marginals):
    rounds, got = rounds_of_answers(marginals, 41, 4000, np.random.default_rng(0))
    without, with_it = (40 / got.accept_length, (40 + overshoot(got.by_position)) / got.accept_length)
    assert with_it == pytest.approx(rounds, rel=0.01)
    assert abs(without - rounds) > 2 * abs(with_it - rounds)


def test_speedup_is_the_request_model_with_the_prefill_on_both_sides():
    work = Workload(97, prefill_plain=3.0, prefill_draft=3.5)
    want = request_seconds(96, 1.0, 3.0) / request_seconds(96 / 2.9, 1.3, 3.5)
    assert speedup(1.3, 2.9, work) == pytest.approx(want)
    assert speedup(1.3, 2.9) == pytest.approx(2.9 / 1.3)


@given(st.floats(0.05, 0.98), st.floats(0.0, 0.4), st.integers(1, 9))
def test_the_best_chain_is_the_best_of_all(share, slope, longest):
    model = fit_rounds([PricedRound(chain(n), 1.05 + slope * n) for n in (2, 6)])
    marginals = [share**k for k in range(1, longest + 1)]
    best = outlooks(model, marginals)[0]
    speed = {n: chain_length(share, n) / (1.05 + slope * n) for n in range(1, longest + 1)}
    assert best.speedup.value == pytest.approx(max(speed.values()))
    assert speed[best.setting.steps] == pytest.approx(max(speed.values()))


def test_chains_beyond_the_measured_one_are_marked_and_left_out_unless_asked_for():
    assert {o.setting.steps for o in outlooks(LINE, (0.8, 0.6))} == {1, 2}
    assert {o.setting.steps: o.extrapolated for o in outlooks(LINE, (0.8, 0.6), longest=3)} == {
        1: False,
        2: False,
        3: True,
    }


def test_a_tree_competes_with_the_accept_length_that_it_brings():
    prices = [PricedRound(s, 1 + 0.02 * s.draft_tokens) for s in (*map(chain, (1, 4, 7)), Speculation(4, 2, 10))]
    tree = Speculation(3, 4, 12)
    ranked = outlooks(fit_rounds(prices), (0.6, 0.4), trees={tree: Estimate(3.4)})
    assert ranked[0].setting == tree and ranked[0].speedup.value == pytest.approx(3.4 / 1.24)


def test_errors_of_price_and_accept_length_join():
    got = outlook(LINE, chain(4), Estimate(2.8, 0.14))
    share = (0.14 / 2.8) ** 2 + (LINE.price(chain(4)).error / LINE.price(chain(4)).value) ** 2
    assert got.speedup.error == pytest.approx(got.speedup.value * share**0.5)
    assert outlook(LINE, chain(4), Estimate(2.8)).speedup.error is None


def test_with_prompts_of_their_own_the_speedup_is_the_median_over_them():
    prompts, work = [(0.9, 0.8), (0.5, 0.2), (0.1, 0.0)], Workload(40, 1.5, 1.6)
    ranked = {o.setting.steps: o for o in outlooks(LINE, (0.5, 0.4), by_prompt=prompts, work=work)}
    price = LINE.price(chain(2)).value
    assert ranked[2].speedup.value == pytest.approx(speedup(price, 1.7, work, overshoot((0.5, 0.2))))
    assert ranked[2].accept_length.value == pytest.approx(1.9)


def test_settings_within_the_error_are_alike_and_without_errors_the_best_stands_alone():
    ranked = outlooks(LINE, (0.8, 0.65, 0.5, 0.4, 0.3), relative_error=0.05)
    group = {o.setting.steps for o in alike(ranked)}
    assert ranked[0].setting.steps in group and 1 not in group and len(group) > 1
    assert len(alike(outlooks(LINE, (0.8, 0.65, 0.5)))) == 1
