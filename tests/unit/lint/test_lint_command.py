"""`wiring lint` as its users call it: exit status, JSON, tables, servers, bad input."""

import json
import pickle
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lint_pairs import IDS, TINY, draft, ids
from typer.testing import CliRunner

from wiring.cli import app as program
from wiring.server.ports import free_port

KEYS = ["engine", "version", "served", "trained", "trained_by", "findings", "not_checked"]
PAIR = ["--target", str(TINY / "target"), "--engine", "sglang==0.5.23"]


@pytest.fixture
def call(wiring_call):
    return partial(wiring_call, "lint")


@pytest.fixture
def sglang():
    """A server that answers /server_info with `answers`: status and body."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers.get(self.path, (404, {}))
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *ignored):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    http.answers, http.url = answers, f"http://127.0.0.1:{http.server_port}"
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


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


# What SGLang 0.5.23 answered on the CPU, as far as it is read, after it was asked for 8 draft tokens with top-k 1.
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
ASKED_RIGHT = {"launch_command": INFO["launch_command"].replace("draft-tokens 8", "draft-tokens 6")}


def test_a_running_server(call, tmp_path, sglang):
    folder = draft(tmp_path / "d")
    words = ("--draft", folder, "--target", TINY / "target", "--trained", "0,3,31", "--server", sglang.url, "--json")
    sglang.answers["/server_info"] = (200, INFO | ASKED_RIGHT)
    status, out, _ = call(*words)
    result = json.loads(out)
    assert (status, result["version"], result["findings"], result["not_checked"]) == (0, "0.5.23", [], [])
    sglang.answers["/server_info"] = (200, INFO)
    findings = json.loads(call(*words)[1])["findings"]
    assert [(f["kind"], f["severity"]) for f in findings] == [(21, "warning")]
    assert "asked for 8, the server runs with 6" in findings[0]["evidence"]
    sglang.answers["/server_info"] = (200, INFO | {"speculative_algorithm": "EAGLE", "kv_cache_dtype": "fp8_e4m3"})
    status, out, _ = call(*words, "--arg", "max_running_requests=8")
    kinds = [(f["kind"], f["severity"]) for f in json.loads(out)["findings"]]
    assert status == 1
    assert kinds == [(7, "error"), (12, "warning"), *[(21, "warning")] * 3]  # algorithm, tokens, requests
    sglang.answers["/server_info"] = (200, INFO | ASKED_RIGHT | {"speculative_draft_model_path": str(TINY / "draft")})
    assert [(f["kind"], f["severity"]) for f in json.loads(call(*words)[1])["findings"]] == [(21, "note")]


def test_the_servers_version_decides(call, tmp_path, sglang):
    sglang.answers["/get_server_info"] = (200, INFO | {"version": "0.5.9", "disable_cuda_graph": False})
    folder = draft(tmp_path / "d", ids(2, 30, 57))
    result = json.loads(call("--draft", folder, "--target", TINY / "target", "--server", sglang.url, "--json")[1])
    assert result["version"] == "0.5.9"
    assert result["served"] == {"prefill": [3, 31, 58], "verify": [2, 30, 58], "draft_extend": [2, 30, 58]}


def test_bad_input_ends_with_2(call, tmp_path, sglang):
    folder = draft(tmp_path / "d")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"hidden_size": ')
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes" / "config.json").write_text("{}")
    cut = draft(tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:5000])
    sglang.answers["/server_info"] = (200, {"something": "else"})
    nobody = f"http://127.0.0.1:{free_port()}"
    for words, message in (
        (("--draft", tmp_path / "none"), "missing"),
        (("--draft", tmp_path / "broken"), "cannot be read as JSON"),
        (("--draft", tmp_path / "sizes"), "hidden_size is missing"),
        (("--draft", cut), "not a whole safetensors file"),
        (("--draft", folder, "--target", tmp_path / "none"), "not a folder"),
        (("--draft", folder, "--target", tmp_path / "sizes"), "names no architecture"),
        (("--draft", folder, "--engine", "llama.cpp"), "no rules are known for this engine"),
        (("--draft", folder, "--engine", "sglang==new"), "not a version"),
        (("--draft", folder, "--target", TINY / "target", "--engine", "sglang==0.1.0"), "no rule is known"),
        (("--draft", folder, "--trained", "0,x"), "not a layout"),
        (("--draft", folder, "--target", TINY / "target", "--trained", "0,3,99"), "boundary 99 does not exist"),
        (("--draft", folder, "--arg", "speculative_algorithm"), "NAME=VALUE"),
        (("--draft", folder, "--arg", "eagle3_layers_to_capture=a,b"), "not a list of layer ids"),
        (("--draft", folder, "--server", nobody), "nothing answers"),
        (("--draft", folder, "--server", sglang.url), "not an SGLang server"),
        (("--draft", folder, "--server", "here"), "not the address of a server"),
    ):
        status, out, err = call(*words)
        assert (status, out) == (2, ""), words
        assert err.startswith("wiring: ") and message in err, (words, err)


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


def test_what_cannot_be_checked_is_not_called_healthy(call, tmp_path):
    status, out, _ = call("--draft", TINY / "target", *PAIR, "--json")
    told = [finding["evidence"] for finding in json.loads(out)["findings"] if finding["kind"] == 7]
    assert status == 1 and any("no EAGLE-3 draft" in evidence for evidence in told)
    unknown = json.loads((TINY / "target" / "config.json").read_text()) | {"architectures": ["FooForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(unknown))
    status, out, _ = call("--draft", TINY / "draft", "--target", tmp_path, "--json")
    assert status == 2 and json.loads(out)["served"]["verify"] is None
    newer = ("--engine", "sglang==9.9", "--trained", "3,31,59", "--json")
    status, out, _ = call("--draft", TINY / "draft", "--target", TINY / "target", *newer)
    assert status == 0 and "newer than the newest release read" in str(json.loads(out)["not_checked"])


def test_a_misspelt_argument_or_layout_is_refused(call):
    for words, told in ((("--arg", "nosuch=1"), "no argument of this name"), (("--trained", "0,3"), "fits neither")):
        status, out, err = call("--draft", TINY / "draft", *PAIR, *words)
        assert (status, out) == (2, "") and told in err


def test_a_note_has_no_fault_beside_it_in_the_table(call):
    words = ("--draft", TINY / "draft", *PAIR, "--trained", "0,3,31")
    assert [f["kind"] for f in json.loads(call(*words, "--json")[1])["findings"] if f["severity"] == "note"] == [0]
    assert "layer ids off by one" not in " ".join(call(*words)[1].replace("│", " ").split())


def test_refusals_speak_of_what_was_given(call, tmp_path):
    folder = draft(tmp_path / "d", weights=False)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "no torch file. Copy it again." in call("--draft", folder)[2]
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Path("x")}, protocol=4))
    err = subprocess.run(
        [sys.executable, "-m", "wiring", "lint", "--draft", folder], capture_output=True, text=True, timeout=300
    ).stderr
    assert err.startswith("wiring: ") and "pickled objects" in err and "UserWarning" not in err
    for text in ("[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"):
        (folder / "config.json").write_text(text)
        assert "cannot be read as JSON" in call("--draft", folder)[2]
    err = call("--draft", TINY / "draft", "--server", "nonsense")[2]
    assert "not the address of a server (expected http://HOST:PORT, found 'nonsense')" in err
    assert "engine.url" not in err
    err = call("--draft", TINY / "draft", "--trained", "-1,3,31")[2]
    assert "boundary -1 does not exist in any target (expected whole numbers from 0" in err


def test_a_release_of_tensorrt_llm_is_not_told_apart(call):
    words = ("--draft", TINY / "draft", "--target", TINY / "target", "--engine", "tensorrt-llm==1.0", "--json")
    gaps = json.loads(call(*words)[1])["not_checked"]
    assert any("TensorRT-LLM 1.0 was not read itself" in gap["why"] for gap in gaps)


def test_one_reason_is_told_once_in_the_table(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # words of one cell stay side by side
    folder = draft(tmp_path / "d", {"eagle_config": {IDS: [0, 3, 31], "use_aux_hidden_state": False}})
    out = call("--draft", folder, *PAIR)[1]
    flat = " ".join(out.replace("│", " ").split())
    assert flat.count("not implemented here") == 1 and flat.count("no server's arguments were given") == 1
    assert "missing and unused tensors" in flat and "embedding" in flat
