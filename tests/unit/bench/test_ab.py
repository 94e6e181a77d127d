"""A/B against a fake server with a planted weakness: it shows under its own factor, and under no other."""

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from wiring.bench.ab import FACTORS, run_ab
from wiring.diagnosis.verdict import diagnose
from wiring.errors import WiringError
from wiring.logs.evidence import AcceptanceRecord, Evidence
from wiring.server.launch import RunningServer

PROMPTS = [[p, p + 1, p + 2] for p in range(8)]
STEPS = 3


class FakeServer:
    """Accepts 3 of 4 drafts, or 1 of 4 under `weak(**what the request meets)`; deterministic by prompt."""

    url = "http://127.0.0.1:1"

    def __init__(self, weak=lambda **met: False, stay_s=0.0, **info):
        self.stay_s = stay_s  # of a request: long enough for the others of a wave to arrive
        self.weak, self.lock, self.running, self.most = weak, threading.Lock(), 0, 0
        self.peak = 0
        self.info = {"model_path": "t", "version": "0.5.23", "speculative_num_steps": STEPS, **info}
        self.cache, self.flushes = set(), 0

    def server_info(self):
        return self.info

    def flush_cache(self):
        self.cache.clear()
        self.flushes += 1

    def generate(self, ids, tokens, ignore_eos=True, temperature=0.0):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.peak = max(self.peak, self.most)
        time.sleep(self.stay_s)
        with self.lock:
            met = dict(cached=tuple(ids) in self.cache, batch=self.most, temperature=temperature)
        rng = np.random.default_rng(ids[0])
        histogram, done, first = [0] * (STEPS + 1), 1, True
        while done < tokens:
            share = 0.25 if self.weak(first_round=first, **met) else 0.75
            accepted = int((rng.random(STEPS) < share).cumprod().sum())
            histogram[accepted] += 1
            done, first = done + accepted + 1, False
        with self.lock:
            self.running -= 1
            if not self.running:
                self.most = 0
            self.cache.add(tuple(ids))
        meta = {"cached_tokens": 2 if met["cached"] else 0, "prompt_tokens": len(ids)}
        if any(histogram):
            meta["spec_correct_drafts_histogram"] = histogram
        return SimpleNamespace(output_ids=tuple(range(tokens)), meta=meta)


class Nothing(set):
    """A cache that keeps nothing."""

    def add(self, ids):
        pass


WEAK = {
    "flush": lambda cached, **_: cached,
    "batch": lambda batch, **_: batch > 1,
    "temperature": lambda temperature, **_: temperature > 0,
    "first-round": lambda first_round, **_: first_round,
}


@pytest.mark.parametrize("factor", WEAK)
def test_a_planted_weakness_is_found_under_its_factor(factor):
    got = run_ab(FakeServer(WEAK[factor], stay_s=0.2 * (factor == "batch")), PROMPTS, factor, new_tokens=24)
    assert got.difference.real and got.difference.difference < -0.3 and got.difference.paired
    assert got.b.acceptance.by_position[0] < got.a.acceptance.by_position[0]
    values = got.a.acceptance.value, got.b.acceptance.value
    assert values == {"batch": (1, 4), "temperature": (0.0, 1.0)}.get(factor, (False, True))


@pytest.mark.parametrize("factor", ["flush", "batch", "temperature"])
def test_a_healthy_server_shows_no_difference(factor):
    got = run_ab(FakeServer(), PROMPTS, factor, new_tokens=24)
    assert got.difference.real is False and got.difference.difference == 0 and not got.notes
    assert got.same_outputs in ((True,) * 8, None)


@pytest.mark.parametrize("factor", ["batch", "temperature"])
def test_a_weakness_of_another_factor_does_not_show(factor):
    # The cache is emptied before each wave, so a stale cache is not taken for a fault of the batch.
    assert run_ab(FakeServer(WEAK["flush"]), PROMPTS, factor, new_tokens=24).difference.real is False
    kept = run_ab(FakeServer(WEAK["flush"]), PROMPTS, factor, new_tokens=24, keep_cache=True)
    assert kept.difference.real is False and kept.a.acceptance.accept_length < 2  # weak on both sides


