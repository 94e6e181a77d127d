"""A recorded sweep of the cured tiny pair on the real server: what rounds accept is told from other settings.

Counts do not depend on the clock, and the machine was busy while this was recorded; what rounds cost is tested live.
"""

import json
from pathlib import Path

import pytest
from sweep import FIT, HELD_OUT, arm_name, settings_of

from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.arm_results import same_outputs
from wiring.bench.measurement import Measurement
from wiring.bench.round_cost import chain, is_chain
from wiring.bench.tuning import chain_accept_length
from wiring.engines.sglang import Speculation

SETTINGS = (*FIT, *HELD_OUT)
RECORDED = Path(__file__).with_name("recorded") / "sweep.json"


@pytest.fixture(scope="module")
def recorded():
    told = json.loads(RECORDED.read_text(encoding="utf-8"))
    trees = {Speculation(*row["setting"]): row["rounds"] for row in told["trees"]}
    return [Measurement.model_validate(run) for run in told["runs"]], trees


def trials(runs, setting):
    """The trials of one setting, and of plain decoding in the same run."""
    return next((run.arm(arm_name(setting)), run.baseline("plain")) for run in runs if run.arm(arm_name(setting)))


def counts(runs, setting):
    """Histogram of each prompt at one setting."""
    return [trial.histogram for trial in sorted(trials(runs, setting)[0], key=lambda t: t.prompt)]


def test_every_setting_is_there(recorded):
    assert tuple(setting for run in recorded[0] for setting in settings_of(run)) == SETTINGS


def test_the_accept_length_of_a_shorter_chain_comes_from_a_longer_ones_marginals(recorded):
    runs, _ = recorded
    longest = acceptance(pool_histograms(counts(runs, chain(7))), 7)
    for steps in range(1, 7):
        got = acceptance(pool_histograms(counts(runs, chain(steps))), steps)
        assert chain_accept_length(longest.by_position, steps) == pytest.approx(got.accept_length, rel=0.08)


def test_the_replay_without_a_server_counts_what_the_server_counted_in_every_tree(recorded):
    runs, trees = recorded
    assert len(trees) == sum(not is_chain(s) for s in SETTINGS) == 4
    for setting, prompts in trees.items():
        for rounds, histogram in zip(prompts, counts(runs, setting), strict=True):
            assert tuple(rounds.count(a) for a in range(len(histogram))) == histogram
            assert sum(histogram) == len(rounds)


def test_a_tree_replayed_as_its_chain_counts_too_little(recorded):
    # The control: the second choices are what a tree is for, and the server's counts show them.
    runs, trees = recorded
    for setting in trees:
        tree = acceptance(pool_histograms(counts(runs, setting)), setting.steps)
        if (alone := chain(setting.steps)) in SETTINGS:
            single = acceptance(pool_histograms(counts(runs, alone)), setting.steps)
            assert tree.accept_length > single.accept_length, setting


def test_every_arm_wrote_the_plain_text(recorded):
    runs, _ = recorded
    for setting in SETTINGS:
        assert all(same_outputs(trials(runs, setting)[0], runs[0].arm("plain"))), setting
