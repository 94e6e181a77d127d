"""Predictions of a sweep on a simulated machine with planted round costs, and on a recorded one of the real server."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sweep

from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.arm_results import same_outputs
from wiring.bench.measurement import Measurement, Trial, this_machine
from wiring.bench.tuning import chain_accept_length
from wiring.workbook.case import open_case

PROMPTS, TOKENS = 10, 1600
CHAINS = (*sweep.FIT, *sweep.HELD_OUT)


def cost(steps):
    return 1.1 + 0.055 * steps


def machine(cost=cost, seed=0, noise=0.01):
    """A sweep as a benchmark leaves it: prompts of different difficulty on a machine whose speed drifts."""
    rng, order, trials = np.random.default_rng(seed), itertools.count(), []

    def add(arm, prompt, step_s, rounds=0, cost=1.0, histogram=(), prefill=1.5):
        forwards = rounds or TOKENS - 1
        seconds = prefill * step_s + forwards * cost * step_s * rng.normal(1, noise)
        counts = dict(rounds=rounds, histogram=histogram, correct_drafts=sum(a * n for a, n in enumerate(histogram)))
        times = dict(order=next(order), seconds=seconds, prefill_s=prefill * step_s)
        trials.append(Trial(arm=arm, prompt=prompt, repeat=0, output_ids=tuple(range(TOKENS)), **times, **counts))

    for prompt, share in enumerate(rng.uniform(0.6, 0.85, PROMPTS)):
        step_s = rng.uniform(0.05, 0.2)
        add("plain", prompt, step_s)
        for steps in CHAINS:
            histogram, done = [0] * (steps + 1), 1
            while done < TOKENS:
                right = int((rng.random(steps) < share).cumprod().sum())
                histogram[right] += 1
                done += right + 1
            add(sweep.arm_name(steps), prompt, step_s, sum(histogram), cost(steps), tuple(histogram), 1.7)
    shared = dict(machine=this_machine(), order="interleaved", new_tokens=TOKENS, prompt_ids=((1,),) * PROMPTS)
    return Measurement(**shared, trials=tuple(trials))


def test_held_out_chains_are_predicted():
    _, rows = sweep.check_sweep([machine()])
    for row in rows:
        assert abs(row.miss) < 0.07
        assert row.cost == pytest.approx(cost(row.steps), rel=0.02)
        assert row.accept_length == pytest.approx(row.accept_length_measured, rel=0.08)
    assert [row.steps for row in rows] == list(sweep.HELD_OUT)


def test_each_run_is_measured_in_its_own_plain_steps():
    # The second half of the chains ran on a machine half as fast.
    measured = machine()
    late = {sweep.arm_name(steps) for steps in sweep.HELD_OUT[2:]}
    slow = [
        t.model_copy(update={"seconds": 2 * t.seconds, "prefill_s": 2 * t.prefill_s})
        for t in measured.trials
        if t.arm in late or t.arm == "plain"
    ]
    early = [t for t in measured.trials if t.arm not in late]
    runs = [measured.model_copy(update={"trials": tuple(trials)}) for trials in (early, slow)]
    together, apart = (sweep.check_sweep(found)[1] for found in ([measured], runs))
    assert [row.miss for row in apart] == pytest.approx([row.miss for row in together])


def test_a_chain_that_costs_more_than_the_model_is_missed():
    _, rows = sweep.check_sweep([machine(lambda steps: cost(steps) + (0.5 if steps == 5 else 0))])
    assert {row.steps for row in rows if row.miss > 0.2} == {5}


def test_measurements_of_held_out_chains_do_not_enter_their_predictions():
    measured = machine()
    held = {sweep.arm_name(steps) for steps in sweep.HELD_OUT}
    slower = tuple(
        t.model_copy(update={"seconds": 3 * t.seconds, "histogram": (t.rounds,)}) if t.arm in held else t
        for t in measured.trials
    )
    before = sweep.check_sweep([measured])[1]
    after = sweep.check_sweep([measured.model_copy(update={"trials": slower})])[1]
    for a, b in zip(after, before, strict=True):
        assert (a.speedup, a.accept_length, a.cost) == (b.speedup, b.accept_length, b.cost)
        assert a.speedup_measured < b.speedup_measured


def test_every_chain_is_served_from_one_patched_copy_that_is_removed(monkeypatch, tmp_path):
    case = open_case(profile="cpu-tiny", run=str(tmp_path), measure="live")
    runs, specs = [], []

    def record(case, arms, **options):
        runs.append([arm.name for arm in arms])
        specs.extend(arm.open() for arm in arms[1:])
        assert "31" in (specs[0].draft / "config.json").read_text()
        return "measured"

    monkeypatch.setattr(sweep, "measure_arms", record)
    monkeypatch.setattr("wiring.workbook.live.start_server", lambda case, spec, name, progress, wait: spec)
    fix = SimpleNamespace(form="config", ids=(0, 3, 31), environment={"A": "1"}, edits=())
    assert sweep.measure_sweep(case, fix, (2, 3, 4), at_once=2, progress=lambda text: None) == ("measured",) * 2
    assert runs == [["plain", sweep.arm_name(2), sweep.arm_name(3)], ["plain", sweep.arm_name(4)]]
    assert [spec.speculation.draft_tokens for spec in specs] == [3, 4, 5]
    assert specs[0].env == {"A": "1"} and not specs[0].draft.exists()


@pytest.fixture(scope="module")
def recorded():
    """A sweep of the fixed tiny pair on the real server; counts do not depend on how busy the machine was."""
    found = json.loads((Path(__file__).parent / "recorded" / "sweep.json").read_text(encoding="utf-8"))
    return [Measurement.model_validate(run) for run in found["runs"]]


def counted(runs, steps):
    """Acceptance that the server counted at one chain length."""
    return acceptance(pool_histograms(trial.histogram for trial in sweep.chain_trials(runs, steps)[0]), steps)


def test_the_recorded_accept_length_of_a_shorter_chain_follows_from_the_longest(recorded):
    longest = counted(recorded, 7).by_position
    for steps in range(1, 7):
        assert chain_accept_length(longest, steps) == pytest.approx(counted(recorded, steps).accept_length, rel=0.08)


def test_every_recorded_chain_wrote_the_plain_text(recorded):
    for steps in CHAINS:
        assert all(same_outputs(sweep.chain_trials(recorded, steps)[0], recorded[0].arm("plain")))
