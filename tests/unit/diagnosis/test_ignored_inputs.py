"""Parts of the evidence that are not understood or not checked are listed."""

import json
from pathlib import Path

import pytest

from wiring.diagnosis.evidence_file import ignored_inputs
from wiring.logs.evidence import Evidence

RECORDED = (Path(__file__).parents[1] / "logs" / "recorded" / "sglang-0.5.23-cpu.log").read_text().splitlines()
TARGET = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
READ = "Decode batch, #running-req: 1, #token: 9, accept len: 2.50, accept rate: 0.50, gen throughput (token/s): 9.0"


def notes(**parts):
    return ignored_inputs(Evidence(**parts))


@pytest.mark.parametrize(
    ("log", "understood"),
    [
        (["hello", "decode batch accept_len 1.1", "GET /health 200"], "0 of 3 "),
        (["hello", READ, "accept_len 1.1"], "1 of 3 "),
        (["python -m sglang.launch_server \\", "  --speculative-num-steps 3", "ready to roll"], "2 of 3 "),
        # of the 13 recorded lines only the first, about overlap, holds nothing that is read
        ([*RECORDED, "hello"], "12 of 14 "),
        (["# TYPE vllm:spec_decode_num_drafts_total counter", "vllm:spec_decode_num_drafts_total 9.0"], "0 of 2 "),
        (["", READ, "  "], None),
        ([""], None),
        # a block: two of its lines are kept until the third completes it
        (["num_drafts: 4816", "num_draft_tokens: 33712", "num_accepted_tokens: 12208"], None),
        ([], None),
    ],
)
def test_log_lines_that_are_not_understood_are_counted(log, understood):
    assert [note[: len(understood)] for note in notes(log=log)] == ([understood] if understood else [])


def test_the_line_about_acceptance_is_shown_and_a_scrape_is_sent_to_read_log():
    assert "'accept_len 1.1'" in notes(log=["hello", READ, "accept_len 1.1"])[0]
    assert "wiring read-log FILE --json" in notes(log=["vllm:spec_decode_num_drafts_total 9.0"])[0]


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ({"engine": "sglang"}, "setting.target_config"),
        ({"target_config": TARGET}, "setting.engine"),
        ({"engine": "sglang", "target_config": {**TARGET, "architectures": ["X"]}}, "X"),
        ({"engine": "sglang", "target_config": TARGET}, None),
    ],
)
def test_a_draft_config_without_a_layer_rule_is_noted(setting, missing):
    found = notes(setting={"draft_config": {}, **setting})
    assert [note.count(missing) > 0 for note in found] == ([True] if missing else [])


def test_the_command_prints_the_notes(wiring_call, tmp_path):
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"log": ["hello"]}))
    assert json.loads(wiring_call("diagnose", path, "--json")[1])["notes"][0].startswith("0 of 1 ")
    assert "note: 0 of 1 " in " ".join(wiring_call("diagnose", path)[1].split())
