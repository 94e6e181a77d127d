"""Figures from trials: closed forms, a fake server with a known clock, and the published case."""

import json
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from wiring.bench import benchmark
from wiring.bench.acceptance import acceptance, pool_histograms
from wiring.bench.arm_results import bigram_shares, same_outputs, summarize, unique_share
from wiring.bench.cost_model import predict, round_cost
from wiring.bench.measurement import Measurement, Trial, this_machine
from wiring.errors import WiringError
from wiring.workbook.artefacts import Rebenchmark
from wiring.workbook.case import RECORDED


def trial(arm="plain", prompt=0, repeat=0, seconds=10.0, prefill=1.0, ids=tuple(range(10)), histogram=()):
    correct = sum(a * n for a, n in enumerate(histogram))
    return Trial(
        arm=arm,
        prompt=prompt,
        repeat=repeat,
        order=prompt,
        seconds=seconds,
        prefill_s=prefill,
        output_ids=ids,
        rounds=sum(histogram),
        correct_drafts=correct,
        histogram=histogram,
    )


def test_acceptance_of_a_counted_histogram():
    # 4 rounds: none, one, one and three drafts accepted: 5 drafts in 4 rounds.
    got = acceptance((1, 2, 0, 1), steps=3)
    assert got.rounds == 4 and got.correct_drafts == 5
    assert got.accept_length == pytest.approx(1 + 5 / 4)
    assert got.by_position == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert got.conditional == pytest.approx((3 / 4, 1 / 3, 1.0))


def test_accept_length_is_one_when_nothing_is_accepted_and_steps_plus_one_when_all_is():
    assert acceptance((7,), steps=5).accept_length == 1.0
    assert acceptance((0, 0, 0, 4), steps=3).accept_length == 4.0


def test_accept_length_is_one_plus_the_sum_over_positions():
    got = acceptance((5, 3, 2, 7, 1, 4), steps=5)
    assert got.accept_length == pytest.approx(1 + sum(got.by_position))


def test_no_rounds_give_nan_not_a_number():
    assert math.isnan(acceptance((), steps=3).accept_length)


def test_a_round_cannot_accept_more_than_it_drafted():
    with pytest.raises(ValueError, match="more than 2 drafts"):
        acceptance((1, 1, 1, 1), steps=2)


def test_histograms_of_different_length_are_padded():
    assert pool_histograms([(1, 2), (1, 0, 5), ()]) == (2, 2, 5)


def test_the_published_case_in_the_cost_model():
    # 90 tok/s plain, 54.8 tok/s at accept length 1.8: a round costs 2.96 plain steps; 76.9 % per position at
    # 5 steps is an accept length of 3.43 and then 1.16x.
    step, round_s = 1 / 90, 1.8 / 54.8
    length = 1 + sum(0.769**k for k in range(1, 6))
    got = predict(
        accept_length=length,
        answers=[(n + 1, round(n / a)) for n, a in ((10_000, 1.0), (10_000, length), (9_000, 5.0))],
        round_s=round_s,
        step_s=step,
        prefill_plain_s=0.0,
        prefill_draft_s=0.0,
        steps=5,
    )
    assert got.break_even == pytest.approx(2.956, abs=2e-3)
    assert got.accept_length == pytest.approx(3.43, abs=5e-3)
    assert got.speedup == pytest.approx(1.16, abs=5e-3)


def test_round_cost_lies_on_the_line_through_two_other_settings():
    assert round_cost({3: 0.070, 7: 0.078}, steps=5) == pytest.approx(0.074)
    assert round_cost({1: 0.060, 3: 0.070}, steps=5) == pytest.approx(0.080)
    with pytest.raises(WiringError) as error:
        round_cost({3: 0.07, 5: 0.08}, steps=5)
    assert (error.value.code, error.value.found) == ("cost-steps-unusable", "[3, 5]")


def test_the_last_round_costs_as_much_as_any():
    # 13 tokens: one from the prefill, 12 from rounds of 5. That takes three, at 3 x 0.2 s; 12 plain steps take 1.2 s.
    found = predict(
        accept_length=5.0, answers=[(13, 3)], round_s=0.2, step_s=0.1, prefill_plain_s=0.4, prefill_draft_s=0.6, steps=4
    )
    assert found.speedup == found.limit == pytest.approx(1.6 / 1.2)


def test_the_recorded_case_takes_the_rounds_that_its_draft_was_replayed_with():
    """What 05 predicts from, without a server, is what the cured server counted, answer by answer."""
    measured = Measurement.model_validate_json((RECORDED / "cpu-tiny" / "05_measured.json").read_text())
    written = Rebenchmark.model_validate_json((RECORDED / "cpu-tiny" / "05_rebenchmark.json").read_text())
    found = predict(
        accept_length=written.prediction.accept_length,
        answers=[(len(t.output_ids), t.rounds) for t in measured.arm("cured")],
        round_s=written.prediction.round_s,
        step_s=written.plain.step_s,
        prefill_plain_s=written.plain.prefill_s,
        prefill_draft_s=written.as_served.prefill_s,
        steps=5,
    )
    assert found.speedup == pytest.approx(written.prediction.speedup, rel=1e-9)


