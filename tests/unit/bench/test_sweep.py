"""The sweep's predictions on a machine with planted prices, and on one where a held-out setting is dearer."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import sweep

from wiring.bench.measurement import Measurement, Trial, this_machine
from wiring.bench.round_cost import chain, is_chain
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.workbook.case import open_case

PROMPTS, TOKENS = 10, 400


def price(setting):
    later = setting.steps - 1
    return 1.1 + 0.04 * later + 0.015 * (setting.draft_tokens - 1) + 0.003 * later * (setting.topk - 1)


def accepted(rng, setting, share):
    """Accepted drafts of one round; a tree has a second chance at each step."""
    chance = share if is_chain(setting) else 1 - (1 - share) ** 1.5
    return int((rng.random(setting.steps) < chance).cumprod().sum())


def machine(price=price, seed=0, noise=0.01):
    """A sweep as a benchmark would leave it: prompts of different difficulty on a machine whose speed drifts."""
    rng, order, trials = np.random.default_rng(seed), itertools.count(), []
    shares = rng.uniform(0.6, 0.85, PROMPTS)

    def add(arm, prompt, step, rounds=0, cost=1.0, histogram=(), prefill=1.5):
        forwards = rounds or TOKENS - 1
        seconds = prefill * step + forwards * cost * step * rng.normal(1, noise)
        trials.append(
            Trial(
                arm=arm,
                prompt=prompt,
                repeat=0,
                order=next(order),
                seconds=seconds,
                prefill_s=prefill * step,
                output_ids=tuple(range(TOKENS)),
                rounds=rounds,
                histogram=histogram,
                correct_drafts=sum(a * n for a, n in enumerate(histogram)),
            )
        )

    for prompt, share in enumerate(shares):
        step = rng.uniform(0.05, 0.2)  # seconds of one minute do not hold for the next
        add("plain", prompt, step)
        for setting in (*sweep.FIT, *sweep.HELD_OUT):
            histogram, done = [0] * (setting.steps + 1), 1
            while done < TOKENS:
                right = accepted(rng, setting, share)
                histogram[right] += 1
                done += right + 1
            add(sweep.arm_name(setting), prompt, step, sum(histogram), price(setting), tuple(histogram), 1.7)
    add("plain again", 0, trials[0].prefill_s / 1.5)
    measured = Measurement(
        machine=this_machine(),
        order="interleaved",
        new_tokens=TOKENS,
        prompt_ids=((1,),) * PROMPTS,
        trials=tuple(trials),
    )
    trees = {
        s: [[accepted(rng, s, share) for _ in range(150)] for share in shares]
        for s in sweep.HELD_OUT
        if not is_chain(s)
    }
    return measured, trees


def test_held_out_settings_are_predicted():
    measured, trees = machine()
    got = sweep.check_sweep([measured], trees=trees)
    assert len(got.rows) == len(sweep.HELD_OUT) == 7 and got.within(0.07) == 7
    for row in got.rows:
        assert row.price == pytest.approx(price(row.setting), rel=0.02)
        assert row.accept_length == pytest.approx(row.accept_length_measured, rel=0.08)
    assert {row.from_.split()[0] for row in got.rows} == {"marginals", "replayed"}
    assert abs(got.noise[0]) < 0.05


def test_runs_of_their_own_are_priced_in_their_own_plain_steps():
    # The second half of the settings ran on a machine half as fast.
    measured, trees = machine()
    late = {sweep.arm_name(s) for s in sweep.HELD_OUT[2:]}
    slow = [
        t.model_copy(update={"seconds": 2 * t.seconds, "prefill_s": 2 * t.prefill_s})
        for t in measured.trials
        if t.arm in late or t.arm.startswith("plain")
    ]
    early = [t for t in measured.trials if t.arm not in late]
    runs = [measured.model_copy(update={"trials": tuple(trials)}) for trials in (early, slow)]
    together, apart = sweep.check_sweep([measured], trees=trees), sweep.check_sweep(runs, trees=trees)
    assert [r.miss for r in apart.rows] == pytest.approx([r.miss for r in together.rows])


def test_a_setting_dearer_than_the_model_is_missed_and_shown():
    # The control: verify of 12 tokens and more falls off a cliff between the fitted widths.
    measured, trees = machine(lambda s: price(s) + (0.8 if s.draft_tokens == 12 else 0))
    got = sweep.check_sweep([measured], trees=trees)
    missed = {row.setting.draft_tokens for row in got.rows if row.miss > 0.2}
    assert missed == {12} and got.within(0.1) <= 5


def test_nothing_measured_at_a_held_out_setting_goes_into_its_prediction():
    measured, trees = machine()
    held = {sweep.arm_name(s) for s in sweep.HELD_OUT}
    slower = tuple(
        t.model_copy(update={"seconds": 3 * t.seconds, "histogram": (t.rounds,)}) if t.arm in held else t
        for t in measured.trials
    )
    before = sweep.check_sweep([measured], trees=trees)
    after = sweep.check_sweep([measured.model_copy(update={"trials": slower})], trees=trees)
    assert [(r.speedup, r.accept_length, r.price) for r in after.rows] == [
        (r.speedup, r.accept_length, r.price) for r in before.rows
    ]
    assert all(a.speedup_measured < b.speedup_measured for a, b in zip(after.rows, before.rows, strict=True))


def test_trees_that_were_not_replayed_are_left_out_and_an_unmeasured_setting_is_refused():
    measured, _ = machine()
    assert all(is_chain(row.setting) for row in sweep.check_sweep([measured]).rows)
    with pytest.raises(WiringError, match="9 steps, top-1, 10 tokens: the sweep did not measure"):
        sweep.check_sweep([measured], held_out=[chain(9)])
    assert sweep.settings_of(measured) == (*sweep.FIT, *sweep.HELD_OUT)


def test_every_setting_is_served_from_one_cured_copy_that_goes_away(monkeypatch, tmp_path):
    case = open_case(profile="cpu-tiny", run=str(tmp_path), measure="live")
    seen = {}

    def record(case, arms, *, prompts, closing, progress):
        seen.setdefault("runs", []).append([arm.name for arm in arms])
        seen.setdefault("specs", []).extend(arm.open() for arm in arms[1:])
        seen["config"] = (seen["specs"][0].draft / "config.json").read_text()
        return "measured"

    monkeypatch.setattr(sweep, "measure_arms", record)
    monkeypatch.setattr("wiring.workbook.live.start_server", lambda case, spec, name, progress, wait: spec)
    cure = SimpleNamespace(form="config", ids=(0, 3, 31), environment={"A": "1"})
    settings = (chain(2), Speculation(3, 2, 6), chain(4))
    assert sweep.measure_sweep(case, cure, settings, at_once=2, progress=lambda text: None) == ("measured",) * 2
    assert seen["runs"] == [
        ["plain", "2 steps, top-1, 3 tokens", "3 steps, top-2, 6 tokens"],
        ["plain", "4 steps, top-1, 5 tokens"],
    ]
    assert [spec.speculation for spec in seen["specs"]] == list(settings)
    assert seen["specs"][0].env == {"A": "1"} and "31" in seen["config"]
    assert not seen["specs"][0].draft.exists()
