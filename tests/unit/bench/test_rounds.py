"""The price of a round: planted terms come back, errors are those of numpy's own fit and of repeated draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiring.bench.cost_model import round_line
from wiring.bench.measurement import Trial
from wiring.bench.round_cost import BASE, BRANCH, CHAIN_STEP, STEP, TOKEN, PricedRound, chain, fit_rounds, priced_round
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError

TREES = (Speculation(2, 2, 4), Speculation(4, 2, 8), Speculation(3, 4, 16), Speculation(5, 4, 12))
MIXED = (*map(chain, range(1, 8)), *TREES)


def planted(setting, base=1.1, step=0.04, token=0.02, branch=0.005):
    later = setting.steps - 1
    return base + step * later + token * (setting.draft_tokens - 1) + branch * later * (setting.topk - 1)


def fitted(settings, price=planted, error=None):
    return fit_rounds([PricedRound(s, price(s), error) for s in settings])


def values(model):
    return {c.name: c.value for c in model.coefficients}


def test_planted_terms_come_back_from_chains_and_trees():
    model = fitted(MIXED)
    assert values(model) == pytest.approx({BASE: 1.1, STEP: 0.04, TOKEN: 0.02, BRANCH: 0.005})
    assert model.residual < 1e-12 and model.bend is None and model.spare == 7
    unseen = Speculation(6, 3, 20)
    assert model.price(unseen).value == pytest.approx(planted(unseen))


def test_chains_alone_give_one_term_by_step_and_no_price_of_a_tree():
    model = fitted([chain(n) for n in (1, 3, 7)])
    # Each further step brings its verified token, and the first round verifies one beside the root.
    assert values(model) == pytest.approx({BASE: 1.12, CHAIN_STEP: 0.06})
    with pytest.raises(WiringError, match="a tree cannot be told from chains"):
        model.price(TREES[0])


def test_two_chains_give_the_line_through_them_and_no_error():
    model = fit_rounds([PricedRound(chain(3), 1.12), PricedRound(chain(7), 1.29)])
    assert model.price(chain(5)).value == pytest.approx(round_line({3: 1.12, 7: 1.29}, 5))
    assert model.price(chain(5)).error is None and model.spare == 0


def test_errors_are_those_of_numpys_weighted_fit():
    steps, errors = np.array([1, 2, 3, 5, 7]), np.full(5, 0.02)
    prices = np.array([1.10, 1.17, 1.21, 1.36, 1.44])
    model = fit_rounds([PricedRound(chain(int(n)), float(y), 0.02) for n, y in zip(steps, prices, strict=True)])
    line, covariance = np.polyfit(steps - 1, prices, 1, w=1 / errors, cov="unscaled")
    assert [c.value for c in model.coefficients] == pytest.approx(line[::-1])
    assert [c.error for c in model.coefficients] == pytest.approx(np.sqrt(np.diag(covariance))[::-1])
    # What the points miss the line by is far less than 2 %, so nothing is scaled up; with errors of 0.1 % it is.
    tight = fit_rounds([PricedRound(chain(int(n)), float(y), 0.001) for n, y in zip(steps, prices, strict=True)])
    _, scaled = np.polyfit(steps - 1, prices, 1, w=1 / np.full(5, 0.001), cov=True)
    assert [c.error for c in tight.coefficients] == pytest.approx(np.sqrt(np.diag(scaled))[::-1])


def test_the_error_of_a_price_is_the_spread_of_repeated_fits():
    rng, unseen = np.random.default_rng(3), Speculation(6, 2, 10)
    fits = [fitted(MIXED, lambda s: planted(s) + rng.normal(0, 0.02), 0.02) for _ in range(400)]
    prices = [model.price(unseen) for model in fits]
    spread = np.std([p.value for p in prices])
    assert np.median([p.error for p in prices]) == pytest.approx(spread, rel=0.2)
    assert np.mean([p.value for p in prices]) == pytest.approx(planted(unseen), abs=4 * spread / 20)


def test_a_verify_that_is_free_up_to_a_width_bends_there():
    def price(s):
        return 1.2 + 0.03 * (s.steps - 1) + 0.05 * max(0, s.draft_tokens - 8)

    model = fitted((*MIXED, Speculation(4, 4, 24), Speculation(2, 4, 12)), price)
    assert model.bend == 8
    for setting in (Speculation(3, 2, 6), Speculation(3, 4, 20)):
        assert model.price(setting).value == pytest.approx(price(setting))


def test_noise_alone_makes_no_bend():
    rng = np.random.default_rng(0)
    bends = [fitted(MIXED, lambda s: planted(s) + rng.normal(0, 0.02), 0.02).bend for _ in range(50)]
    assert sum(bend is not None for bend in bends) <= 5


def test_nothing_costs_less_than_nothing():
    model = fitted([chain(n) for n in (1, 2, 4, 6)], lambda s: 1.3 - 0.02 * s.steps)
    assert values(model).keys() == {BASE}
    assert model.price(chain(7)).value == pytest.approx(model.price(chain(1)).value)


@settings(deadline=None)  # a busy machine
@given(st.lists(st.floats(0.9, 3.0), min_size=4, max_size=9), st.permutations(range(9)))
def test_no_price_falls_with_steps_or_width_and_the_order_of_settings_is_nothing(prices, order):
    settings = [PricedRound(s, p) for s, p in zip(MIXED[::-1], prices, strict=False)]
    model = fit_rounds(settings)
    ways = [(Speculation(3, 2, 6), Speculation(4, 2, 6)), (Speculation(3, 2, 6), Speculation(3, 2, 9))]
    for less, more in ways:
        assert model.price(less).value <= model.price(more).value + 1e-9
    turned = fit_rounds([settings[i] for i in order if i < len(settings)])
    assert turned.price(ways[0][0]).value == pytest.approx(model.price(ways[0][0]).value, rel=1e-6)


def test_one_setting_is_refused():
    with pytest.raises(WiringError, match="two settings or more"):
        fit_rounds([PricedRound(chain(5), 1.2), PricedRound(chain(5), 1.3)])


def trial(arm, prompt, seconds, rounds=0):
    return Trial(
        arm=arm,
        prompt=prompt,
        repeat=0,
        order=prompt,
        seconds=seconds,
        prefill_s=1.0,
        output_ids=tuple(range(11)),
        rounds=rounds,
    )


def test_a_round_is_priced_prompt_by_prompt_against_the_plain_steps_beside_it():
    # The machine slows down threefold: seconds per round go from 1.5 to 4.5, the price stays at 1.5 plain steps.
    plain = [trial("plain", p, 1 + 10 * (p + 1)) for p in range(3)]
    drafts = [trial("x", p, 1 + 6 * 1.5 * (p + 1), 6) for p in range(3)]
    got = priced_round(drafts, plain, chain(5))
    assert (got.price, got.prompts) == (pytest.approx(1.5), 3)
    outlier = [*drafts[:2], trial("x", 2, 1000.0, 6)]
    assert priced_round(outlier, plain, chain(5)).price == pytest.approx(1.5)
    with pytest.raises(WiringError, match="with and without the draft"):
        priced_round(drafts, [trial("plain", 9, 11.0)], chain(5))


def test_the_error_of_a_median_price_is_that_of_repeated_draws():
    rng = np.random.default_rng(1)

    def draw():
        plain = [trial("plain", p, 11.0) for p in range(25)]
        return priced_round([trial("x", p, 1 + 6 * rng.normal(1.5, 0.1), 6) for p in range(25)], plain, chain(5))

    draws = [draw() for _ in range(300)]
    assert np.median([d.error for d in draws]) == pytest.approx(np.std([d.price for d in draws]), rel=0.2)


def test_the_model_as_json_holds_measured_beside_fitted():
    rows = fitted(MIXED).as_json()["settings"]
    assert [row["fitted"] for row in rows] == pytest.approx([row["price"] for row in rows])