def test_waves_are_full_and_a_kept_cache_is_not_emptied():
    server = FakeServer(stay_s=0.2)
    got = run_ab(server, PROMPTS[:7], "batch", batch=3, new_tokens=12, keep_cache=True)
    assert server.peak == 3 and server.flushes == 0 and got.b.acceptance.requests == 7


def test_eager_against_graphs_takes_two_servers():
    graphs = FakeServer(lambda **_: True, disable_cuda_graph=False)
    eager = FakeServer(disable_cuda_graph=True)
    got = run_ab(graphs, PROMPTS, "eager", other=eager, new_tokens=24)
    assert got.difference.real and got.difference.difference > 0.3
    assert (got.a.acceptance.value, got.b.acceptance.value) == (True, False)


@pytest.mark.parametrize(
    ("server", "factor", "options", "code"),
    [
        ({}, "moon", {}, "factor-unknown"),
        ({}, "eager", {}, "second-server-missing"),
        ({"disable_cuda_graph": True}, "eager", {"other": FakeServer(disable_cuda_graph=True)}, "servers-alike"),
        ({}, "flush", {"other": FakeServer()}, "second-server-unused"),
        ({}, "flush", {"keep_cache": True}, "flush-keeps-cache"),
        ({"speculative_num_steps": None}, "flush", {}, "server-without-draft"),
    ],
)
def test_an_impossible_comparison_is_refused(server, factor, options, code):
    with pytest.raises(WiringError) as error:
        run_ab(FakeServer(**server), PROMPTS, factor, **options)
    assert error.value.code == code


def test_a_cache_that_is_off_is_noted():
    server = FakeServer()
    server.cache = Nothing()
    got = run_ab(server, PROMPTS, "flush", new_tokens=12)
    assert len(got.notes) == 1 and got.difference.real is False


def test_every_factor_has_a_condition_that_evidence_knows():
    from wiring.logs.evidence import CONDITIONS

    assert {factor.condition for factor in FACTORS.values()} <= CONDITIONS.keys()


@pytest.fixture
def command(monkeypatch, tmp_path):
    from wiring.cli.app import app

    (tmp_path / "prompts.json").write_text(json.dumps([{"input_ids": ids} for ids in PROMPTS]))

    def run(server, *arguments):
        attached = RunningServer(server.url, server)
        server.close = lambda: None
        monkeypatch.setattr("wiring.server.launch.attach", lambda url, **options: attached)
        first = ["ab", "--server", server.url, "--prompts", str(tmp_path / "prompts.json"), "--new-tokens", "24"]
        return CliRunner().invoke(app, [*first, *arguments])

    return run


def test_the_command_prints_both_groups_and_ends_by_what_it_found(command):
    weak = command(FakeServer(WEAK["flush"]), "--factor", "flush")
    assert weak.exit_code == 1 and "a real difference" in weak.output and "8 of 8" in weak.output
    assert command(FakeServer(), "--factor", "flush").exit_code == 0
    few = command(FakeServer(WEAK["flush"]), "--factor", "flush", "--count", "3")
    assert few.exit_code == 2


def test_the_commands_json_is_json_and_its_acceptance_is_evidence(command):
    told = command(FakeServer(WEAK["flush"]), "--factor", "flush", "--json")
    result = json.loads(told.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    records = [AcceptanceRecord.model_validate(record) for record in result["acceptance"]]
    assert [record.condition["cached"] for record in records] == [False, True]
    assert records[0].accept_length > records[1].accept_length and records[0].proposed == STEPS
    assert result["real"] is True and result["factor"]["condition"] == "cached"
    tested = Evidence.model_validate({"differences": result["differences"]})
    assert diagnose(tested).named == (15,)  # the draft's KV of cached prefixes
