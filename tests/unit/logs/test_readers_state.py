"""/server_info, meta_info and Prometheus text: recorded runs, and text made by prometheus_client itself."""

import json
from pathlib import Path

import pytest
from log_helpers import pooled
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from wiring.errors import WiringError
from wiring.logs import read_meta_info, read_metrics, read_server_info
from wiring.logs.evidence import AcceptanceRecord, FactRecord, SpeedRecord

RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "cpu-tiny"


def test_recorded_answers_give_the_recorded_accept_length():
    trials = [t for t in json.loads((RECORDED / "01_measured.json").read_text())["trials"] if t["rounds"]]
    answers = [
        {
            "meta_info": {
                "spec_verify_ct": t["rounds"],
                "spec_num_correct_drafts": t["correct_drafts"],
                "spec_num_proposed_drafts": 5 * t["rounds"],
                "spec_correct_drafts_histogram": t["histogram"],
                "completion_tokens": len(t["output_ids"]),
                "cached_tokens": 0,
                "prompt_tokens": 24,
            }
        }
        for t in trials
    ]
    records = read_meta_info(answers, "0.5.23")
    assert len(records) == len(trials) and not any(r.impossible for r in records)
    found = pooled(records)
    stored = json.loads((RECORDED / "01_throughput.json").read_text())
    draft = stored["as_served"]
    assert found.accept_length == pytest.approx(draft["accept_length"])
    assert found.by_position == pytest.approx(tuple(draft["acceptance_by_position"]))
    assert found.proposed == 5 and all(r.condition["cached"] is False for r in records)


# Three rounds that accepted 2, 0 and 1 drafts of 3, after the prefill's token: 1 + 3 + 3 = 7 tokens.
ONE = {"spec_verify_ct": 3, "completion_tokens": 7, "prompt_tokens": 9, "cached_tokens": 4}
BY_RELEASE = {
    "0.4.6": {},
    "0.5.4": {"spec_accept_rate": 1 / 3, "spec_accept_length": 7 / 3},
    "0.5.6": {
        "spec_accept_rate": 1 / 3,
        "spec_accept_length": 7 / 3,
        "spec_accept_token_num": 3,
        "spec_draft_token_num": 9,
    },
    "0.5.9": {
        "spec_accept_rate": 1 / 3,
        "spec_accept_token_num": 3,
        "spec_draft_token_num": 9,
        "spec_accept_histogram": [1, 1, 1],
    },
    "0.5.11": {"spec_accepted_drafts": 3, "spec_proposed_drafts": 9, "spec_accept_histogram": [1, 1, 1]},
    "0.5.23": {"spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 9, "spec_correct_drafts_histogram": [1, 1, 1]},
}


@pytest.mark.parametrize("version", BY_RELEASE)
def test_meta_info_of_every_release_comes_out_alike(version):
    (found,) = read_meta_info([ONE | BY_RELEASE[version]], version, steps=3, topk=1)
    assert (found.rounds, found.accept_length, found.proposed, found.impossible) == (3, 2.0, 3, "")
    assert found.condition["cached"] is True and found.condition["prompt_tokens"] == 9
    if "histogram" in str(BY_RELEASE[version]):
        assert found.by_position == pytest.approx((2 / 3, 1 / 3, 0))


def test_meta_info_that_contradicts_itself_is_named():
    (found,) = read_meta_info([ONE | BY_RELEASE["0.5.23"] | {"spec_correct_drafts_histogram": [1, 0, 1]}])
    assert "2 rounds and 2 drafts, the counts are 3 and 3" in found.impossible and not found.by_position
    (found,) = read_meta_info(
        [ONE | BY_RELEASE["0.5.23"] | {"spec_num_correct_drafts": 12, "spec_accept_rate": 12 / 9}]
    )
    assert "12 accepted of 9 drafted" in found.impossible and "above 1" in found.impossible


def test_an_answer_of_a_plain_server_says_nothing():
    assert read_meta_info([{"meta_info": {"completion_tokens": 7}}, {"spec_verify_ct": 0}]) == ()


INFO = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "tp_size": 2,
    "disable_radix_cache": False,
    "version": "0.5.9",
    "internal_states": [{"avg_spec_accept_length": 2.25, "last_gen_throughput": 54.8}],
}


def test_server_info():
    fact, found, speed = read_server_info(INFO)
    assert (fact.name, fact.value) == ("spec_algorithm", "EAGLE3")
    assert (found.accept_length, found.rounds, found.proposed, found.impossible) == (2.25, None, 3, "")
    assert found.condition == {}
    assert isinstance(speed, SpeedRecord) and (speed.arm, speed.tok_per_s) == ("draft", 54.8)


def test_server_info_of_several_ranks_and_of_the_oldest_release():
    two = INFO | {"internal_states": [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}]}
    assert [r.accept_length for r in read_server_info(two) if isinstance(r, AcceptanceRecord)] == [2.0, 3.0]
    old = {name: value for name, value in INFO.items() if name != "internal_states"} | {"avg_spec_accept_length": 2.5}
    assert [r.accept_length for r in read_server_info(old, "0.4.6") if isinstance(r, AcceptanceRecord)] == [2.5]


