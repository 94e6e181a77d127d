"""The evidence board: its sums are the verdict's scores, and taking evidence away takes away what rests on it."""

import html

import ipywidgets
import pandas as pd
import pytest
from panel_parts import inside

from wiring.diagnosis.evidence_file import read_evidence
from wiring.diagnosis.faults import KINDS
from wiring.diagnosis.verdict import diagnose
from wiring.figures import evidence_board as board
from wiring.figures.page import coded
from wiring.figures.speculation_calculator import EVIDENCE
from wiring.figures.verdict_table import verdict_table
from wiring.figures.widgets import evidence_board
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


def test_all_six_kinds_have_a_row_and_the_recorded_case_has_all_of_them(cases, verdict):
    table = board.kinds_of_evidence(cases["as served"], verdict)
    assert list(table.index) == list("LTSCPR") and (table["records"] > 0).all()
    assert (table["what would bring it"] == "").all()
    assert "other boundaries served" in table.loc["C", "symptoms there"]


def test_table_and_bars_of_a_verdict_leave_no_named_kind_out(cases, verdict):
    ranked = [one.kind for one in verdict.ranking]
    assert verdict.named == (1, 21) and ranked.index(21) >= 5
    table = verdict_table(verdict)
    assert list(table.index) == [*ranked[:5], 21] and list(table.index[table["named"]]) == [1, 21]
    assert list(board.ranking(verdict, rows=5).data[0].y)[5:] == ["21 arguments changed silently (named)"]
    assert "arguments changed" in table.loc[21, "for"] and not verdict_table(diagnose(cases["cured"])).size


def test_what_is_missing_says_which_command_would_bring_it():
    evidence = read_evidence(EVIDENCE / "case-study-cured.json")
    table = board.kinds_of_evidence(evidence, diagnose(evidence))
    assert table.loc["C", "records"] == 0 and "wiring layout PROFILE --capture" in table.loc["C", "what would bring it"]
    assert table.loc["T", "records"] == 2 and table.loc["R", "records"] == 2
    empty = board.kinds_of_evidence(Evidence(), diagnose(Evidence()))
    assert (empty["records"] == 0).all() and empty["what would bring it"].str.len().gt(0).all()


def test_the_bars_of_a_kind_add_up_to_its_score(verdict):
    speaks, against, together = board.ranking(verdict).data
    assert [a + b for a, b in zip(speaks.x, against.x, strict=True)] == pytest.approx(list(together.x), abs=0.02)
    assert speaks.y[0].startswith("1 ") and speaks.y[0].endswith("(named)")
    assert "bits" in board.ranking(verdict).layout.xaxis.title.text


def test_an_empty_ranking_is_a_sentence_without_axes(cases):
    for evidence, why in ((cases["cured"], "symptoms were looked for"), (Evidence(), "no evidence at all")):
        fig = board.ranking(diagnose(evidence))
        (said,) = fig.layout.annotations
        assert "No kind of fault has more evidence for it" in said.text and why in said.text
        assert len(fig.data) == 0 and not fig.layout.xaxis.visible and not fig.layout.yaxis.visible


def test_for_and_against_of_every_kind_is_what_the_verdict_counted(verdict):
    counted = {one.kind: one for one in verdict.ranking}
    for kind in KINDS:
        table = board.for_and_against(verdict, kind)
        assert set(table["speaks"]) <= {"for", "against"}
        if kind in counted:
            told = counted[kind]
            assert table["bits"].sum() == pytest.approx(told.score, abs=0.1)
            assert (table["speaks"] == "for").sum() == len(told.speaks_for)
        else:
            assert table["bits"].sum() <= 0.1  # else it would be ranked
    words = html.unescape(board.kind_in_words(verdict, 1))
    assert "named" in words and KINDS[1].remedy in words.replace("<code>", "`").replace("</code>", "`")
    assert "Check: " in words
    assert coded("press `a<b` & go") == "press <code>a&lt;b</code> &amp; go"


def test_all_25_kinds_can_be_chosen_best_first(verdict):
    kinds = board.by_rank(verdict)
    assert sorted(number for _, number in kinds) == list(range(1, 26))
    assert [number for _, number in kinds][: len(verdict.ranking)] == [one.kind for one in verdict.ranking]


def find(box, kind):
    return [widget for widget in inside(box) if isinstance(widget, kind)]


def tables(box):
    (output,) = find(box, ipywidgets.Output)
    return [one["data"]["text/plain"] for one in output.outputs]


def test_unticking_a_letter_takes_away_what_rests_on_it(cases, verdict):
    assert verdict.named == (1, 21)
    box = evidence_board(cases)
    words = box.children[2]
    assert "kind 21" in words.value
    lint = next(one for one in find(box, ipywidgets.Checkbox) if one.description.startswith("L:"))
    lint.value = False
    assert "kind 21" not in words.value and "set aside: L" in words.value and "Kind 1" in words.value
    lint.value = True
    assert "kind 21" in words.value and "set aside" not in words.value


def test_the_case_and_the_kind_are_chosen(cases):
    box = evidence_board(cases)
    (kind,), (case,) = find(box, ipywidgets.Dropdown), find(box, ipywidgets.ToggleButtons)
    assert kind.value == 1
    before = tables(box)
    kind.value = 21
    after = tables(box)
    assert after[:2] == before[:2] and after[2:] != before[2:] and "arguments" in after[2]
    case.value = "cured"
    assert "No fault is named" in box.children[2].value and tables(box)[0] != before[0]


def test_a_table_is_shown_as_a_table(cases, verdict):
    table = board.for_and_against(verdict, 1)
    assert isinstance(table, pd.DataFrame) and len(table)
    assert "Needs no server" in evidence_board(cases).children[-1].value