def test_results_pair_prompts_and_take_the_prefill_out_of_the_steps():
    plain = [trial(prompt=p, seconds=s) for p, s in enumerate((10.0, 20.0))]
    draft = [
        trial("cured", 0, seconds=5.0, prefill=2.0, histogram=(1, 1, 1)),
        trial("cured", 1, seconds=5.0, prefill=2.0, histogram=(0, 0, 3)),
    ]
    base, got = summarize(plain, plain, steps=2), summarize(draft, plain, steps=2)
    assert base.speedup == 1.0 and base.tok_per_s == pytest.approx(0.75)  # median of 10/10 and 10/20
    assert base.step_s == pytest.approx((9 / 9 + 19 / 9) / 2)
    assert got.speedup == pytest.approx(3.0)  # median of 2 and 4
    assert got.round_s == pytest.approx(1.0)
    assert got.accept_length == pytest.approx(1 + 9 / 6)


def test_outputs_are_compared_prompt_by_prompt():
    a = [trial(prompt=0, ids=(1, 2)), trial(prompt=1, ids=(3, 4))]
    b = [trial("cured", prompt=0, ids=(1, 2)), trial("cured", prompt=1, ids=(3, 5))]
    assert same_outputs(b, a) == (True, False)


def test_a_looping_text_has_few_unique_bigrams():
    assert unique_share([1, 2, 3] * 32, 2) == pytest.approx(3 / 95)
    assert unique_share(range(96), 2) == 1.0
    assert unique_share([1], 2) == 1.0
    assert bigram_shares([trial(ids=(1, 1, 1)), trial(prompt=1, ids=(1, 2, 3))]) == (0.5, 1.0)


class FakeServer:
    """A server that notes what it is asked, in one shared list."""

    def __init__(self, name, calls, short=False, read_only=False):
        self.read_only, self.client, self.name, self.calls, self.short = read_only, self, name, calls, short
        self.is_ready = False

    def ready(self):
        self.is_ready = True

    def generate(self, ids, tokens):
        assert self.is_ready
        self.calls.append((self.name, tokens))
        return SimpleNamespace(output_ids=tuple(range(tokens - self.short)), meta={"spec_verify_ct": 2})

    def flush_cache(self):
        self.calls.append((self.name, "flush"))


def arms(calls, up=None, **kwargs):
    @contextmanager
    def open_(name):
        if up is not None:
            up.append(name)
            assert len(up) == 1, "two servers at once in a sequential run"
        yield FakeServer(name, calls, **kwargs)
        if up is not None:
            up.remove(name)

    return [benchmark.Arm(name, lambda name=name: open_(name)) for name in ("plain", "as served")]


def run(calls, interleaved=True, up=None, **kwargs):
    return benchmark.measure(
        arms(calls, up, **kwargs),
        [[1, 2], [3, 4]],
        new_tokens=8,
        repeats=2,
        warmup_tokens=3,
        interleaved=interleaved,
        closing_prompts=1,
        progress=lambda _: None,
    )


def test_servers_start_side_by_side_where_all_are_needed_and_one_by_one_where_one_fits():
    events = []

    class Noted(FakeServer):
        def ready(self):
            events.append(f"{self.name} ready")
            super().ready()

    @contextmanager
    def open_(name):
        events.append(f"{name} launched")
        yield Noted(name, [])

    def begun(interleaved):
        events.clear()
        two = [benchmark.Arm(name, lambda name=name: open_(name)) for name in ("plain", "as served")]
        benchmark.measure(
            two, [[1, 2]], new_tokens=8, repeats=1, warmup_tokens=3, interleaved=interleaved, progress=lambda _: None
        )
        return events

    assert begun(True) == ["plain launched", "as served launched", "plain ready", "as served ready"]
    assert begun(False) == ["plain launched", "plain ready", "as served launched", "as served ready"]


def test_interleaved_arms_alternate_forwards_and_backwards():
    trials = run([])
    order = [(t.arm, t.prompt, t.repeat) for t in sorted(trials, key=lambda t: t.order)]
    assert order == [
        ("plain", 0, 0),
        ("as served", 0, 0),
        ("as served", 1, 0),
        ("plain", 1, 0),
        ("as served", 0, 1),
        ("plain", 0, 1),
        ("plain", 1, 1),
        ("as served", 1, 1),
        ("plain again", 0, 0),
    ]


def test_every_request_pays_its_whole_prefill():
    calls = []
    run(calls)
    assert all(before[1] == "flush" for before, call in zip(calls, calls[1:], strict=False) if call[1] in (1, 8))


def test_a_server_of_others_keeps_its_prefix_cache():
    calls = []
    run(calls, read_only=True)
    assert not [c for c in calls if c[1] == "flush"]


def test_sequential_runs_one_server_at_a_time_with_the_baseline_at_both_ends():
    calls, up = [], []
    trials = run(calls, interleaved=False, up=up)
    assert [t.arm for t in trials] == ["plain"] * 4 + ["as served"] * 4 + ["plain again"]
    measured = Measurement(machine=this_machine(), order="sequential", new_tokens=8, prompt_ids=(), trials=trials)
    assert [t.arm for t in measured.baseline("plain")] == ["plain"] * 4 + ["plain again"]


def test_a_short_answer_is_refused():
    with pytest.raises(WiringError) as error:
        run([], short=True)
    assert (error.value.code, error.value.expected, error.value.found) == ("answer-too-short", "8 tokens", "7 tokens")


def test_a_measurement_survives_its_file():
    measured = Measurement(
        machine=this_machine(), order="interleaved", new_tokens=8, prompt_ids=((1, 2),), trials=tuple(run([]))
    )
    again = Measurement.model_validate_json(measured.model_dump_json())
    assert again == measured
    assert [t.arm for t in again.arm("plain")] == ["plain"] * 4
    assert json.loads(measured.model_dump_json())["machine"]["cores"] >= 1
