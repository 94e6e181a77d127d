"""Speed-up breakdown: the published case to its printed digits, and each step by its assumption."""

from math import prod

import pytest

from wiring.bench.round_cost import Estimate, MeasuredRoundCost, fit_rounds
from wiring.bench.speedup_breakdown import (
    CURED,
    FLOOR,
    PERFECT,
    TODAY,
    TUNED,
    ServedRate,
    break_down,
    lowest_round_cost,
    round_cost_from_rates,
)
from wiring.bench.tuning import PredictedChain, Workload, chain_accept_length, predict_chains, speedup
from wiring.errors import WiringError

# The case: 90 tok/s plain, 46.7 with the draft as served, 54.8 at accept length 1.8 after the patch; 76.9 % accuracy.
PLAIN, BEFORE, PATCHED, ACCEPTED, ACCURACY, STEPS = 90, 46.7, 54.8, 1.8, 0.769, 5
SHARE = 1 / 61  # one draft layer, 61 target layers
WORK = Workload(40, prefill_plain=1.5, prefill_draft=1.6)
FALLING = (0.8, 0.7, 0.6, 0.5, 0.4)


def step(breakdown, name):
    return next(one for one in breakdown.steps if one.name == name)


def test_the_figures_of_the_published_case():
    cost = round_cost_from_rates(PATCHED, ACCEPTED, PLAIN)
    assert f"{cost:.2f}" == "2.96" and f"{cost * 1000 / PLAIN:.1f}" == "32.8"  # plain steps and ms per round
    length = chain_accept_length((ACCURACY,), STEPS)
    alone = PredictedChain(STEPS, Estimate(length), Estimate(cost), Estimate(speedup(cost, length)))
    assert f"{length:.2f}" == "3.43"
    assert f"{PLAIN * alone.speedup.value:.1f}" == "104.5" and f"{alone.speedup.value:.2f}" == "1.16"
    # Before the patch, at the same round cost: the accept length that 46.7 tok/s means.
    assert f"{BEFORE * cost / PLAIN:.2f}" == "1.53"
    today, cured = ServedRate(ACCEPTED, PATCHED), ServedRate(length, PLAIN * alone.speedup.value)
    rates = dict(plain_tok_per_s=PLAIN, today=today, cured=cured, draft_share=SHARE, tuned=[alone])
    case = break_down(steps=STEPS, round_cost=cost, **rates)
    assert f"{case.steps[0].speedup:.2f}" == "0.61"
    # The round cost is what slows the case most: one verify as a plain step, five forwards of one layer in 61.
    floor, perfect = step(case, FLOOR), step(case, PERFECT)
    assert floor.price == pytest.approx(1 + 5 / 61)
    assert f"{floor.speedup:.2f}" == "3.17" and max(case.gains) == pytest.approx(floor.speedup / cured.tok_per_s * 90)
    assert f"{perfect.speedup:.2f}" == "5.55"  # 6 tokens per round at that cost


def tuned_case(cured_rate=14.0, slope=0.3, marginals=FALLING, work=WORK, length=1.2, low=1.1):
    model = fit_rounds([MeasuredRoundCost(n, low + slope * n, 0.01) for n in (1, 3, 5, 7)])
    return break_down(
        plain_tok_per_s=10,
        steps=5,
        round_cost=model.cost(5).value,
        today=ServedRate(length, 5.0),
        cured=ServedRate(chain_accept_length(marginals, 5), cured_rate),
        draft_share=SHARE,
        tuned=predict_chains(model, marginals, work=work, relative_error=0.02),
        work=work,
    )


def test_each_step_has_its_setting_cost_and_accept_length():
    got = tuned_case()
    assert [one.name for one in got.steps] == [TODAY, CURED, TUNED, FLOOR, PERFECT]
    assert [one.measured for one in got.steps] == [True, True, False, False, False]
    assert (step(got, CURED).tok_per_s, step(got, CURED).speedup) == (14.0, 1.4)
    tuned = step(got, TUNED)
    assert tuned.steps < 5 and tuned.speedup > 1.4 and tuned.error > 0  # draft steps are expensive here
    assert step(got, FLOOR).steps == tuned.steps
    assert step(got, FLOOR).price == lowest_round_cost(tuned.steps, SHARE)
    assert step(got, PERFECT).accept_length == tuned.steps + 1


def test_gains_multiply_to_the_whole_way_and_do_not_depend_on_a_miss_of_the_model():
    got, other = tuned_case(), tuned_case(cured_rate=21.0)
    assert prod(got.gains) == pytest.approx(got.steps[-1].speedup / got.steps[0].speedup)
    assert got.gains[1:] == pytest.approx(other.gains[1:]) and got.gains[0] != pytest.approx(other.gains[0])


def test_the_present_setting_is_kept_where_it_is_the_best():
    got = tuned_case(slope=0.01, marginals=(0.9, 0.8, 0.7, 0.6, 0.5))
    assert step(got, TUNED).speedup == step(got, CURED).speedup and step(got, TUNED).steps == 5


def test_the_prefill_is_on_both_sides():
    got = tuned_case()
    floor, perfect = step(got, FLOOR), step(got, PERFECT)
    gain = speedup(floor.price, perfect.accept_length, WORK) / speedup(floor.price, floor.accept_length, WORK)
    assert perfect.speedup / floor.speedup == pytest.approx(gain)
    assert gain < perfect.accept_length / floor.accept_length


def test_a_round_below_the_lowest_cost_is_kept():
    got = tuned_case(slope=0.0, low=1.01, marginals=(0.9, 0.8, 0.7, 0.6, 0.5))
    assert step(got, FLOOR).price == pytest.approx(1.01)
    assert step(got, FLOOR).speedup == step(got, TUNED).speedup


@pytest.mark.parametrize("length", [0.8, 6.4])
def test_an_accept_length_that_no_chain_of_five_reaches_is_refused(length):
    with pytest.raises(WiringError) as error:
        tuned_case(length=length)
    assert (error.value.code, error.value.found) == ("accept-length-unreachable", str(length))


def test_rates_of_zero_give_no_round_cost():
    with pytest.raises(WiringError) as error:
        round_cost_from_rates(0.0, 1.8, 90)
    assert error.value.code == "rate-not-positive"
