"""The one rule of the readers: conversions, what cannot be, rounds told from printed figures, pooling."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_helpers import pooled

from wiring.bench.acceptance import acceptance
from wiring.logs.acceptance_figures import Figures, normalise, recover_rounds
from wiring.logs.evidence import AcceptanceRecord

RULE = "a rule"


def read(**figures):
    return normalise("here", Figures(**figures), rule=RULE)


def test_counts_give_the_length_and_rounds_stand_beside():
    # vLLM issue 26191: 12208 accepted over 4816 drafts were printed as 3.53.
    found = read(length=3.53, rounds=4816, accepted=12208, drafted=33712, per_round=7)
    assert found.accept_length == 1 + 12208 / 4816 and f"{found.accept_length:.2f}" == "3.53"
    assert (found.rounds, found.proposed, found.impossible) == (4816, 7, "")


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"rate": 1.25, "per_round": 3}, ("above 1", "bonus token is in the numerator", "accept length 3.75")),
        ({"length": 5.39, "per_round": 3}, ("above drafts per round + 1 = 4", "drafts at least 5")),
        ({"length": 4.6, "per_round": 3}, ("above drafts per round + 1 = 4", "bonus token twice", "leaves 3.60")),
        ({"length": 0.86}, ("below 1", "bonus token was not counted", "1.86")),
        ({"length": -0.5}, ("negative length", "no counting rule")),
        ({"rounds": 100, "accepted": -3}, ("-3 accepted", "no counting rule", "negative count")),
        ({"rounds": 100, "accepted": 250, "drafted": 200}, ("250 accepted of 200", "bonus token", "150")),
        ({"rounds": 10, "accepted": 250, "drafted": 200}, ("250 accepted of 200", "no counting rule")),
        ({"length": 2.5, "rounds": 100, "accepted": 20}, ("no counting rule explains the difference",)),
        ({"length": 0.20, "rounds": 100, "accepted": 20}, ("one lower", "bonus token was not counted")),
        ({"length": math.inf}, ("no counting rule", "divided by no rounds")),
        ({"by_position": (0.3, 0.8, 0.1)}, ("rises", "conditional")),
        ({"by_position": (1.2, 0.8)}, ("1.2 is not a share",)),
        ({"length": 2.0, "by_position": (0.5, 0.1)}, ("does not add up to accept length 2.00", "no counting rule")),
    ],
)
def test_what_cannot_be_is_named_with_the_rule_that_explains_it(figures, words):
    found = read(**figures)
    assert all(word in found.impossible for word in words), found.impossible


def test_an_impossible_length_is_not_passed_on():
    assert read(length=5.39, per_round=3).accept_length is None
    assert read(length=0.86).accept_length is None


def test_the_bonus_token_listed_as_position_0_is_taken_off():
    # vLLM pull request 17504: the offline script printed the bonus token as token 0.
    printed = (1.00, 0.75, 0.55, 0.42, 0.31, 0.24, 0.18, 0.13)
    found = read(length=3.57, by_position=printed, position_digits=2)
    assert found.by_position == printed[1:] and found.accept_length == 3.57
    assert "position 0 is the bonus token" in found.impossible


def test_a_first_position_of_1_can_be_true():
    found = read(length=2.60, by_position=(1.0, 0.6), position_digits=2)
    assert found.by_position == (1.0, 0.6) and not found.impossible


def test_conditional_rates_are_multiplied_out_where_the_length_says_so():
    found = read(length=2.4, by_position=(0.8, 0.75), position_digits=2)  # 0.8 + 0.8 * 0.75 = 1.4
    assert found.by_position == pytest.approx((0.8, 0.6)) and "conditional" in found.impossible


HISTOGRAMS = st.lists(st.integers(0, 60), min_size=2, max_size=8).filter(lambda n: sum(n) > 0 and any(n[1:]))


@given(HISTOGRAMS)
def test_every_real_histogram_is_possible_and_comes_out_as_counted(histogram):
    steps = len(histogram) - 1
    rounds = [a for a, n in enumerate(histogram) for _ in range(n)]  # the drafts that each single round accepted
    shares = tuple(sum(a >= k for a in rounds) / len(rounds) for k in range(1, steps + 1))
    found = read(
        length=round(1 + sum(rounds) / len(rounds), 2),
        rounds=len(rounds),
        accepted=sum(rounds),
        drafted=steps * len(rounds),
        by_position=tuple(round(share, 3) for share in shares),
        per_round=steps,
    )
    assert not found.impossible
    assert found.accept_length == pytest.approx(1 + sum(rounds) / len(rounds), abs=1e-12)
    assert found.by_position == pytest.approx(shares, abs=5.1e-4)


@given(HISTOGRAMS)
def test_rounds_told_from_printed_figures_are_never_wrong(histogram):
    counted = acceptance(histogram, len(histogram) - 1)
    told = recover_rounds(
        Figures(
            length=round(counted.accept_length, 2),
            accepted=counted.correct_drafts,
            drafted=counted.rounds * (len(histogram) - 1),
            by_position=tuple(round(share, 3) for share in counted.by_position),
            per_round=len(histogram) - 1,
        )
    )
    assert told == counted.rounds


def test_rounds_that_the_figures_do_not_fix_are_not_guessed():
    assert recover_rounds(Figures(length=2.0, accepted=10_000)) is None


@given(st.lists(HISTOGRAMS.filter(lambda n: len(n) == 4), min_size=2, max_size=6))
def test_pooling_by_rounds_is_counting_everything_together(histograms):
    records = []
    for histogram in histograms:
        counted = acceptance(histogram, 3)
        records.append(
            read(
                rounds=counted.rounds,
                accepted=counted.correct_drafts,
                by_position=counted.by_position,
                position_digits=None,
                per_round=3,
            )
        )
    together = sum((Counter(dict(enumerate(histogram))) for histogram in histograms), Counter())
    expected = acceptance([together[a] for a in range(4)], 3)
    found = pooled(records)
    assert found.rounds == expected.rounds
    assert found.accept_length == pytest.approx(expected.accept_length)
    assert found.by_position == pytest.approx(expected.by_position)
    assert "by their rounds" in found.rule


def gauge(length, **more):
    return AcceptanceRecord(source="log, line 1", accept_length=length, rule=RULE, **more)


def test_gauges_are_averaged_and_the_rule_says_so():
    found = pooled([gauge(1.0), gauge(2.0)])
    assert found.accept_length == 1.5 and found.rounds is None
    assert "not weighted" in found.rule


def test_a_gauge_is_not_mixed_into_counts():
    found = pooled([gauge(3.0), gauge(1.5, rounds=10), gauge(None, impossible="rate above 1")])
    assert found.accept_length == 1.5 and found.rounds == 10
    assert "1 without rounds left out" in found.rule and "1 without a believable" in found.rule
    assert not found.impossible  # it speaks of what was taken in
    assert pooled([gauge(None, impossible="rate above 1")] * 2).impossible == "rate above 1"
    assert pooled([gauge(2.0, rounds=5, impossible="one higher"), gauge(2.0, rounds=5)]).impossible == "one higher"
