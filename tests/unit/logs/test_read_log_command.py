"""`wiring read-log` as its users call it: tables, evidence files, exit status, large and packed logs."""

import gzip
import json
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from wiring.logs import read_file
from wiring.logs.evidence import Evidence

RECORDED = Path(__file__).parent / "recorded" / "sglang-0.5.23-cpu.log"
XINFER = "MTP Stats: proposed=1536, accepted=658, acceptance_rate=42.84%, avg_tokens/step=2.86"


@pytest.fixture
def call(wiring_call):
    return partial(wiring_call, "read-log")


def test_a_server_log_as_tables(call):
    status, out, err = call(RECORDED, "--version", "0.5.23")
    assert (status, err) == (0, "")
    assert "1.181" in out  # the mean of its eight lines
    assert "EAGLE3" in out and "steps 5" in out and "not weighted" in out and "load_quantisation: none" in out


def test_json_is_an_evidence_file(call):
    status, out, _ = call(RECORDED, "--json", "--version", "0.5.23")
    evidence = Evidence.model_validate(json.loads(out))
    assert status == 0 and (evidence.setting.engine, evidence.setting.steps) == ("sglang", 5)
    (acceptance,) = evidence.acceptance
    assert acceptance.accept_length == pytest.approx(9.45 / 8)
    (speed,) = evidence.speed
    assert speed.arm == "draft" and speed.tok_per_s == pytest.approx((1.93 + 3.58) / 2)  # median of the eight


def test_packed_logs_read_alike(call, tmp_path):
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(RECORDED.read_bytes()))
    plain = json.loads(call(RECORDED, "--json")[1].replace(RECORDED.name, "X"))
    assert json.loads(call(packed, "--json")[1].replace(packed.name, "X")) == plain


def test_a_broken_archive_is_told(call, tmp_path):
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(RECORDED.read_bytes())[:-200])
    status, _, err = call(packed)
    assert status == 2 and "cannot be read" in err and "server.log.gz" in err


def test_impossible_figures_are_findings(call, tmp_path):
    log = tmp_path / "xinfer.log"
    log.write_text(XINFER + "\n")
    status, out, _ = call(log)
    assert status == 1 and "1 of 1 figures cannot be" in out and "counted twice" in out
    status, out, _ = call(log, "--json")
    (found,) = Evidence.model_validate(json.loads(out)).acceptance
    assert status == 1 and "counted twice" in found.impossible


def test_nothing_known_says_what_was_looked_for(call, tmp_path):
    log = tmp_path / "other.log"
    log.write_text("GET / 200\n" * 10)
    status, _, err = call(log)
    assert status == 2 and "SpecDecoding metrics" in err and "Decode batch" in err and "llama.cpp" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["missing.log"], "no such file"),
        ([RECORDED, "--engine", "tgi"], "no lines of this engine"),
        ([RECORDED, "--version", "new"], "not a version"),
        ([RECORDED, "--earlier", RECORDED], "only a scrape"),
    ],
)
def test_bad_calls_are_told(call, words, told):
    status, _, err = call(*words)
    assert status == 2 and told in err


def test_scrapes_and_answers_are_known_by_how_they_begin(call, tmp_path):
    scrape = "# TYPE vllm:spec_decode_num_{0} counter\nvllm:spec_decode_num_{0} {1}\n"

    def write(name, rounds, accepted):
        (tmp_path / name).write_text(
            scrape.format("drafts_total", rounds) + scrape.format("accepted_tokens_total", accepted)
        )
        return tmp_path / name

    before, after = write("before.prom", 100, 100), write("after.prom", 300, 200)
    _, out, _ = call(after, "--json", "--earlier", before)
    (found,) = Evidence.model_validate(json.loads(out)).acceptance
    assert (found.rounds, found.accept_length) == (200, 1.5)
    info = tmp_path / "info.json"
    info.write_text(
        json.dumps({"speculative_algorithm": "EAGLE3", "internal_states": [{"avg_spec_accept_length": 2.5}]})
    )
    assert "2.500" in call(info)[1]
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([{"meta_info": {"spec_verify_ct": 10, "completion_tokens": 16}}] * 3))
    _, out, _ = call(answers, "--json")
    (found,) = Evidence.model_validate(json.loads(out)).acceptance
    assert (found.rounds, found.accept_length) == (30, 1.5)


