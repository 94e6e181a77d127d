"""The ladder: the published case comes out to its printed digits, and each rung is what its assumption makes of it."""

import json
from math import prod

import pytest

from wiring.bench.round_cost import Estimate, PricedRound, chain, fit_rounds
from wiring.bench.speedup_breakdown import (
    CURED,
    FLOOR,
    PERFECT,
    TODAY,
    TUNED,
    Served,
    floor_price,
    ladder,
    price_from_rates,
)
from wiring.bench.tuning import Workload, chain_accept_length, outlooks, speedup
from wiring.errors import WiringError

# The case: 90 tok/s plain, 46.7 with the draft as served, 54.8 at accept length 1.8 after the patch; 76.9 % accuracy.
PLAIN, BEFORE, PATCHED, ACCEPTED, ACCURACY, STEPS = 90, 46.7, 54.8, 1.8, 0.769, 5
SHARE = 1 / 61  # one draft layer, 61 target layers


@pytest.fixture
def case():
    return ladder(
        plain_tok_per_s=PLAIN,
        setting=chain(STEPS),
        price=Estimate(price_from_rates(PATCHED, ACCEPTED, PLAIN)),
        today=Served(ACCEPTED, PATCHED),
        cured=Served(chain_accept_length((ACCURACY,), STEPS)),
        draft_share=SHARE,
    )


def test_the_figures_of_the_published_case(case):
    assert f"{1000 / PLAIN:.1f}" == "11.1"  # ms a plain step
    price = price_from_rates(PATCHED, ACCEPTED, PLAIN)
    assert f"{price:.2f}" == "2.96" and f"{price * 1000 / PLAIN:.1f}" == "32.8"  # plain steps and ms a round
    today, cured = case.rung(TODAY), case.rung(CURED)
    assert f"{cured.price:.2f}" == "2.96"  # which is the break-even accept length
    assert f"{cured.accept_length:.2f}" == "3.43"
    assert f"{cured.tok_per_s:.1f}" == "104.5" and f"{cured.speedup:.2f}" == "1.16"
    assert (today.tok_per_s, f"{today.speedup:.2f}") == (PATCHED, "0.61")
    assert today.measured and not cured.measured
    # Before the patch, at the same price of a round: the accept length that 46.7 tok/s means.
    assert f"{BEFORE * price / PLAIN:.2f}" == "1.53"


def test_in_the_published_case_the_round_is_what_costs_most(case):
    # One verify as a plain step and five forwards of one layer in 61: 3.43 tokens then give 3.17x.
    floor = case.rung(FLOOR)
    assert floor.price == pytest.approx(1 + 5 / 61)
    assert f"{floor.speedup:.2f}" == "3.17" and case.largest == floor
    assert f"{case.rung(PERFECT).speedup:.2f}" == "5.55"  # 6 tokens a round at that price
    assert len(case.missing) == 1 and case.missing[0].startswith(TUNED)
    with pytest.raises(KeyError):
        case.rung(TUNED)


WORK = Workload(40, prefill_plain=1.5, prefill_draft=1.6)


def tuned_case(cured_rate=None, marginals=(0.8, 0.7, 0.6, 0.5, 0.4)):
    model = fit_rounds([PricedRound(chain(n), 1.1 + 0.3 * n, 0.01) for n in (1, 3, 5, 7)])
    return ladder(
        plain_tok_per_s=10,
        setting=chain(5),
        price=model.price(chain(5)),
        today=Served(1.2, 5.0),
        cured=Served(chain_accept_length(marginals, 5), cured_rate),
        draft_share=SHARE,
        tuned=outlooks(model, marginals, work=WORK, relative_error=0.02),
        work=WORK,
    )


def test_every_rung_is_there_when_the_price_of_a_round_is_fitted():
    got = tuned_case()
    assert [rung.name for rung in got.rungs] == [TODAY, CURED, TUNED, FLOOR, PERFECT] and not got.missing
    tuned = got.rung(TUNED)
    assert tuned.setting.steps < 5 and tuned.speedup > got.rung(CURED).speedup  # steps are dear here
    assert got.rung(FLOOR).setting == tuned.setting and got.rung(FLOOR).price == floor_price(tuned.setting, SHARE)
    assert got.rung(PERFECT).accept_length == tuned.setting.steps + 1
    assert got.rung(CURED).error > 0 and tuned.error > 0


def test_gains_multiply_to_the_whole_way():
    got = tuned_case(cured_rate=14.0)
    assert prod(got.gains) == pytest.approx(got.rungs[-1].speedup / got.rungs[0].speedup)
    assert got.largest.speedup / got.rungs[got.rungs.index(got.largest) - 1].speedup == pytest.approx(max(got.gains))


def test_a_miss_of_the_model_at_the_measured_setting_is_no_gain_of_the_next_rung():
    predicted, measured = tuned_case(), tuned_case(cured_rate=14.0)
    assert measured.rung(CURED).measured and measured.rung(CURED).tok_per_s == 14.0
    assert measured.rung(CURED).speedup != pytest.approx(predicted.rung(CURED).speedup, rel=0.01)
    assert measured.gains[1:] == pytest.approx(predicted.gains[1:])


def test_the_present_setting_is_kept_where_it_is_the_best():
    model = fit_rounds([PricedRound(chain(n), 1.1 + 0.01 * n) for n in (1, 5)])
    marginals = (0.9, 0.8, 0.7, 0.6, 0.5)
    got = ladder(
        plain_tok_per_s=10,
        setting=chain(5),
        price=model.price(chain(5)),
        today=Served(1.0, 8.0),
        cured=Served(4.5, 30.0),
        draft_share=SHARE,
        tuned=outlooks(model, marginals),
    )
    assert got.rung(TUNED).speedup == got.rung(CURED).speedup and "already" in got.rung(TUNED).assumes


def test_the_prefill_is_on_both_sides():
    got = tuned_case()
    price = got.rung(CURED).price
    assert got.rung(CURED).speedup == pytest.approx(speedup(price, 4.0, WORK))
    assert got.rung(PERFECT).speedup < got.rung(PERFECT).accept_length / got.rung(PERFECT).price


def test_a_round_cheaper_than_the_floor_stays_where_it_is():
    got = ladder(
        plain_tok_per_s=10,
        setting=chain(3),
        price=Estimate(1.02),
        today=Served(2.0, 15.0),
        cured=Served(3.0),
        draft_share=SHARE,
    )
    assert got.rung(FLOOR).price == 1.02 and got.rung(FLOOR).speedup == got.rung(CURED).speedup


@pytest.mark.parametrize("length", [0.8, 6.4])
def test_an_accept_length_that_no_chain_of_five_reaches_is_refused(length):
    with pytest.raises(WiringError, match="cannot accept that much.*1 to 6"):
        ladder(
            plain_tok_per_s=90,
            setting=chain(5),
            price=Estimate(2.0),
            today=Served(length, 50.0),
            cured=Served(3.0),
            draft_share=SHARE,
        )


def test_rates_of_zero_give_no_price():
    with pytest.raises(WiringError, match="above zero"):
        price_from_rates(0.0, 1.8, 90)


def test_the_ladder_as_json(case):
    told = json.loads(json.dumps(case.as_json()))
    assert [rung["name"] for rung in told["rungs"]] == [TODAY, CURED, FLOOR, PERFECT]
    assert told["rungs"][0]["gain"] is None and told["rungs"][1]["gain"] == pytest.approx(104.53 / 54.8, rel=1e-3)
    assert "bonus" in told["rule"] and told["missing"] == list(case.missing)