def test_server_info_that_cannot_be():
    wrong = INFO | {"internal_states": [{"avg_spec_accept_length": 4.5}]}
    (found,) = [r for r in read_server_info(wrong) if isinstance(r, AcceptanceRecord)]
    assert found.accept_length is None and "above drafts per round + 1 = 4" in found.impossible


def test_a_short_run_has_no_figure_yet():
    records = read_server_info(INFO | {"internal_states": [{"last_gen_throughput": 0.0}]})
    assert [type(record) for record in records] == [FactRecord]


def vllm(rounds, drafted, accepted, by_position, engines=("0",)):
    """What vLLM's own counters put out: `_total` and `_created` samples, one engine label each."""
    registry = CollectorRegistry()
    labels = ["model_name", "engine"]
    for name, value in (("num_drafts", rounds), ("num_draft_tokens", drafted), ("num_accepted_tokens", accepted)):
        counter = Counter(f"vllm:spec_decode_{name}", name, labels, registry=registry)
        for engine in engines:
            counter.labels("m", engine).inc(value)
    positions = Counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "by position", [*labels, "position"], registry=registry
    )
    for engine in engines:
        for position, value in enumerate(by_position):
            positions.labels("m", engine, str(position)).inc(value)
    return generate_latest(registry).decode()


def test_vllm_counters():
    (found,) = read_metrics(vllm(395, 1185, 769, (325, 252, 192)))
    assert (found.rounds, found.proposed, found.impossible) == (395, 3, "")
    assert found.accept_length == pytest.approx(1 + 769 / 395)
    assert found.by_position == pytest.approx((325 / 395, 252 / 395, 192 / 395))  # label 0 is the first draft
    assert "since the server's start" in found.rule


def test_engines_add_up():
    (found,) = read_metrics(vllm(395, 1185, 769, (325, 252, 192), engines=("0", "1")))
    assert found.rounds == 790 and found.accept_length == pytest.approx(1 + 769 / 395)


def test_two_scrapes_give_what_lies_between():
    (found,) = read_metrics(vllm(495, 1485, 819, (365, 262, 192)), vllm(395, 1185, 769, (325, 252, 192)))
    assert (found.rounds, found.accept_length) == (100, 1.5) and found.by_position == pytest.approx((0.4, 0.1, 0.0))
    assert "between two readings" in found.rule


def test_counters_that_fell_are_refused():
    (found,) = read_metrics(vllm(495, 1485, 700, (325, 252, 123)), vllm(395, 1185, 769, (325, 252, 192)))
    assert "-69 accepted drafts" in found.impossible and "reset" in found.impossible and found.accept_length is None


def test_an_idle_server_says_nothing():
    assert read_metrics(vllm(0, 0, 0, (0, 0, 0))) == ()


def test_llama_cpp_counters():
    text = (
        "\n".join(
            f"# TYPE llamacpp:spec_decode_{name} counter\nllamacpp:spec_decode_{name}{label} {value}"
            for name, label, value in (
                ("num_drafts_total", "", 87),
                ("num_draft_tokens_total", "", 259),
                ("num_accepted_tokens_total", "", 167),
                ("num_accepted_tokens_per_pos_total", '{position="0"}', 70),
            )
        )
        + '\nllamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 55\n'
        + ('llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 42\n')
    )
    (found,) = read_metrics(text)
    assert (found.rounds, found.proposed, found.impossible) == (87, 3, "")
    assert found.by_position == pytest.approx((70 / 87, 55 / 87, 42 / 87)) and "llama.cpp" in found.rule


def sglang(**values):
    registry = CollectorRegistry()
    for name, value in values.items():
        if name.endswith("_total"):
            Counter(f"sglang:{name}", name, ["model_name"], registry=registry).labels("m").inc(value)
        else:
            Gauge(f"sglang:{name}", name, ["model_name"], registry=registry).labels("m").set(value)
    return generate_latest(registry).decode()


def test_sglang_counters_and_gauges():
    # 4 requests, 64 tokens each: 4 prefill tokens, 120 rounds, so 132 accepted drafts.
    gauges = {"spec_accept_length": 2.2, "spec_accept_rate": 0.4, "spec_num_steps": 3, "spec_num_draft_tokens": 4}
    counters = {"spec_verify_calls_total": 120, "generation_tokens_total": 256, "num_requests_total": 4}
    text = sglang(**gauges, **counters, gen_throughput=54.8)
    counted, gauge, speed = read_metrics(text)
    assert (counted.rounds, counted.accept_length, counted.proposed) == (120, 1 + 132 / 120, 3)
    assert (gauge.accept_length, gauge.rounds) == (2.2, None) and "last log interval" in gauge.rule
    assert (speed.arm, speed.tok_per_s) == ("draft", 54.8)


def test_text_that_is_no_exposition():
    with pytest.raises(WiringError) as error:
        read_metrics("# TYPE x counter\nx{broken 1\n")
    assert error.value.code == "metrics-not-prometheus"