def test_why_nothing_is_known_is_told_apart(call, tmp_path):
    status, _, err = call(tmp_path)
    assert status == 2 and "this is a folder" in err
    log = tmp_path / "server.log"
    for empty in ("", " \n\n"):
        log.write_text(empty)
        status, _, err = call(log)
        assert status == 2 and "server.log: this file is empty" in err and "Decode batch" not in err
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        log.write_bytes(RECORDED.read_text().encode(encoding))
        status, _, err = call(log)
        assert status == 2 and "server.log: this file is not text in UTF-8 (found UTF-16)" in err


def test_two_scrapes_are_of_one_server_and_not_the_same(call, tmp_path):
    def scrape(name, engine, rounds, accepted):
        counters = (("drafts", rounds), ("accepted_tokens", accepted))
        text = "".join(
            f"# TYPE {engine}:spec_decode_num_{what}_total counter\n{engine}:spec_decode_num_{what}_total {value}\n"
            for what, value in counters
        )
        (tmp_path / name).write_text(text)
        return tmp_path / name

    now = scrape("now.prom", "vllm", 300, 200)
    status, _, err = call(now, "--earlier", now)
    assert status == 2 and "no round was counted between the two scrapes" in err and "Decode batch" not in err
    status, _, err = call(now, "--earlier", scrape("llama.prom", "llamacpp", 100, 50))
    assert status == 2 and "not one of this server (expected metrics of vllm, found those of llamacpp)" in err
    (tmp_path / "python.prom").write_text("# TYPE process_open_fds gauge\nprocess_open_fds 9\n")
    status, _, err = call(now, "--earlier", tmp_path / "python.prom")
    assert status == 2 and "found none that are known" in err


def test_a_file_without_line_ends_is_read_in_pieces(call, tmp_path):
    binary = tmp_path / "core.bin"
    binary.write_bytes(bytes(range(14, 256)) * 32_768)  # 7.9 MB of anything but a line end
    tracemalloc.start()
    status, _, err = call(binary)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert status == 2 and "nothing in this file is known" in err and peak < 6e6


def test_a_log_of_another_release_is_a_finding(call):
    status, out, _ = call(RECORDED, "--version", "0.5.9")
    assert status == 1 and "so the release is another" in " ".join(out.split())


def test_a_long_log_is_read_in_little_memory(tmp_path):
    log = tmp_path / "long.log"
    line = (
        "[2026-06-17 {:02}:{:02}:{:02}] Decode batch, #running-req: {}, #token: 9, token usage: 0.00, accept len: "
        "{:.2f}, accept rate: {:.2f}, cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0\n"
    )
    noise = '[2026-06-17 00:00:00] INFO:     127.0.0.1:50000 - "POST /generate HTTP/1.1" 200 OK ' + "x" * 60 + "\n"
    entries = 4_000
    with log.open("w") as out:
        for n in range(entries):
            second = n * 86_399 // entries
            length = 2.0 + (n % 3) / 2  # 2.0, 2.5, 3.0
            out.write(noise * 14)
            out.write(line.format(second // 3600, second // 60 % 60, second % 60, 1 + n % 64, length, (length - 1) / 3))
    size = log.stat().st_size
    tracemalloc.start()
    summary = read_file(log, version="0.5.23", steps=3, topk=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 8e6 and peak < 4e6
    assert summary.figures == entries and summary.impossible_count == 0
    assert len(summary.evidence.acceptance) == 24 * 7  # hours and batches rounded up to powers of two
    assert all(2.4 < one.accept_length < 2.6 for one in summary.evidence.acceptance if one.condition["batch"] > 4)
