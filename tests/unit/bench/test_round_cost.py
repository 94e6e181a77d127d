"""Round cost: planted terms are recovered, errors equal numpy's own fit and the spread of repeated draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiring.bench.measurement import Trial
from wiring.bench.round_cost import BASE, CHAIN_STEP, MeasuredRoundCost, fit_rounds, measured_round_cost
from wiring.errors import WiringError


def fitted(steps, cost, error=None):
    return fit_rounds([MeasuredRoundCost(n, cost(n), error) for n in steps])


def values(model):
    return {c.name: c.value for c in model.coefficients}


def test_planted_terms_are_recovered_and_hold_for_other_lengths():
    model = fitted((1, 3, 4, 7), lambda n: 1.06 + 0.06 * n)
    assert values(model) == pytest.approx({BASE: 1.12, CHAIN_STEP: 0.06})
    assert model.residual < 1e-12 and model.bend is None and model.spare == 2
    assert model.cost(9).value == pytest.approx(1.06 + 0.06 * 9)


def test_two_chains_give_the_line_through_them_and_no_error():
    model = fit_rounds([MeasuredRoundCost(3, 1.12), MeasuredRoundCost(7, 1.30)])
    assert model.cost(5).value == pytest.approx((1.12 + 1.30) / 2)
    assert model.cost(5).error is None and model.spare == 0


def test_errors_are_those_of_numpys_weighted_fit():
    steps, costs = np.array([1, 2, 3, 5, 7]), np.array([1.10, 1.17, 1.21, 1.36, 1.44])
    measured = dict(zip(steps.tolist(), costs.tolist(), strict=True))
    model = fitted(measured, measured.get, 0.02)
    line, covariance = np.polyfit(steps - 1, costs, 1, w=np.full(5, 1 / 0.02), cov="unscaled")
    assert [c.value for c in model.coefficients] == pytest.approx(line[::-1])
    assert [c.error for c in model.coefficients] == pytest.approx(np.sqrt(np.diag(covariance))[::-1])
    # The points miss the line by far less than 2 %, so the errors are not scaled up; with errors of 0.1 % they are.
    _, scaled = np.polyfit(steps - 1, costs, 1, w=np.full(5, 1 / 0.001), cov=True)
    tight = fitted(measured, measured.get, 0.001)
    assert [c.error for c in tight.coefficients] == pytest.approx(np.sqrt(np.diag(scaled))[::-1])


def test_the_error_of_a_cost_is_the_spread_of_repeated_fits():
    rng = np.random.default_rng(3)
    fits = [fitted(range(1, 8), lambda n: 1.1 + 0.06 * n + rng.normal(0, 0.02), 0.02) for _ in range(400)]
    costs = [model.cost(9) for model in fits if model.bend is None]
    assert len(costs) > 320  # noise alone rarely gives a bend
    spread = np.std([one.value for one in costs])
    assert np.median([one.error for one in costs]) == pytest.approx(spread, rel=0.2)
    assert np.mean([one.value for one in costs]) == pytest.approx(1.1 + 0.06 * 9, abs=4 * spread / 20)


def test_a_verify_that_is_free_up_to_a_width_bends_there():
    def cost(n):
        return 1.2 + 0.03 * (n - 1) + 0.05 * max(0, n + 1 - 6)

    model = fitted((1, 2, 3, 5, 7, 9), cost)
    assert model.bend == 6
    assert [model.cost(n).value for n in (4, 8, 12)] == pytest.approx([cost(n) for n in (4, 8, 12)])


def test_no_term_costs_less_than_nothing():
    model = fitted((1, 2, 4, 6), lambda n: 1.3 - 0.02 * n)
    assert values(model).keys() == {BASE} and model.cost(7).value == pytest.approx(model.cost(1).value)


@settings(deadline=None)  # a busy machine
@given(st.lists(st.floats(0.9, 3.0), min_size=4, max_size=9), st.permutations(range(9)))
def test_no_cost_falls_with_steps_and_the_order_of_settings_does_not_matter(costs, order):
    found = [MeasuredRoundCost(n, cost) for n, cost in enumerate(costs, 1)]
    model = fit_rounds(found)
    assert model.cost(3).value <= model.cost(4).value + 1e-9 <= model.cost(9).value + 2e-9
    turned = fit_rounds([found[i] for i in order if i < len(found)])
    assert turned.cost(3).value == pytest.approx(model.cost(3).value, rel=1e-6)


def test_one_setting_is_refused():
    with pytest.raises(WiringError) as error:
        fit_rounds([MeasuredRoundCost(5, 1.2), MeasuredRoundCost(5, 1.3)])
    assert (error.value.code, error.value.found) == ("too-few-round-costs", "1")


def trial(arm, prompt, seconds, rounds=0):
    ids = tuple(range(11))
    common = dict(arm=arm, prompt=prompt, repeat=0, order=prompt, prefill_s=1.0, output_ids=ids)
    return Trial(**common, seconds=seconds, rounds=rounds)


def test_rounds_are_measured_in_the_plain_steps_of_the_same_prompt():
    # The machine slows down threefold: seconds per round go from 1.5 to 4.5, the cost stays at 1.5 plain steps.
    plain = [trial("plain", p, 1 + 10 * (p + 1)) for p in range(3)]
    drafts = [trial("x", p, 1 + 6 * 1.5 * (p + 1), 6) for p in range(3)]
    assert measured_round_cost(drafts, plain, 5) == MeasuredRoundCost(5, pytest.approx(1.5))
    outlier = [*drafts[:2], trial("x", 2, 1000.0, 6)]
    assert measured_round_cost(outlier, plain, 5).cost == pytest.approx(1.5)
    with pytest.raises(WiringError) as error:
        measured_round_cost(drafts, [trial("plain", 9, 11.0)], 5)
    assert (error.value.code, error.value.found) == ("no-common-prompt", "3 and 1 prompts")


def test_the_error_of_a_median_cost_is_that_of_repeated_draws():
    rng = np.random.default_rng(1)

    def draw():
        plain = [trial("plain", p, 11.0) for p in range(25)]
        return measured_round_cost([trial("x", p, 1 + 6 * rng.normal(1.5, 0.1), 6) for p in range(25)], plain, 5)

    draws = [draw() for _ in range(300)]
    assert np.median([d.error for d in draws]) == pytest.approx(np.std([d.cost for d in draws]), rel=0.2)
