"""The report shows the verdict and the figures, and needs nothing from the network."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import nbformat
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from wiring.errors import WiringError
from wiring.show.report import PLOTLY, WIDGET, notebook_html, verdict_html, write_report

SUMMARY = {
    "case": "toy <case>",
    "baseline": {"tok_per_s": 16.71},
    "as_served": {
        "tok_per_s": 15.04, "speedup": 0.9, "accept_length": 1.06, "layout": {"prefill": [3, 31, 59], "verify": None},
    },
    "cured": {
        "tok_per_s": 36.8, "speedup": 2.2, "predicted_speedup": 2.31, "accept_length": 2.8,
        "layout": {"prefill": [0, 3, 31], "verify": [0, 3, 31]},
    },
    "conclusions": [
        {"claim": "the draft is fine", "expected": "0.70 to 0.82", "actual": "0.76", "holds": True},
        {"claim": "accept length < 2", "expected": "<= 2", "actual": "2.4", "holds": False},
    ],
}  # fmt: skip


class Page(HTMLParser):
    """What a browser would load from elsewhere, and the text by tag."""

    def __init__(self, html: str):
        super().__init__()
        self.loads, self.tags, self.inside, self.rows = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside.append(tag)
        for name, value in attrs:
            if name in ("src", "data", "srcset") or (tag == "link" and name == "href"):
                self.loads.append(value)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside.pop()

    def handle_data(self, data):
        if self.inside and self.rows:
            self.rows[-1][-1] += data


def book(*outputs, prose: str = "# Title"):
    return new_notebook(
        cells=[new_markdown_cell(prose), new_code_cell("show()", execution_count=1, outputs=list(outputs))]
    )


def figure(y) -> dict:
    return new_output(
        "display_data", {PLOTLY: json.loads(go.Figure(go.Scatter(y=y)).to_json()), "text/plain": "Figure()"}
    )


@pytest.fixture
def run(tmp_path):
    """A run folder with a summary and two executed notebooks."""
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "notebooks").mkdir()
    nbformat.write(book(figure([1, 2, 3]), prose="# One"), tmp_path / "notebooks" / "01_one.ipynb")
    widget = new_output("display_data", {WIDGET: {"model_id": "7"}, "text/plain": "IntSlider()"})
    second = book(figure([4, 5]), widget, new_output("stream", name="stdout", text="plain words"), prose="# Two")
    second.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    nbformat.write(second, tmp_path / "notebooks" / "02_two.ipynb")
    return tmp_path


def test_report_is_one_file_that_loads_nothing(run):
    path = write_report(run)
    assert path == run / "report.html"
    html = path.read_text()
    page = Page(html)
    assert page.loads == []
    assert not re.search(r"@import|url\(\s*['\"]?https?:", html[: html.index("<script>")])
    assert html.count("plotly.js v") == 1  # the library, embedded once
    assert html.count("Plotly.newPlot(") >= 2
    assert len(html) < 8_000_000


def test_report_holds_figures_outputs_and_no_dead_widget(run):
    html = write_report(run).read_text()
    body = html[html.rindex("</style>") :]
    assert body.index("Verdict") < body.index("One</h1>") if "One</h1>" in body else "One" in body
    drawn = re.findall(r'class="plotly-graph-div"', body)
    assert len(drawn) == 2
    assert "plain words" in body
    assert "IntSlider" not in body
    assert "Figure()" not in body


def test_verdict_stands_on_top_with_every_conclusion():
    page = Page(verdict_html(SUMMARY))
    assert ["holds", "the draft is fine", "0.70 to 0.82", "0.76"] in page.rows
    assert ["FAILS", "accept length < 2", "<= 2", "2.4"] in page.rows
    assert ["", "plain", "EAGLE-3 as served", "EAGLE-3 cured"] in page.rows
    assert ["tokens / s", "16.7", "15.0", "36.8"] in page.rows
    assert ["predicted speed-up", "", "", "2.31"] in page.rows
    assert ["boundaries served, prefill", "", "(3, 31, 59)", "(0, 3, 31)"] in page.rows
    assert ["boundaries served, verify", "", "", "(0, 3, 31)"] in page.rows
    assert "1 of 2 conclusions fail" in verdict_html(SUMMARY)
    assert [row[0] for row in page.rows if row[0] in ("holds", "FAILS")] == ["FAILS", "holds"]
    assert "All 1 conclusions hold" in verdict_html({"conclusions": SUMMARY["conclusions"][:1]})


def test_names_cannot_break_the_page(run):
    assert "<title>Report: toy &lt;case&gt;</title>" in write_report(run).read_text()


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


def test_what_is_missing_is_told(run):
    (run / "summary.json").unlink()
    with pytest.raises(WiringError, match="there is no summary to report"):
        write_report(run)
    (run / "summary.json").write_text("[]")
    with pytest.raises(WiringError, match="not an object"):
        write_report(run)
    (run / "summary.json").write_text("{")
    with pytest.raises(WiringError, match="not JSON"):
        write_report(run)
    (run / "summary.json").write_text("{}")
    with pytest.raises(WiringError, match="cannot be read"):
        write_report(run, [run / "notebooks" / "09_none.ipynb"])
    assert not (run / "report.html").exists()
