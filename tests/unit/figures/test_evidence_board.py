"""The sums of the evidence board are the scores of the verdict; without some evidence, its faults disappear."""

import html

import ipywidgets
import pytest
from panel_parts import inside

from wiring.diagnosis.evidence_file import read_evidence
from wiring.diagnosis.fault_catalogue import FAULT_CATALOGUE
from wiring.diagnosis.verdict import diagnose
from wiring.figures import evidence_board as board
from wiring.figures import evidence_panel
from wiring.figures.speculation_calculator import EVIDENCE
from wiring.logs.evidence import Evidence
from wiring.workbook.artefacts import Accuracy, LayoutDiff, Patch, Rebenchmark, Throughput
from wiring.workbook.case import open_case
from wiring.workbook.gather_evidence import evidence_as_served, evidence_of_cured


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    case = open_case(profile="cpu-tiny", run=str(tmp_path_factory.mktemp("run")), measure="recorded")
    shapes = dict(
        throughput=("01_throughput", Throughput),
        accuracy=("02_accuracy", Accuracy),
        layout=("03_layout", LayoutDiff),
        rebenchmark=("05_rebenchmark", Rebenchmark),
    )
    parts = {name: case.read_recorded(*shape) for name, shape in shapes.items()}
    patch = case.read_recorded("04_patch", Patch)
    cured = evidence_of_cured(patch=patch, **{n: parts[n] for n in ("rebenchmark", "accuracy", "layout")})
    return {"as served": evidence_as_served(**parts), "cured": cured}


@pytest.fixture(scope="module")
def verdict(cases):
    return diagnose(cases["as served"])


def test_every_evidence_type_has_a_row_and_missing_ones_name_their_check(cases, verdict):
    table = board.evidence_table(cases["as served"], verdict)
    assert list(table.index) == list("LTSCPR") and (table["records"] > 0).all()
    assert (table["check that adds it"] == "").all()
    assert "other boundaries served" in table.loc["C", "symptoms present"]
    published = read_evidence(EVIDENCE / "case-study-cured.json")
    table = board.evidence_table(published, diagnose(published))
    assert table.loc["C", "records"] == 0 and "wiring layout PROFILE --capture" in table.loc["C", "check that adds it"]
    assert table.loc["T", "records"] == 2 and table.loc["R", "records"] == 2
    empty = board.evidence_table(Evidence(), diagnose(Evidence()))
    assert (empty["records"] == 0).all() and empty["check that adds it"].str.len().gt(0).all()


def test_table_and_bars_include_every_named_fault(cases, verdict):
    ranked = [one.fault for one in verdict.ranking]
    assert verdict.named == (1, 21) and ranked.index(21) >= 5
    table = board.verdict_table(verdict)
    assert list(table.index) == [*ranked[:5], 21] and list(table.index[table["named"]]) == [1, 21]
    assert list(board.fault_ranking(verdict, rows=5).data[0].y)[5:] == ["21 arguments changed silently (named)"]
    assert "arguments changed" in table.loc[21, "for"] and not board.verdict_table(diagnose(cases["cured"])).size


def test_the_bars_of_a_fault_add_up_to_its_score(verdict):
    pro, contra, total = board.fault_ranking(verdict).data
    assert [a + b for a, b in zip(pro.x, contra.x, strict=True)] == pytest.approx(list(total.x), abs=0.02)
    assert pro.y[0].startswith("1 ") and pro.y[0].endswith("(named)")
    assert "bits" in board.fault_ranking(verdict).layout.xaxis.title.text


def test_an_empty_ranking_is_a_text_without_axes(cases):
    texts = set()
    for evidence in (cases["cured"], Evidence()):
        fig = board.fault_ranking(diagnose(evidence))
        texts.add(fig.layout.annotations[0].text)
        assert len(fig.data) == 0 and not fig.layout.xaxis.visible and not fig.layout.yaxis.visible
    assert len(texts) == 2


def test_the_symptoms_of_every_fault_are_those_that_the_verdict_counted(verdict):
    counted = {one.fault: one for one in verdict.ranking}
    for fault in FAULT_CATALOGUE:
        table = board.symptom_table(verdict, fault)
        assert set(table["side"]) <= {"for", "against"}
        if fault in counted:
            assert table["bits"].sum() == pytest.approx(counted[fault].score, abs=0.1)
            assert (table["side"] == "for").sum() == len(counted[fault].speaks_for)
        else:
            assert table["bits"].sum() <= 0.1  # else it would be ranked
    words = html.unescape(board.fault_html(verdict, 1)).replace("<code>", "`").replace("</code>", "`")
    assert "named" in words and FAULT_CATALOGUE[1].remedy in words and str(FAULT_CATALOGUE[1].check) in words


def test_all_25_faults_can_be_chosen_best_first(verdict):
    faults = [number for _, number in board.faults_by_rank(verdict)]
    assert sorted(faults) == list(range(1, 26))
    assert faults[: len(verdict.ranking)] == [one.fault for one in verdict.ranking]


def find(box, widget_type):
    return [widget for widget in inside(box) if isinstance(widget, widget_type)]


def tables(box):
    (output,) = find(box, ipywidgets.Output)
    return [one["data"]["text/plain"] for one in output.outputs]


def test_clearing_a_letter_removes_the_faults_that_rest_on_it(cases, verdict):
    box = evidence_panel(cases)
    words, complete = box.children[2], board.verdict_html(verdict)
    assert complete in words.value
    lint = next(one for one in find(box, ipywidgets.Checkbox) if one.description.startswith("L:"))
    lint.value = False
    reduced = board.without_evidence(verdict, "L")
    assert reduced.named == (1,) and board.verdict_html(reduced) in words.value and "set aside: L" in words.value
    lint.value = True
    assert complete in words.value and "set aside" not in words.value


def test_the_case_and_the_fault_are_chosen(cases):
    box = evidence_panel(cases)
    (fault,), (case,) = find(box, ipywidgets.Dropdown), find(box, ipywidgets.ToggleButtons)
    assert fault.value == 1
    before = tables(box)
    fault.value = 21
    after = tables(box)
    assert after[:2] == before[:2] and after[2:] != before[2:] and "arguments" in after[2]
    case.value = "cured"
    assert board.verdict_html(diagnose(cases["cured"])) in box.children[2].value and tables(box)[0] != before[0]
