"""The report shows the conclusions and the figures, and needs nothing from the network."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from wiring.diagnosis.verdict import Verdict
from wiring.errors import WiringError
from wiring.workbook import check
from wiring.workbook import open_page as browser
from wiring.workbook.case import RECORDED
from wiring.workbook.conclusions import conclude
from wiring.workbook.notebook_page import PANEL, PLOTLY, WIDGET, figures_in, notebook_html
from wiring.workbook.report import write_report
from wiring.workbook.run_notebooks import WORKBOOK
from wiring.workbook.workbook_run import NOTEBOOKS


class Page(HTMLParser):
    """What a browser would load from elsewhere, ids and links within, and the text by table row and list entry."""

    def __init__(self, html: str):
        super().__init__()
        self.loads, self.ids, self.links, self.rows, self.entries, self.inside = [], [], [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag == "li" and "ol" in self.inside:
            self.entries.append("")
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("td", "th", "ol", "li"):
            self.inside.append(tag)
        for name, value in attrs:
            if name in ("src", "data", "srcset") or (tag == "link" and name == "href"):
                self.loads.append(value)
            if name == "id":
                self.ids.append(value)
            if tag == "a" and name == "href" and value.startswith("#"):
                self.links.append(value[1:])

    def handle_endtag(self, tag):
        if tag in ("td", "th", "ol", "li"):
            self.inside.pop()

    def handle_data(self, data):
        if self.inside and self.inside[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif "li" in self.inside and "ol" in self.inside:
            self.entries[-1] += data


def book(*outputs, prose: str = "# Title"):
    return new_notebook(
        cells=[
            new_markdown_cell(prose, id="prose"),
            new_code_cell("show()", id="show", execution_count=1, outputs=list(outputs)),
        ]
    )


def figure(y) -> dict:
    return new_output(
        "display_data", {PLOTLY: json.loads(go.Figure(go.Scatter(y=y)).to_json()), "text/plain": "Figure()"}
    )


def stderr(text):
    return new_output("stream", name="stderr", text=text)


@pytest.fixture
def run(tmp_path, five):
    """A run folder with five artefacts, one check of which fails, and two executed notebooks."""
    folder = tmp_path / "toy & <case>"
    (folder / "notebooks").mkdir(parents=True)
    broken = check.at_most("accept length < 2", bound=2, actual=2.4)
    five["02_accuracy"] = five["02_accuracy"].model_copy(
        update={"conclusions": (*five["02_accuracy"].conclusions, broken)}
    )
    for name, artefact in five.items():
        (folder / f"{name}.json").write_text(artefact.model_dump_json())
    first = book(figure([1, 2, 3]), prose="# One\n[next](02_two.ipynb), [index](00_index.ipynb)")
    nbformat.write(first, folder / "notebooks" / "01_one.ipynb")
    widget = new_output("display_data", {WIDGET: {"model_id": "7"}, "text/plain": "IntSlider()"})
    outputs = (
        stderr("\x1b[31mfirst\n"),
        figure([4, 5]),
        figure([6]),
        widget,
        stderr("second <b>\n"),
        new_output("stream", name="stdout", text="plain words"),
    )
    second = book(*outputs, prose="# Two")
    second.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    nbformat.write(second, folder / "notebooks" / "02_two.ipynb")
    return folder


def body_of(html: str) -> str:
    return html[html.rindex("</head>") :]


def test_report_is_one_file_that_loads_nothing(run):
    path = write_report(run)
    assert path == run / "report.html"
    html = path.read_text()
    assert Page(html).loads == []
    assert not re.search(r"@import|url\(\s*['\"]?https?:", html[: html.index("<script>")])
    assert html.count("plotly.js v") == 1  # the library, embedded once
    assert body_of(html).count("Plotly.newPlot(") == 3


def test_report_holds_figures_outputs_and_no_dead_widget(run):
    body = body_of(write_report(run).read_text())
    assert body.index("of 6 checks fail.") < body.index("One<")
    assert len(re.findall(r'class="plotly-graph-div"', body)) == 3
    assert "plain words" in body
    assert "IntSlider" not in body
    assert "Figure()" not in body


BOX = "VBox(children=(HBox(children=(Text(value='', description='URL'…"
BAR = "Loading weights:   0%|          | 0/747 [00:00<?, ?it/s]"


@pytest.mark.parametrize("state", [{}, {WIDGET: {"model_id": "7"}}])  # saved without the widgets' state, and with it
def test_a_panel_becomes_a_sentence_and_a_progress_bar_nothing(tmp_path, state):
    path = tmp_path / "x.ipynb"
    panel = new_output("execute_result", {**state, "text/plain": BOX}, execution_count=1)
    bars = [new_output("display_data", {**state, "text/plain": text}) for text in (BAR, "0it [00:00, ?it/s]")]
    kept = new_output("execute_result", {"text/plain": "'a 50%| quantile'"}, execution_count=1)
    nbformat.write(book(*bars, panel, kept, prose="### Try it"), path)
    html = notebook_html(path)
    assert html.index("Try it") < html.index("<code>make lab</code>") and html.count(PANEL) == 1
    assert "VBox" not in html and "0/747" not in html and "0it" not in html and "50%| quantile" in html


def test_the_same_run_gives_the_same_bytes(run):
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def test_progress_is_folded_into_one_piece(run):
    body = body_of(write_report(run).read_text())
    assert "<summary>progress and warnings (2 lines)</summary><pre>first\nsecond &lt;b&gt;</pre>" in body
    assert "output_stderr" not in body


def test_five_conclusions_with_their_checks_stand_on_top(run):
    page = Page(body_of(write_report(run).read_text()))
    assert len(page.entries) == 5
    assert [entry[:2] for entry in page.entries] == ["01", "02", "03", "04", "05"]
    assert "14.0 tok/s with the draft as served against 16.0 without: 0.90x" in page.entries[0]
    assert "accept length of 1.06." in page.entries[0]
    assert "77 % under the trained layout (0, 3, 31), 5 % under the served layout (3, 31, 59)" in page.entries[1]
    assert "1 of 2 checks fail" in page.entries[1] and "✗✓" in page.entries[1]
    assert "Trained on one layout, served another." in page.entries[2]
    assert "Under the config cure verify feeds (0, 3, 31)" in page.entries[3]
    assert "5 of 5 rows hold the embedding" in page.entries[3] and "config, plugin; taken back" in page.entries[3]
    assert "36.0 tok/s, 2.20x plain decoding; predicted 2.10x" in page.entries[4]
    assert ["FAILS", "accept length < 2", "<= 2", "2.400"] in page.rows
    assert ["holds", "two", "1", "1"] in page.rows
    assert [row[0] for row in page.rows if row[0] in ("holds", "FAILS")][1:3] == ["FAILS", "holds"]
    assert ["", "plain", "as served", "cured"] in page.rows
    assert ["tokens / s", "16.0", "14.0", "36.0"] in page.rows
    assert ["predicted speed-up", "", "", "2.10"] in page.rows
    assert ["fed in prefill", "", "(3, 31, 59)", "(0, 3, 31)"] in page.rows


def test_conclusions_lead_to_the_notebooks_that_there_are(run):
    page = Page(body_of(write_report(run).read_text()))
    named = [link for link in page.links if link[0].isdigit()]  # the others are anchors of headings
    assert named == ["01_one", "02_two", "02_two"]  # two conclusions, and the first notebook's "next"
    assert set(named) <= set(page.ids)


def test_failing_checks_are_open_and_all_are_counted(run):
    body = body_of(write_report(run).read_text())
    assert body.count("<details open>") == 1
    assert "<b>1 of 6 checks fail.</b>" in body


def test_rates_of_two_measurements_are_told_apart_before_they_are_shown(run):
    body = body_of(write_report(run).read_text())
    told = body.index("The rates of 01 and of 05 (in the table) are two measurements")
    assert told < body.index("14.0 tok/s with the draft as served against 16.0 without")


def test_an_undone_proof_and_the_verdict_are_said(five):
    rest = dict(named=(), candidates=(), enough_evidence=True, next_check="")
    named = {key: Verdict(**rest, summary=text) for key, text in (("verdict", "Kind 1."), ("verdict_cured", "None."))}
    five["04_patch"] = five["04_patch"].model_copy(update={"undone": False})
    five["05_rebenchmark"] = five["05_rebenchmark"].model_copy(update=named)
    *_, patch, result = conclude(*five.values())
    assert "NOT taken back" in patch.finding
    assert result.finding.endswith("As served: Kind 1. Cured: None.")


def test_names_cannot_break_the_page(run):
    html = write_report(run).read_text()
    assert "<title>Report: toy &amp; &lt;case&gt;</title>" in html and "<h1>Report: toy &amp; &lt;case&gt;</h1>" in html


def test_paper_gets_what_the_screen_folds(run):
    html = write_report(run).read_text()
    printed = html[html.index("@media print") : html.index("</style>")]
    assert "break-inside:avoid" in printed and ".screen,.modebar{display:none!important}" in printed
    assert 'addEventListener("beforeprint"' in html and "d.open=true" in html


def test_the_report_of_the_recorded_run_is_small(tmp_path):
    folder = tmp_path / "cpu-tiny"
    folder.mkdir()
    for path in (RECORDED / "cpu-tiny").glob("0*.json"):
        shutil.copyfile(path, folder / path.name)
    path = write_report(folder, [NOTEBOOKS / f"{link.name}.ipynb" for link in WORKBOOK])
    html = path.read_text()
    assert 1_000_000 < path.stat().st_size < 8_000_000
    assert Page(html).loads == []
    drawn = body_of(html).count("Plotly.newPlot(")
    assert drawn == sum(len(figures_in(NOTEBOOKS / f"{link.name}.ipynb")) for link in WORKBOOK) >= 9
    assert len(Page(body_of(html)).entries) >= 5 and "checks hold." in html
    outputs = body_of(html).split('<input type="checkbox"')[1]
    tried = sum("".join((NOTEBOOKS / f"{link.name}.ipynb").read_text()).count("### Try it") for link in WORKBOOK)
    assert outputs.count(PANEL) == tried == 5 and "VBox(" not in outputs and "Loading weights" not in outputs


def test_formulas_become_mathml_and_code_stays(tmp_path):
    prose = (
        "Speed is $\\frac{a_i * b_i}{c}$ and\n\n$$t_{round} = t_{verify} + k * t_{draft}$$\n\n"
        "but `$HOME` and costs of 5$ stay.\n\n```\necho $PATH $HOME\n```"
    )
    path = tmp_path / "x.ipynb"
    nbformat.write(book(prose=prose), path)
    html = notebook_html(path)
    assert html.count("<math") == 2
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in html
    assert "<mfrac>" in html
    assert "FORMULA" not in html
    assert "$HOME" in html
    assert "echo $PATH $HOME" in re.sub("<[^>]+>", "", html)


def test_a_formula_that_cannot_be_read_is_shown_as_it_is(tmp_path):
    path = tmp_path / "x.ipynb"
    nbformat.write(book(prose="Broken $\\alpha_b_c$ here"), path)
    assert "<code>\\alpha_b_c</code>" in notebook_html(path)


def test_figures_go_by_the_names_of_their_cells(run):
    assert list(figures_in(run / "notebooks" / "02_two.ipynb")) == ["show", "show-2"]


def test_missing_and_invalid_files_are_refused(run):
    def refused(*notebooks):
        with pytest.raises(WiringError) as error:
            write_report(run, *notebooks)
        return error.value.code, Path(error.value.where.split(",")[0]).name

    assert refused([run / "notebooks" / "09_none.ipynb"]) == ("executed-notebook-unreadable", "09_none.ipynb")
    assert refused([]) == ("no-executed-notebook", "notebooks")
    (run / "03_layout.json").write_text("{")
    assert refused() == ("artefact-invalid", "03_layout.json")
    (run / "03_layout.json").unlink()
    assert refused() == ("artefact-missing", "03_layout.json")
    assert not (run / "report.html").exists()


def test_a_page_is_opened_or_its_place_is_said(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(asked.append(address)) or len(asked) == 1)
    for _ in range(2):
        browser.show(tmp_path / "a b.html")
    assert asked == [Path(tmp_path, "a b.html").as_uri()] * 2
    said = capsys.readouterr().out
    assert said == f"No browser could be started here. Open this file yourself: {tmp_path}/a b.html\n"
