"""`wiring report` writes the report again, and on request shows it and draws its figures into files."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from wiring.figures.plot_template import figure
from wiring.workbook.notebook_page import PLOTLY
from wiring.workbook.run_folder import RunFolder

RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "cpu-tiny"


@pytest.fixture
def report(tmp_path, monkeypatch, wiring_call):
    """Call `wiring report toy ...` on a run with one figure; what the writing itself does is left out."""
    run = RunFolder(tmp_path / "runs" / "toy")
    run.create()
    run.sign(tmp_path / "toy.yaml", {})
    (run.path / "summary.json").write_text(json.dumps({"conclusions": []}))
    (run.path / "notebooks").mkdir()
    drawn = new_output("display_data", {PLOTLY: json.loads(figure("t", "x", "y").to_json())})
    book = new_notebook(cells=[new_code_cell("draw()", id="ladder", outputs=[drawn])])
    nbformat.write(book, run.output("05_rebenchmark"))
    monkeypatch.setattr("wiring.workbook.workbook_run.write_results", lambda folder: folder / "report.html")

    def call(*words):
        return (*wiring_call("report", "toy", "--runs", tmp_path / "runs", *words), run.path)

    return call


def test_the_report_is_shown_on_request(report, monkeypatch):
    asked = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(asked.append(address)) or True)
    assert report()[0] == 0 and asked == []
    status, out, _, run = report("--open")
    assert status == 0 and asked == [(run / "report.html").as_uri()] and "No browser" not in out


def test_a_recorded_run_is_told_from_one_that_is_not_there(wiring_call):
    before = {path.name: path.stat().st_mtime_ns for path in RECORDED.iterdir()}
    status, _, err = wiring_call("report", RECORDED)
    assert status == 2 and "no such run" not in err and "executed notebooks" in err and "wiring diagnose" in err
    assert {path.name: path.stat().st_mtime_ns for path in RECORDED.iterdir()} == before


def test_figures_become_files_on_request(report, monkeypatch, tmp_path):
    monkeypatch.setattr("wiring.figures.export_images.find_browser", lambda: "/usr/bin/chromium")
    monkeypatch.setattr("plotly.io.write_images", lambda figures, paths, **_: paths[0].write_text("<svg/>"))
    status, out, _, run = report("--images", "svg")
    assert status == 0 and f"Figures: 1 in {run / 'figures'}" in out
    assert (run / "figures" / "05-ladder.svg").read_text() == "<svg/>"


def test_without_a_browser_the_report_is_written_and_the_figures_are_told_of(report, monkeypatch, tmp_path):
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    status, out, err, run = report("--images", "png")
    assert status == 2 and "report.html" in out and str(tmp_path / "none") in err
    assert not (run / "figures").exists()
