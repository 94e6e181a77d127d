"""`report.html` of a run: the verdict on top, the executed notebooks below, everything in one file, offline.

nbconvert's own pages load MathJax, require.js and widgets from the network, and show no plotly figure. Here
each plotly output becomes HTML over one embedded plotly.js, formulas become MathML, widgets are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from wiring.errors import WiringError
from wiring.files import notebook as files_notebook
from wiring.files.atomic import write_text

if TYPE_CHECKING:
    from nbformat import NotebookNode

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
# Code first, so that a dollar sign in it is left alone; then display and inline formulas.
_MATH = re.compile(r"```.*?```|`[^`\n]*`|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)", re.S)
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1f2328;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.25} section{border-top:2px solid #d0d7de;margin-top:3rem}
table{border-collapse:collapse;margin:1rem 0;font-size:.92rem} th,td{border:1px solid #d0d7de;padding:.3rem .6rem}
th{background:#f6f8fa;text-align:left} td.number{text-align:right;font-variant-numeric:tabular-nums}
tr.holds td:first-child{color:#1a7f37} tr.fails td{background:#ffebe9} tr.fails td:first-child{color:#cf222e}
pre{overflow-x:auto;font-size:.85rem;line-height:1.4;margin:.3rem 0} .highlight,details pre{background:#f6f8fa}
.highlight{padding:.1rem .7rem;border-radius:6px}
.prompt{display:none} .output_stderr{color:#9a6700} img{max-width:100%}
a.anchor-link{display:none}
"""
_NUMBERS = (
    ("tokens / s", "tok_per_s", "{:.1f}"),
    ("speed-up", "speedup", "{:.2f}"),
    ("predicted speed-up", "predicted_speedup", "{:.2f}"),
    ("accept length", "accept_length", "{:.2f}"),
)


def write_report(run: Path, notebooks: Sequence[Path] | None = None) -> Path:
    """Write run/report.html from run/summary.json and the executed notebooks (default: all in run/notebooks).

    Raises WiringError where the summary or a notebook is missing or cannot be read.
    """
    import plotly.offline
    from pygments.formatters import HtmlFormatter

    summary = _read_summary(run / "summary.json")
    paths = sorted((run / "notebooks").glob("*.ipynb")) if notebooks is None else list(notebooks)
    if not paths:
        raise WiringError("there is no executed notebook to report", where=run / "notebooks")
    sections = [(path.stem, notebook_html(path)) for path in paths]
    plotly_js = plotly.offline.get_plotlyjs()
    script = f"<script>{plotly_js}</script>" if any("Plotly.newPlot" in body for _, body in sections) else ""
    case = escape(str(summary.get("case", run.name)))
    contents = "".join(f'<li><a href="#{escape(name)}">{escape(name)}</a></li>' for name, _ in sections)
    bodies = "".join(f'<section id="{escape(name)}">{body}</section>' for name, body in sections)
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Report: {case}</title>'
        f"<style>{_STYLE}{HtmlFormatter().get_style_defs('.highlight')}</style>{script}</head><body>"
        f"<h1>Report: {case}</h1>{verdict_html(summary)}<h2>Notebooks</h2><ol>{contents}</ol>{bodies}</body></html>\n"
    )
    return write_text(run / "report.html", page)


def _read_summary(path: Path) -> dict:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WiringError(
            "there is no summary to report", where=path, found=error.strerror, remedy="Run the chain to its end first"
        ) from error
    except ValueError as error:
        raise WiringError("the summary is not JSON", where=path, found=str(error)) from error
    if not isinstance(summary, dict):
        raise WiringError("the summary is not an object", where=path, found=type(summary).__name__)
    return summary


def verdict_html(summary: Mapping) -> str:
    """The verdict table: every conclusion with what was expected and found, then the headline figures."""
    conclusions = sorted(summary.get("conclusions", ()), key=lambda row: row["holds"])  # what fails comes first
    failing = sum(not row["holds"] for row in conclusions)
    told = (
        f"{failing} of {len(conclusions)} conclusions fail." if failing else f"All {len(conclusions)} conclusions hold."
    )
    rows = "".join(
        f'<tr class="{"holds" if row["holds"] else "fails"}"><td>{"holds" if row["holds"] else "FAILS"}</td>'
        + "".join(f"<td>{escape(str(row[key]))}</td>" for key in ("claim", "expected", "actual"))
        + "</tr>"
        for row in conclusions
    )
    table = f"<table><tr><th></th><th>claim</th><th>expected</th><th>actual</th></tr>{rows}</table>"
    return f"<h2>Verdict</h2><p><b>{told}</b></p>{_figures_html(summary)}{table}"


def _figures_html(summary: Mapping) -> str:
    arms = [(title, summary[key]) for title, key in _ARMS if isinstance(summary.get(key), Mapping)]
    if not arms:
        return ""
    head = "".join(f"<th>{title}</th>" for title, _ in arms)
    lines = []
    for title, key, form in _NUMBERS:
        if any(key in arm for _, arm in arms):
            cells = [form.format(arm[key]) if isinstance(arm.get(key), (int, float)) else "" for _, arm in arms]
            lines.append((title, cells))
    for phase in ("prefill", "verify"):
        layouts = [(arm.get("layout") or {}).get(phase) for _, arm in arms]
        if any(layouts):
            cells = [f"({', '.join(map(str, layout))})" if layout else "" for layout in layouts]
            lines.append((f"boundaries served, {phase}", cells))
    body = "".join(
        f"<tr><th>{title}</th>" + "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>"
        for title, cells in lines
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


_ARMS = (("plain", "baseline"), ("EAGLE-3 as served", "as_served"), ("EAGLE-3 cured", "cured"))


def notebook_html(path: Path) -> str:
    """The body of one executed notebook as HTML that needs nothing from outside but plotly.js on the page."""
    nbformat = files_notebook.nbformat()
    from nbconvert import HTMLExporter

    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise WiringError(
            "the executed notebook cannot be read", where=path, found=str(error).splitlines()[0]
        ) from error
    notebook.metadata.pop("widgets", None)
    formulas: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _take_math(cell.source, formulas)
        elif cell.cell_type == "code":
            cell.outputs = [output for output in map(_offline, cell.outputs) if output is not None]
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    return re.sub(r"FORMULA(\d+)END", lambda match: formulas[int(match[1])], body)


def _offline(output: NotebookNode) -> NotebookNode | None:
    """A plotly output as HTML; a widget's as nothing, because it is dead without a kernel."""
    data = output.get("data", {})
    if WIDGET in data:
        return None
    if PLOTLY in data:
        import plotly.io

        data["text/html"] = plotly.io.to_html(data[PLOTLY], include_plotlyjs=False, full_html=False, validate=False)
    return output


def _take_math(source: str, formulas: list[str]) -> str:
    """Put a word in the place of each formula (Markdown would read its stars and underscores), keep its MathML."""

    def keep(match: re.Match) -> str:
        formula = match["display"] or match["inline"]
        if formula is None:
            return match[0]
        formulas.append(_mathml(formula, "block" if match["display"] else "inline"))
        return f"FORMULA{len(formulas) - 1}END"

    return _MATH.sub(keep, source)


def _mathml(formula: str, display: str) -> str:
    import latex2mathml.converter

    try:
        return latex2mathml.converter.convert(formula.strip(), display=display)
    except Exception:  # whatever a formula trips over, its source is readable
        return f"<code>{escape(formula)}</code>"
