"""`wiring lint` on the command line: exit status, JSON, tables, servers, bad input."""

import json
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from lint_pairs import IDS, TINY, draft, ids
from typer.testing import CliRunner

from wiring.cli import app as program
from wiring.server.client import ServerClient
from wiring.server.ports import free_port

KEYS = ["engine", "version", "served", "trained", "trained_by", "findings", "not_checked"]
PAIR = ["--target", str(TINY / "target"), "--engine", "sglang==0.5.23"]


@pytest.fixture
def call(wiring_call):
    return partial(wiring_call, "lint")


@pytest.fixture
def server_info(monkeypatch):
    """The answer of a running server to /server_info."""
    info = dict(INFO)
    monkeypatch.setattr(ServerClient, "server_info", lambda _: info)
    return info


def test_the_shipped_pair_by_json(call):
    status, out, _ = call("--draft", TINY / "draft", *PAIR, "--trained", "0,3,31", "--json")
    result = json.loads(out)
    assert status == 1 and list(result) == KEYS
    assert (result["engine"], result["version"], result["trained"]) == ("sglang", "0.5.23", [0, 3, 31])
    assert result["served"] == {"prefill": [3, 31, 59], "verify": [3, 31, 59], "draft_extend": [3, 31, 59]}
    assert all(set(f) == {"kind", "severity", "where", "evidence", "remedy"} for f in result["findings"])
    assert {f["kind"] for f in result["findings"] if f["severity"] == "error"} == {1}
    assert all(set(gap) == {"check", "why"} for gap in result["not_checked"])


def test_a_healthy_pair_ends_with_0(call, tmp_path):
    folder = draft(tmp_path / "d")
    status, out, _ = call("--draft", folder, *PAIR, "--trained", "0,3,31", "--json")
    assert status == 0 and json.loads(out)["findings"] == []
    status, out, _ = call("--draft", folder, *PAIR, "--trained", "0,3,31")
    assert status == 0 and "Nothing found." in out and "0, 3, 31" in out


def test_warnings_do_not_fail_a_build(call, tmp_path):
    words = [
        "--arg",
        "speculative-num-steps=5",
        "--arg",
        "speculative_eagle_topk=1",
        "--arg",
        "--speculative-num-draft-tokens=8",
    ]
    status, out, _ = call("--draft", draft(tmp_path / "d"), *PAIR, "--trained", "0,3,31", *words, "--json")
    assert status == 0 and [f["kind"] for f in json.loads(out)["findings"]] == [21]
    assert call("--draft", tmp_path / "d", *PAIR, "--trained", "0,3,31", "--arg", "speculative_algorithm=EAGLE")[0] == 1


def test_a_phase_that_fails_is_null(call, tmp_path):
    folder = draft(tmp_path / "d", ids(-1, 2, 30))
    status, out, _ = call("--draft", folder, "--target", TINY / "target", "--engine", "sglang==0.5.9", "--json")
    assert status == 1
    assert json.loads(out)["served"] == {"prefill": None, "verify": [2, 30, 58], "draft_extend": [2, 30, 58]}
    words = ("--no-cuda-graphs", "--tp", "2", "--json")
    folder = draft(tmp_path / "e", ids(2, 30, 57))
    served = json.loads(call("--draft", folder, "--target", TINY / "target", "--engine", "sglang==0.5.9", *words)[1])
    assert served["served"] == dict.fromkeys(("prefill", "verify", "draft_extend"), [3, 31, 58])
    assert [f["kind"] for f in served["findings"]] == [4]


def test_the_engine_without_a_version_is_the_installed_one(call, tmp_path, monkeypatch):
    folder = draft(tmp_path / "d", ids(2, 30, 57))
    for installed, expected in (("0.5.12.post1", [3, 31, 58]), (None, [2, 30, 57]), ("0.5.23", [2, 30, 57])):
        monkeypatch.setattr("wiring.server.preflight.installed_sglang", lambda found=installed: found)
        for engine in ([], ["--engine", "sglang"]):
            result = json.loads(call("--draft", folder, "--target", TINY / "target", *engine, "--json")[1])
            assert (result["version"], result["served"]["verify"]) == (installed or "0.5.23", expected)
    assert "sglang" not in sys.modules


