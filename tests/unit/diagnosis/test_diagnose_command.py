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


def test_json_has_the_documented_keys(call):
    status, out, _ = call(EVIDENCE / "case-study.json", "--json")
    found = json.loads(out)
    assert status == 1
    assert list(found)[:3] == ["ranking", "next_check", "enough_evidence"]
    assert all(list(row) == ["kind", "name", "score", "for", "against"] for row in found["ranking"])
    assert {"symptom", "bits", "letter", "text", "source"} == set(found["ranking"][0]["for"][0])
    assert found["enough_evidence"] is True and found["ranking"][0]["kind"] == 1


def test_the_case_as_served_and_after_its_cure(call):
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


def test_tables_name_kind_remedy_and_next_check(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = call(EVIDENCE / "case-study.json")
    assert status == 1
    assert "wrong layer set" in out and "Remedy for kind 1" in out and "Next:" in out and "3.43" in out


def test_a_run_as_served_and_cured(call):
    served = json.loads(call(RECORDED, "--json")[1])
    assert served["named"][0] == 1 and 24 not in served["named"]
    status, out, _ = call(RECORDED, "--cured", "--json")
    cured = json.loads(out)
    assert status == 0 and cured["named"] == [] and cured["healthy"] and cured["enough_evidence"]


def test_little_evidence_is_no_fault_and_no_error(call, tmp_path):
    (tmp_path / "e.json").write_text('{"acceptance": [{"source": "log", "accept_length": 1.6}]}')
    status, out, _ = call(tmp_path / "e.json", "--json")
    found = json.loads(out)
    assert status == 0 and found["enough_evidence"] is False and "wiring" in found["next_check"]
    (tmp_path / "e.json").write_text("{}")
    status, out, _ = call(tmp_path / "e.json")
    assert status == 0 and "no verdict" in out and "wiring lint" in " ".join(out.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"acceptance": [{"source": "a", "accept_length": "many"}]}', "acceptance.0.accept_length"),
        ('{"acceptance": [{"accept_length": 2}]}', "acceptance.0.source"),
        ('{"acceptance": [{"source": "a", "condition": {"moon": 1}}]}', "moon"),
        ('{"acceptance": [{"source": "a", "by_position": [1.2]}]}', "by_position.0"),
        ('{"facts": [{"source": "a", "letter": "P", "name": "moon", "value": 1}]}', "facts.0.name"),
        ('{"facts": [{"source": "a", "letter": "P", "name": "text_broken", "value": "yes"}]}', "text_broken"),
        ('{"acceptance": [{"source": "a", "condition": {"batch": "many"}}]}', "batch is a number"),
        ('{"acceptance": [{"source": "a", "condition": {"cached": 1}}]}', "cached is true or false"),
        ('{"surprise": 1}', "surprise"),
        ('{"schema_version": 2}', "schema_version"),
        ('{"log": ["', "e.json"),
        ("[]", "e.json"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_field(call, tmp_path, text, told):
    (tmp_path / "e.json").write_text(text)
    status, _, err = call(tmp_path / "e.json")
    assert status == 2 and "e.json" in err and told in err and "Traceback" not in err


def test_what_is_not_there_and_what_does_not_go_together(call, tmp_path):
    assert call(tmp_path / "none.json")[0] == 2
    assert call()[0] == 2
    assert call("no-such-run", "--runs", tmp_path)[0] == 2
    assert call(EVIDENCE / "case-study.json", "--cured")[0] == 2
    assert call(tmp_path / "none.json", "--json")[0] == 2


def test_a_log_is_sent_to_read_log_and_a_run_that_is_not_there_to_the_recorded_one(call, tmp_path):
    log = tmp_path / "raw.log"
    log.write_text("Decode batch, accept len: 1.10\n")
    status, _, err = call(log)
    assert status == 2 and f"wiring read-log {log} --json" in err and "no such run" not in err
    status, _, err = call("cpu-tiny", "--runs", tmp_path)
    assert status == 2 and "there is none yet" in err and str(RECORDED) in err and "none)" not in err
    assert str(RECORDED) not in call("mine", "--runs", tmp_path)[2]


def test_the_schema_is_printed_and_the_readme_names_all_that_it_may(call):
    schema = json.loads(call("--schema")[1])
    assert {"setting", "acceptance", "slots", "facts", "log", "differences"} <= set(schema["properties"])
    text = (EVIDENCE / "README.md").read_text()
    for name, meaning in {**CONDITIONS, **FACTS}.items():
        assert f"| `{name}` | {meaning} |" in text
    for part in schema["properties"]:
        assert part in ("schema_version", "name") or f"`{part}`" in text
