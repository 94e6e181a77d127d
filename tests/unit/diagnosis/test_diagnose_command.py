"""`wiring diagnose` as its users call it: a run, an evidence file, JSON, the schema, bad files."""

import json
from functools import partial
from pathlib import Path

import pytest

from wiring.logs.evidence import CONDITIONS, FACTS

EVIDENCE = Path(__file__).parents[3] / "data" / "evidence"
RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "cpu-tiny"


@pytest.fixture
def call(wiring_call):
    return partial(wiring_call, "diagnose")


@pytest.fixture
def refused(call):
    """Call with --json and return the error."""

    def refused(*arguments):
        status, out, _ = call(*arguments, "--json")
        assert status == 2
        return json.loads(out)["error"]

    return refused


def test_json_has_the_documented_keys(call):
    status, out, _ = call(EVIDENCE / "case-study.json", "--json")
    found = json.loads(out)
    assert status == 1
    assert list(found)[:3] == ["ranking", "next_check", "enough_evidence"]
    assert {"named", "candidates", "healthy", "summary", "remedies", "reports", "residual", "expected", "notes"} < set(
        found
    )
    assert all(list(row) == ["kind", "name", "score", "for", "against"] for row in found["ranking"])
    assert {"symptom", "bits", "letter", "text", "source"} == set(found["ranking"][0]["for"][0])
    assert found["enough_evidence"] is True and found["ranking"][0]["kind"] == 1


def test_the_case_study_as_served_and_after_the_fix(call):
    found = json.loads(call(EVIDENCE / "case-study.json", "--json")[1])
    assert set(found["named"]) == {1, 21, 24}
    (predicted,) = found["expected"]
    # reference/case-study.md: 1 + sum of 0.769^k for k = 1..5
    assert predicted["expected"] == pytest.approx(3.43, abs=0.005)
    after = json.loads(call(EVIDENCE / "case-study-cured.json", "--json")[1])
    assert set(after["named"]) == {1, 24}
    (layers,) = [row for row in after["ranking"] if row["kind"] == 1]
    assert any(one["text"].startswith("verify") for one in layers["for"])
    (cost,) = [row for row in after["ranking"] if row["kind"] == 24]
    assert any("2.96 plain steps" in one["text"] for one in cost["for"])


def test_tables_name_fault_remedy_and_next_check(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = call(EVIDENCE / "case-study.json")
    assert status == 1
    assert "wrong layer set" in out and "Remedy for fault 1" in out and "Next:" in out and "3.43" in out


def test_a_run_as_served_and_after_the_fix(call):
    served = json.loads(call(RECORDED, "--json")[1])
    assert served["named"][0] == 1 and 24 not in served["named"]
    status, out, _ = call(RECORDED, "--cured", "--json")
    cured = json.loads(out)
    assert status == 0 and cured["named"] == [] and cured["healthy"] and cured["enough_evidence"]


def test_little_evidence_is_neither_a_fault_nor_an_error(call, tmp_path):
    (tmp_path / "e.json").write_text('{"acceptance": [{"source": "log", "accept_length": 1.6}]}')
    status, out, _ = call(tmp_path / "e.json", "--json")
    found = json.loads(out)
    assert status == 0 and found["enough_evidence"] is False and "wiring" in found["next_check"]
    (tmp_path / "e.json").write_text("{}")
    status, out, _ = call(tmp_path / "e.json")
    assert status == 0 and "wiring lint" in " ".join(out.split())


def test_what_cannot_be_diagnosed_is_refused(call, refused, tmp_path):
    assert refused(tmp_path / "none.json")["code"] == "evidence-unreadable"
    assert refused()["code"] == "nothing-to-diagnose"
    assert refused(EVIDENCE / "case-study.json", "--cured")["code"] == "cured-needs-run"
    (tmp_path / "e.json").write_text('{"surprise": 1}')
    status, _, err = call(tmp_path / "e.json")
    assert status == 2 and "e.json, field surprise" in err and "Traceback" not in err


def test_a_log_is_sent_to_read_log_and_a_missing_run_to_the_recorded_one(refused, tmp_path):
    log = tmp_path / "raw.log"
    log.write_text("Decode batch, accept len: 1.10\n")
    error = refused(log)
    assert error["code"] == "not-an-evidence-file" and f"wiring read-log {log} --json" in error["remedy"]
    assert str(RECORDED) in json.dumps(refused("cpu-tiny", "--runs", tmp_path))
    assert str(RECORDED) not in json.dumps(refused("mine", "--runs", tmp_path))


def test_the_schema_is_printed_and_the_readme_lists_every_name(call):
    schema = json.loads(call("--schema")[1])
    assert {"setting", "acceptance", "slots", "facts", "log", "differences"} <= set(schema["properties"])
    text = (EVIDENCE / "README.md").read_text()
    for name, meaning in {**CONDITIONS, **FACTS}.items():
        assert f"| `{name}` | {meaning.type.__name__} | {meaning.text} |" in text
    for part in schema["properties"]:
        assert part in ("schema_version", "name") or f"`{part}`" in text
