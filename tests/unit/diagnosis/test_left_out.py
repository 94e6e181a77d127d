"""What a verdict did not use of an evidence file is said beside it."""

import json
from functools import partial
from pathlib import Path

import pytest

from wiring.diagnosis.ignored_inputs import left_out
from wiring.logs.evidence import Evidence

RECORDED = (Path(__file__).parents[1] / "logs" / "recorded" / "sglang-0.5.23-cpu.log").read_text().splitlines()
READ = "Decode batch, #running-req: 1, accept len: 2.31, accept rate: 0.26, cuda graph: True"
TARGET = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}


def notes(**parts):
    return left_out(Evidence(**parts))


@pytest.fixture
def call(wiring_call):
    return partial(wiring_call, "diagnose")


def test_log_lines_in_no_known_form_are_counted(call, tmp_path):
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"log": ["hello", "decode batch accept_len 1.1", "GET /health 200"]}))
    status, out, _ = call(path, "--json")
    (note,) = json.loads(out)["notes"]
    assert status == 0 and note.startswith("0 of 3 log lines were understood") and "decode batch accept_len 1.1" in note
    assert "note: 0 of 3 log lines were understood" in " ".join(call(path)[1].split())


def test_lines_that_are_understood_are_counted_whatever_stands_around_them():
    assert notes(log=[READ]) == notes(log=["", READ, "  "]) == notes(log=[""]) == ()
    assert notes() == ()
    (note,) = notes(log=["hello", READ, "accept_len 1.1"])
    assert note.startswith("1 of 3 ") and "'accept_len 1.1'" in note
    # a block: two of its lines are kept until the third closes the sum
    block = ["num_drafts: 4816", "num_draft_tokens: 33712", "num_accepted_tokens: 12208"]
    assert notes(log=block) == ()
    (note,) = notes(log=["python -m sglang.launch_server \\", "  --speculative-num-steps 3", "ready to roll"])
    assert note.startswith("2 of 3 ")


def test_of_a_recorded_log_the_lines_with_figures_arguments_and_loads_are_understood():
    (note,) = notes(log=[*RECORDED, "hello"])
    # of its 13 lines only the first, about overlap, says nothing that is read
    assert note.startswith("12 of 14 log lines") and "Non-overlap (synchronous) spec" in note


def test_prometheus_text_among_log_lines_is_sent_to_read_log():
    (note,) = notes(log=["# TYPE vllm:spec_decode_num_drafts_total counter", "vllm:spec_decode_num_drafts_total 9.0"])
    assert note.startswith("0 of 2 ") and "wiring read-log FILE --json" in note


def test_a_draft_config_that_no_rule_was_asked_about_is_noted():
    (note,) = notes(setting={"engine": "sglang", "draft_config": {}})
    assert "not checked" in note and "setting.target_config" in note and "setting.engine" not in note
    (note,) = notes(setting={"draft_config": {}, "target_config": TARGET})
    assert "only with setting.engine" in note
    unknown = {**TARGET, "architectures": ["X"]}
    (note,) = notes(setting={"engine": "sglang", "draft_config": {}, "target_config": unknown})
    assert "not checked: X: no layer-id rule" in note
    assert notes(setting={"engine": "sglang", "draft_config": {}, "target_config": TARGET}) == ()