def test_tensorrt_llm_takes_its_ids_as_an_argument(call, tmp_path):
    folder, engine = draft(tmp_path / "d", ids(2, 30, 58)), ("--target", TINY / "target", "--engine", "tensorrt-llm")
    status, out, _ = call(
        "--draft", folder, *engine, "--trained", "3,31,59", "--arg", "eagle3_layers_to_capture=[2,30,58]", "--json"
    )
    assert (status, json.loads(out)["served"]["verify"]) == (0, [3, 31, 59])


# The fields that are read of SGLang 0.5.23's answer on the CPU, after a start with 8 draft tokens and top-k 1.
INFO = {
    "model_path": str(TINY / "target"),
    "version": "0.5.23",
    "speculative_algorithm": "EAGLE3",
    "tp_size": 1,
    "speculative_num_steps": 5,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 6,
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "speculative_draft_kv_cache_dtype": None,
    "attention_backend": "torch_native",
    "max_running_requests": 4,
    "chunked_prefill_size": 4096,
    "context_length": None,
    "disable_cuda_graph": False,
    "quantization": None,
    "speculative_draft_model_quantization": None,
    "speculative_draft_window_size": None,
    "launch_command": "--device cpu --attention-backend torch_native --disable-overlap-schedule --model-path target "
    "--host 127.0.0.1 --port 29690 --dtype float32 --random-seed 0 --enable-metrics --sleep-on-idle "
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path draft --speculative-num-steps 5 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 8 --max-total-tokens 8192 --max-running-requests 4 "
    "--mem-fraction-static 0.3",
}
SERVER = ("--target", TINY / "target", "--server", "http://127.0.0.1:30000", "--json")


def test_a_running_server(call, tmp_path, server_info):
    words = ("--draft", draft(tmp_path / "d"), "--trained", "0,3,31", *SERVER)

    def reported(*more):
        result = json.loads(call(*words, *more)[1])
        return [(finding["kind"], finding["severity"]) for finding in result["findings"]]

    assert reported() == [(21, "warning")]
    assert "8" in json.loads(call(*words)[1])["findings"][0]["evidence"]
    changed = INFO["launch_command"]
    server_info["launch_command"] = changed.replace("draft-tokens 8", "draft-tokens 6")
    status, out, _ = call(*words)
    result = json.loads(out)
    assert (status, result["version"], result["findings"], result["not_checked"]) == (0, "0.5.23", [], [])
    server_info["speculative_draft_model_path"] = str(TINY / "draft")
    assert reported() == [(21, "note")]
    server_info |= INFO | {"speculative_algorithm": "EAGLE", "kv_cache_dtype": "fp8_e4m3"}
    server_info["speculative_draft_model_path"] = None
    found = reported("--arg", "max_running_requests=8")
    assert found == [(7, "error"), (12, "warning"), *[(21, "warning")] * 3]  # algorithm, tokens, requests


def test_the_servers_version_decides(call, tmp_path, server_info):
    server_info["version"] = "0.5.9"
    result = json.loads(call("--draft", draft(tmp_path / "d", ids(2, 30, 57)), *SERVER)[1])
    assert result["version"] == "0.5.9"
    assert result["served"] == {"prefill": [3, 31, 58], "verify": [2, 30, 58], "draft_extend": [2, 30, 58]}


