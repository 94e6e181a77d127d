"""The evidence of a run: each figure from its artefact, and the verdict on the recorded one."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from wiring.checkpoints.file_findings import Finding
from wiring.diagnosis.verdict import diagnose
from wiring.engines.resolve import parse_engine
from wiring.engines.sglang import SUPPORTED
from wiring.errors import WiringError
from wiring.lint import lint
from wiring.workbook.artefacts import LayoutDiff
from wiring.workbook.case import RECORDED, validate_artefact
from wiring.workbook.gather_evidence import evidence_as_served, evidence_of_run
from wiring.workbook.profile import PROFILES


@pytest.fixture
def run(tmp_path, five):
    for name, artefact in five.items():
        (tmp_path / f"{name}.json").write_text(artefact.model_dump_json())
    return tmp_path


def test_each_figure_comes_from_its_artefact(run):
    evidence = evidence_of_run(run)
    assert evidence.setting.trained_layout == (0, 3, 31) and evidence.setting.steps == 5
    assert evidence.setting.served_layout == {"prefill": (3, 31, 59), "verify": (3, 31, 59), "draft_extend": None}
    assert [(a.name, a.asked, a.resolved) for a in evidence.arguments] == [("steps", 5, 5), ("draft_tokens", 8, 6)]
    assert {(a.side, a.text, a.accuracy) for a in evidence.accuracy} == {
        ("T", "held_out", 0.77),
        ("T", "served", 0.8),
        ("S", "served", 0.1),
    }
    assert [(a.accept_length, a.by_position) for a in evidence.acceptance] == [(1.06, (0.5,))]
    assert [(s.arm, s.tok_per_s, s.speedup) for s in evidence.speed] == [("plain", 16, None), ("draft", 14, 0.9)]


def test_the_cured_server_is_held_against_the_replay(run):
    evidence = evidence_of_run(run, cured=True)
    assert evidence.setting.served_layout["verify"] == (0, 3, 31)
    assert [(s.phase, s.slot, s.boundary, s.wanted, s.transform) for s in evidence.slots] == [
        ("verify", 0, 0, 0, "raw"),
        ("verify", 1, 3, 3, "raw"),
        ("verify", 2, 32, 31, "normed"),
    ]
    assert [a.accept_length for a in evidence.acceptance] == [2.8]
    assert [(s.arm, s.tok_per_s) for s in evidence.speed] == [("plain", 16), ("draft", 36)]


def test_a_run_that_is_not_finished_gives_what_it_has(run):
    for name in ("02_accuracy", "03_layout", "04_patch", "05_rebenchmark"):
        (run / f"{name}.json").unlink()
    assert [a.accept_length for a in evidence_of_run(run).acceptance] == [1.06]
    with pytest.raises(WiringError) as error:
        evidence_of_run(run, cured=True)
    assert (error.value.code, error.value.found) == ("fix-not-measured", "01_throughput")
    (run / "01_throughput.json").unlink()
    with pytest.raises(WiringError) as error:
        evidence_of_run(run)
    assert (error.value.code, error.value.found) == ("run-measured-nothing", "no artefact")


def test_lint_findings_of_notebook_03_change_the_verdict(five):
    """The same run without its lint findings: fault 3, which nothing else shows here, loses its support."""
    finding = Finding(3, "error", "draft/config.json", "fc takes 3 states, 2 ids are given", "Name three ids")
    scores = []
    for findings in ((finding,), ()):
        layout = five["03_layout"].model_copy(update={"lint_findings": findings})
        layout = LayoutDiff.model_validate_json(layout.model_dump_json())
        evidence = evidence_as_served(throughput=five["01_throughput"], layout=layout)
        assert [(one.kind, one.severity, one.where) for one in evidence.lint] == [
            (one.kind, one.severity, one.where) for one in findings
        ]
        scores.append({one.fault: one.score for one in diagnose(evidence).ranking}.get(3, 0.0))
    assert scores[0] > scores[1]


def test_a_planted_fault_that_only_lint_finds_is_named_by_the_verdict(tmp_path):
    tiny = PROFILES.parent / "tiny"
    draft = tmp_path / "draft"
    shutil.copytree(tiny / "draft", draft)
    tensors = load_file(draft / "model.safetensors")
    tensors["d2t"] = tensors["d2t"] + 10**6  # ids beyond the target's vocabulary
    save_file(tensors, draft / "model.safetensors")
    findings = lint(draft, tiny / "target", parse_engine(f"sglang=={SUPPORTED}"), trained=(0, 3, 31)).findings
    recorded = validate_artefact(RECORDED / "cpu-tiny", "03_layout")
    throughput = validate_artefact(RECORDED / "cpu-tiny", "01_throughput")
    with_lint, without = (
        diagnose(evidence_as_served(throughput=throughput, layout=recorded.model_copy(update={"lint_findings": one})))
        for one in (findings, ())
    )
    assert 9 in with_lint.named and 9 not in without.named


def test_a_throughput_alone_is_enough_to_begin(five):
    verdict = diagnose(evidence_as_served(throughput=five["01_throughput"]))
    assert verdict.check is not None


def test_the_recorded_run_has_the_wrong_layers_and_after_its_cure_no_fault():
    folder = RECORDED / "cpu-tiny"
    served = diagnose(evidence_of_run(folder))
    assert served.named[0] == 1 and set(served.named) <= {1, 21}
    assert served.ranking[0].fault == 1
    by_side = {p.by.side: p for p in served.predictions}
    assert by_side["T"].below is True and by_side["S"].below is not True
    assert any(said.symptom.name == "served_accuracy_low" for said in served.ranking[0].speaks_for)
    cured = diagnose(evidence_of_run(folder, cured=True))
    assert cured.named == () and cured.healthy
    looked = {(s.name, s.letter) for s in cured.symptoms if not s.present}
    assert {(name, "C") for name in ("other_boundaries_served", "state_transformed", "tokens_shifted")} <= looked
    (prediction,) = cured.predictions
    assert prediction.measured.length == pytest.approx(prediction.expected.value)  # the replay is exact
