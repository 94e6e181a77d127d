"""Predicted chains against closed forms and a simulated server."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiring.bench.acceptance import acceptance
from wiring.bench.cost_model import chain_length
from wiring.bench.round_cost import MeasuredRoundCost, fit_rounds
from wiring.bench.tuning import (
    Workload,
    chain_accept_length,
    chain_marginals,
    overshoot,
    predict_chains,
    speedup,
)
from wiring.errors import WiringError

LINE = fit_rounds([MeasuredRoundCost(n, 1.1 + 0.05 * n, 0.01) for n in (1, 3, 5, 7)])


def test_a_longer_chain_gives_the_marginals_of_a_shorter_one_and_the_last_conditional_goes_on():
    assert chain_marginals((0.8, 0.6, 0.3), 2) == (0.8, 0.6)
    assert chain_marginals((0.8, 0.4), 4) == pytest.approx((0.8, 0.4, 0.2, 0.1))
    assert chain_accept_length((0.769,), 5) == pytest.approx(chain_length(0.769, 5))
    assert chain_marginals((0.5, 0.0), 3) == (0.5, 0.0, 0.0) and chain_marginals((0.0,), 2) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", [(), (1.2,), (0.5, 0.6), (0.5, -0.1)])
def test_what_is_no_acceptance_by_position_is_refused(wrong):
    with pytest.raises(WiringError) as error:
        chain_marginals(wrong, 3)
    assert (error.value.code, error.value.found) == ("acceptance-not-falling", str(wrong))


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
    want = (3.0 + 96) / (3.5 + 96 / 2.9 * 1.3)
    assert speedup(1.3, 2.9, work) == pytest.approx(want)
    assert speedup(1.3, 2.9) == pytest.approx(2.9 / 1.3)


@given(st.floats(0.05, 0.98), st.floats(0.0, 0.4), st.integers(1, 9))
def test_the_best_chain_is_the_best_of_all(share, slope, longest):
    model = fit_rounds([MeasuredRoundCost(n, 1.05 + slope * n) for n in (2, 6)])
    marginals = [share**k for k in range(1, longest + 1)]
    best = predict_chains(model, marginals)[0]
    speed = {n: chain_length(share, n) / (1.05 + slope * n) for n in range(1, longest + 1)}
    assert best.speedup.value == pytest.approx(max(speed.values()))
    assert speed[best.steps] == pytest.approx(max(speed.values()))


def test_chains_beyond_the_measured_one_are_marked_and_left_out_unless_asked_for():
    assert {one.steps for one in predict_chains(LINE, (0.8, 0.6))} == {1, 2}
    found = {one.steps: one.extrapolated for one in predict_chains(LINE, (0.8, 0.6), longest=3)}
    assert found == {1: False, 2: False, 3: True}


def test_errors_of_cost_and_accept_length_are_combined():
    got = predict_chains(LINE, (0.8, 0.6), relative_error=0.05)[0]
    share = 0.05**2 + (got.cost.error / got.cost.value) ** 2
    assert got.speedup.error == pytest.approx(got.speedup.value * share**0.5)
    assert got.accept_length.error == pytest.approx(0.05 * got.accept_length.value)
    assert predict_chains(LINE, (0.8, 0.6))[0].speedup.error is None


def test_with_marginals_by_prompt_the_speedup_is_the_median_over_prompts():
    prompts, work = [(0.9, 0.8), (0.5, 0.2), (0.1, 0.0)], Workload(40, 1.5, 1.6)
    two = next(one for one in predict_chains(LINE, (0.5, 0.4), by_prompt=prompts, work=work) if one.steps == 2)
    assert two.speedup.value == pytest.approx(speedup(LINE.cost(2).value, 1.7, work, overshoot((0.5, 0.2))))
    assert two.accept_length.value == pytest.approx(1.9)


def test_chains_within_the_error_are_indistinguishable():
    best, *others = predict_chains(LINE, (0.8, 0.65, 0.5, 0.4, 0.3), relative_error=0.05)
    close = {one.steps for one in others if best.indistinguishable(one)}
    assert close and 1 not in close
    exact = predict_chains(LINE, (0.8, 0.65, 0.5))
    assert [exact[0].indistinguishable(one) for one in exact] == [True, False, False]