def test_bad_input_ends_with_2(call, tmp_path):
    folder, tiny = draft(tmp_path / "d"), ("--target", TINY / "target")
    for name, text in (("broken", '{"hidden_size": '), ("sizes", "{}"), ("deep", "[" * 100_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    cut, pickled = draft(tmp_path / "cut"), draft(tmp_path / "pickled", weights=False)
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:5000])
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Path("x")}, protocol=4))
    for words, found in (
        (("--draft", tmp_path / "none"), "none"),
        (("--draft", tmp_path / "broken"), "broken"),
        (("--draft", tmp_path / "deep"), "deep"),
        (("--draft", tmp_path / "sizes"), "hidden_size"),
        (("--draft", cut), "model.safetensors"),
        (("--draft", pickled), "pytorch_model.bin"),
        (("--draft", folder, "--target", tmp_path / "none"), "none"),
        (("--draft", folder, "--target", tmp_path / "sizes"), "architecture"),
        (("--draft", folder, "--engine", "llama.cpp"), "llama.cpp"),
        (("--draft", folder, "--engine", "sglang==new"), "new"),
        (("--draft", folder, *tiny, "--engine", "sglang==0.1.0"), "0.1.0"),
        (("--draft", folder, "--trained", "0,x"), "0,x"),
        (("--draft", folder, *tiny, "--trained", "0,3,99"), "boundary 99"),
        (("--draft", folder, "--trained", "-1,3,31"), "boundary -1"),
        (("--draft", folder, "--trained", "0,3"), "--trained"),
        (("--draft", folder, "--arg", "speculative_algorithm"), "NAME=VALUE"),
        (("--draft", folder, "--arg", "nosuch=1"), "nosuch"),
        (("--draft", folder, "--arg", "eagle3_layers_to_capture=a,b"), "a,b"),
        (("--draft", folder, "--server", f"http://127.0.0.1:{free_port()}"), "127.0.0.1"),
        (("--draft", folder, "--server", "here"), "http://HOST:PORT"),
    ):
        status, out, err = call(*words)
        assert (status, out) == (2, ""), words
        assert err.startswith("wiring: ") and found in err, (words, err)


def test_tables_fit_80_columns(call, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    status, out, _ = call("--draft", TINY / "draft", *PAIR, "--trained", "0,3,31")
    assert status == 1 and max(map(len, out.splitlines())) <= 80
    flat = " ".join(out.replace("│", " ").split())
    for part in ("error", "1 wrong layer set", "(3, 31, 59)", "(0, 3, 31)", "Not checked"):
        assert part in flat


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    command = [sys.executable, "-m", "wiring", "lint", "--draft", str(TINY / "draft"), *PAIR, "--trained", "0,3,31"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is written
        error = process.stderr.read()
        assert process.wait(timeout=300) == 1
    assert error == b""


def test_help_and_registration():
    result = CliRunner().invoke(program.app, ["lint", "--help"], terminal_width=100)
    assert result.exit_code == 0 and "--trained" in result.output and "Exit status" in result.output


def test_what_cannot_be_checked_is_not_reported_as_healthy(call, tmp_path):
    status, out, _ = call("--draft", TINY / "target", *PAIR, "--json")
    assert status == 1 and 7 in [f["kind"] for f in json.loads(out)["findings"] if f["severity"] == "error"]
    unknown = json.loads((TINY / "target" / "config.json").read_text()) | {"architectures": ["FooForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(unknown))
    status, out, _ = call("--draft", TINY / "draft", "--target", tmp_path, "--json")
    assert (status, json.loads(out)["error"]["code"]) == (2, "served-layout-unknown")
    assert json.loads(out)["served"]["verify"] is None
    for engine, release in (("sglang==9.9", "9.9"), ("tensorrt-llm==1.0", "1.0")):  # releases that were not read
        words = ("--draft", TINY / "draft", "--target", TINY / "target", "--engine", engine, "--trained", "2,30,58")
        assert any(release in gap["why"] for gap in json.loads(call(*words, "--json")[1])["not_checked"])


def test_a_note_has_no_fault_in_the_table(call):
    words = ("--draft", TINY / "draft", *PAIR, "--trained", "0,3,31")
    assert [f["kind"] for f in json.loads(call(*words, "--json")[1])["findings"] if f["severity"] == "note"] == [0]
    assert "2 layer ids off by one" not in " ".join(call(*words)[1].replace("│", " ").split())


def test_one_reason_is_printed_once(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # each cell on one line
    folder = draft(tmp_path / "d", {"eagle_config": {IDS: [0, 3, 31], "use_aux_hidden_state": False}})
    flat = " ".join(call("--draft", folder, *PAIR)[1].replace("│", " ").split())
    assert flat.count("no server's arguments were given") == 1
    assert "missing and unused tensors" in flat and "embedding" in flat
