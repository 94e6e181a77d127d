"""Artefacts: whole files, refused when they are of another shape, joined into one summary."""

import json

import pytest

from wiring.errors import WiringError
from wiring.workbook import case as store
from wiring.workbook.artefacts import Accuracy, Throughput
from wiring.workbook.case import Case, open_case, record, validate_artefact, write_summary


@pytest.fixture
def run(tmp_path, five):
    for name, artefact in five.items():
        (tmp_path / f"{name}.json").write_text(artefact.model_dump_json())
    return tmp_path


def test_the_summary_takes_each_figure_from_its_artefact(run):
    summary = write_summary(run, "mine")
    again = json.loads((run / "summary.json").read_text())
    assert again == json.loads(summary.model_dump_json())
    assert again["baseline"] == {"tok_per_s": 16} and again["versions"] == {"sglang": "0.5.23"}
    assert again["machine"] == json.loads((run / "05_rebenchmark.json").read_text())["machine"]
    assert (again["as_served"]["speedup"], again["as_served"]["accept_length"]) == (0.9, 1.06)
    assert again["as_served"]["layout"] == {"prefill": [3, 31, 59], "verify": [3, 31, 59], "draft_extend": None}
    assert again["standalone"] == {"trained_layout": [0, 3, 31], "accuracy_trained": 0.77, "accuracy_served": 0.05}
    assert (again["cured"]["form"], again["cured"]["predicted_speedup"]) == ("config", 2.1)
    assert again["cured"]["layout"]["verify"] == [0, 3, 31]
    assert again["arguments"] == {
        "asked": {"steps": 5, "draft_tokens": 8},
        "resolved": {"steps": 5, "draft_tokens": 6},
        "overridden": ["draft_tokens"],
    }
    assert [c["claim"] for c in again["conclusions"]] == ["one", "two", "three", "four", "five"]
    assert again["lossless"] is True


@pytest.mark.parametrize("name", ["01_throughput", "05_rebenchmark"])
def test_one_differing_output_is_not_lossless(run, five, name):
    changed = five[name].model_copy(update={"same_outputs": (True, False)})
    (run / f"{name}.json").write_text(changed.model_dump_json())
    assert write_summary(run, "mine").lossless is False


def test_a_missing_artefact_and_one_of_another_shape_are_refused(run):
    for text in ('{"source": "live", "surprise": 1}', '{"source": "li'):
        (run / "02_accuracy.json").write_text(text)
        with pytest.raises(WiringError) as error:
            validate_artefact(run, "02_accuracy")
        assert error.value.code == "artefact-invalid" and "02_accuracy.json" in error.value.where
    (run / "02_accuracy.json").unlink()
    with pytest.raises(WiringError) as error:
        write_summary(run, "mine")
    assert (error.value.code, error.value.where) == ("artefact-missing", str(run / "02_accuracy.json"))
    assert not (run / "summary.json").exists()


def test_in_the_chain_predecessors_come_from_the_run_and_alone_from_the_recording(run, five, tmp_path_factory):
    recorded = tmp_path_factory.mktemp("recorded")
    other = five["02_accuracy"].model_copy(update={"documents": 7})
    (recorded / "02_accuracy.json").write_text(other.model_dump_json())
    for standalone, documents in ((False, 64), (True, 7)):
        case = Case(profile=None, folder=run, recorded=recorded, measure="recorded", standalone=standalone)
        assert case.read("02_accuracy", Accuracy).documents == documents
    assert case.measured_file("x") == recorded / "x"


def test_artefacts_round_trip(tmp_path, five):
    case = Case(profile=None, folder=tmp_path, recorded=tmp_path, measure="live", standalone=False)
    case.write("01_throughput", five["01_throughput"])
    assert case.read("01_throughput", Throughput) == five["01_throughput"]
    assert [p.name for p in tmp_path.iterdir()] == ["01_throughput.json"]


def test_open_case_refuses_an_unknown_way_to_measure():
    with pytest.raises(WiringError) as error:
        open_case(profile="cpu-tiny", measure="Live")
    assert (error.value.code, error.value.found) == ("unknown-measure", "'Live'")


def test_only_a_live_run_is_recorded(run, five, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(store, "RECORDED", tmp_path_factory.mktemp("recorded"))
    (run / "03_states.safetensors").write_bytes(b"x")
    (run / "01.done.json").write_text("{}")
    goal = record(run, "cpu-tiny")
    assert sorted(p.name for p in goal.iterdir()) == sorted([*(f"{n}.json" for n in five), "03_states.safetensors"])
    old = five["04_patch"].model_copy(update={"source": "recorded"})
    (run / "04_patch.json").write_text(old.model_dump_json())
    with pytest.raises(WiringError) as error:
        record(run, "cpu-tiny")
    assert (error.value.code, error.value.where) == ("run-not-live", str(run / "04_patch.json"))
    assert len(list(goal.iterdir())) == 6
