"""`wiring read-log` as its users call it: tables, evidence files, exit status, large and compressed logs."""

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


@pytest.fixture
def evidence(call):
    """Call with --json and return the exit status and the evidence."""

    def evidence(*arguments):
        status, out, _ = call(*arguments, "--json")
        return status, Evidence.model_validate(json.loads(out))

    return evidence


@pytest.fixture
def refused(call):
    """Call with --json and return the error."""

    def refused(*arguments):
        status, out, _ = call(*arguments, "--json")
        assert status == 2
        return json.loads(out)["error"]

    return refused


def scrape(path, engine="vllm", drafts=100, accepted_tokens=100):
    path.write_text(
        "".join(
            f"# TYPE {engine}:spec_decode_num_{name}_total counter\n{engine}:spec_decode_num_{name}_total {value}\n"
            for name, value in (("drafts", drafts), ("accepted_tokens", accepted_tokens))
        )
    )
    return path


def test_a_server_log_as_tables(call):
    status, out, err = call(RECORDED, "--version", "0.5.23")
    assert (status, err) == (0, "")
    assert "1.181" in out  # the mean of its eight lines
    assert "EAGLE3" in out and "steps 5" in out and "not weighted" in out and "load_quantisation: none" in out


def test_json_is_an_evidence_file_also_of_a_compressed_log(evidence, tmp_path):
    status, found = evidence(RECORDED, "--version", "0.5.23")
    assert status == 0 and (found.setting.engine, found.setting.steps) == ("sglang", 5)
    (acceptance,), (speed,) = found.acceptance, found.speed
    assert acceptance.accept_length == pytest.approx(9.45 / 8)
    assert speed.arm == "draft" and speed.tok_per_s == pytest.approx((1.93 + 3.58) / 2)  # median of the eight
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(RECORDED.read_bytes()))
    plain = found.model_dump_json().replace(RECORDED.name, packed.name)
    assert evidence(packed, "--version", "0.5.23")[1].model_dump_json() == plain


def test_impossible_figures_are_findings(call, evidence, tmp_path):
    log = tmp_path / "xinfer.log"
    log.write_text(XINFER + "\n")
    status, out, _ = call(log)
    assert status == 1 and "1 of 1 figures" in out and "counted twice" in out
    status, found = evidence(log)
    assert status == 1 and "counted twice" in found.acceptance[0].impossible
    assert evidence(RECORDED, "--version", "0.5.9")[0] == 1  # the rates are those of another release


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"GET / 200\n" * 10, "log-without-figures"),
        (b"", "log-empty"),
        (b" \n\n", "log-empty"),
        *((RECORDED.read_text().encode(encoding), "log-not-utf8") for encoding in ("utf-16", "utf-16-le", "utf-16-be")),
        (gzip.compress(RECORDED.read_bytes())[:-200], "log-unreadable"),
    ],
    ids=["other", "empty", "blank", "utf-16", "utf-16-le", "utf-16-be", "broken archive"],
)
def test_files_without_figures_are_refused(refused, tmp_path, content, code):
    log = tmp_path / "server.log"
    log.write_bytes(content)
    error = refused(log)
    assert error["code"] == code and error["where"] == str(log)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["missing.log"], "log-missing"),
        ([RECORDED.parent], "log-is-a-folder"),
        ([RECORDED, "--engine", "tgi"], "engine-without-log-reader"),
        ([RECORDED, "--earlier", RECORDED], "earlier-needs-scrape"),
    ],
)
def test_bad_calls_are_refused(refused, words, code):
    assert refused(*words)["code"] == code


def test_an_invalid_version_is_refused(call):
    assert call(RECORDED, "--version", "new")[0] == 2


def test_scrapes_and_answers_are_recognized_by_their_first_line(evidence, tmp_path):
    before = scrape(tmp_path / "before.prom")
    _, found = evidence(scrape(tmp_path / "after.prom", drafts=300, accepted_tokens=200), "--earlier", before)
    assert (found.acceptance[0].rounds, found.acceptance[0].accept_length) == (200, 1.5)
    info = tmp_path / "info.json"
    info.write_text(
        json.dumps({"speculative_algorithm": "EAGLE3", "internal_states": [{"avg_spec_accept_length": 2.5}]})
    )
    assert evidence(info)[1].acceptance[0].accept_length == 2.5
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([{"meta_info": {"spec_verify_ct": 10, "completion_tokens": 16}}] * 3))
    _, found = evidence(answers)
    assert (found.acceptance[0].rounds, found.acceptance[0].accept_length) == (30, 1.5)


def test_two_scrapes_must_be_of_one_server_and_differ(refused, tmp_path):
    now = scrape(tmp_path / "now.prom", drafts=300, accepted_tokens=200)
    assert refused(now, "--earlier", now)["code"] == "no-round-between-scrapes"
    error = refused(now, "--earlier", scrape(tmp_path / "llama.prom", "llamacpp"))
    assert (error["code"], error["found"]) == ("scrape-of-another-engine", "metrics of llamacpp")
    (tmp_path / "python.prom").write_text("# TYPE process_open_fds gauge\nprocess_open_fds 9\n")
    assert refused(now, "--earlier", tmp_path / "python.prom")["code"] == "scrape-of-another-engine"


def peak_memory(call):
    tracemalloc.start()
    result = call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, peak


def test_a_file_without_line_ends_is_read_in_pieces(refused, tmp_path):
    binary = tmp_path / "core.bin"
    binary.write_bytes(bytes(range(14, 256)) * 32_768)  # 7.9 MB of anything but a line end
    error, peak = peak_memory(lambda: refused(binary))
    assert error["code"] == "log-without-figures" and peak < 6e6


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
    summary, peak = peak_memory(lambda: read_file(log, version="0.5.23", steps=3, topk=1))
    assert log.stat().st_size > 8e6 and peak < 4e6
    assert summary.figures == entries and summary.impossible_count == 0
    assert len(summary.evidence.acceptance) == 24 * 7  # hours and batches rounded up to powers of two
    assert all(2.4 < one.accept_length < 2.6 for one in summary.evidence.acceptance if one.condition["batch"] > 4)
