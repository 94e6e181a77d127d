"""Write `report.html` of a run: five conclusions, then the executed notebooks, in one file that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from wiring.bench.measurement import Machine
from wiring.checkpoints.atomic import write_text
from wiring.errors import WiringError
from wiring.workbook.artefacts import ARTEFACTS
from wiring.workbook.case import validate_artefact
from wiring.workbook.check import Claim
from wiring.workbook.conclusions import Conclusion, conclude
from wiring.workbook.notebook_page import notebook_html
from wiring.workbook.page import claims_table, page, table
from wiring.workbook.summary import Summary, summarize

_STYLE = """
.first{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:0 2rem;align-items:start}
ol.conclusions{list-style:none;margin:0;padding:0} ol.conclusions li{border-left:5px solid #00795a;padding:0 0 0 .8rem}
ol.conclusions li+li{margin-top:.7rem} ol.conclusions li.fails{border-color:#b34700}
ol.conclusions h2{font-size:1.05rem;margin:0} ol.conclusions p{margin:.1rem 0} ol.conclusions a{color:inherit}
ol.conclusions summary{font-size:.9rem} summary .mark{letter-spacing:.1em}
@media (max-width:60rem){.first{display:block}}
section{border-top:2px solid #d0d7de;margin-top:2.5rem;max-width:60rem}
.highlight{padding:.1rem .7rem;border-radius:6px} .highlight,details pre{background:#f6f8fa}
.prompt,a.anchor-link{display:none} .output_area{overflow-x:auto} img{max-width:100%}
#code:not(:checked)~section .code_cell .input{display:none}
"""
_NUMBERS = (
    ("tokens / s", "tok_per_s", "{:.1f}"),
    ("speed-up", "speedup", "{:.2f}"),
    ("predicted speed-up", "predicted_speedup", "{:.2f}"),
    ("accept length", "accept_length", "{:.2f}"),
)
_APART = "The rates of 01 and of 05 (in the table) are two measurements: compare a rate within its own notebook only."
_CODE = '<input type="checkbox" id="code" class="screen"><label for="code" class="screen"> show the code</label>'


def write_report(run: Path, notebooks: Sequence[Path] | None = None) -> Path:
    """Write run/report.html from the five artefacts and the executed notebooks (default: all in run/notebooks).

    Raises WiringError where an artefact or a notebook is missing or cannot be read.
    """
    from pygments.formatters import HtmlFormatter

    artefacts = [validate_artefact(run, name) for name in ARTEFACTS]
    paths = sorted((run / "notebooks").glob("*.ipynb")) if notebooks is None else list(notebooks)
    if not paths:
        raise WiringError("no executed notebook to report", code="no-executed-notebook", where=run / "notebooks")
    summary, conclusions = summarize(run.name, *artefacts), conclude(*artefacts)
    first = first_screen(summary, conclusions, artefacts[-1].machine, {path.stem[:2]: path.stem for path in paths})
    bodies = "".join(f'<section id="{escape(path.stem)}">{notebook_html(path)}</section>' for path in paths)
    for path in paths:  # "Next: ..." leads on within the page
        bodies = bodies.replace(f'href="{quote(path.name)}"', f'href="#{escape(path.stem)}"')
    style = _STYLE + HtmlFormatter().get_style_defs(".highlight")
    return write_text(run / "report.html", page(f"Report: {run.name}", f"{first}{_CODE}{bodies}", style))


def first_screen(
    summary: Summary, conclusions: Sequence[Conclusion], machine: Machine, sections: dict[str, str]
) -> str:
    """Return the first screen of the report: each conclusion with its checks, and the figures of the arms.

    `sections`: the id on the page by a conclusion's number.
    """
    failing, checks = sum(one.failing for one in conclusions), sum(len(one.checks) for one in conclusions)
    told = f"{failing} of {checks} checks fail." if failing else f"All {checks} checks hold."
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    measured = f"Measured on {machine.date}, {machine.processor}, {machine.cores} cores; {versions}"
    return (
        f"<h1>Report: {escape(summary.case)}</h1>"
        f'<p><b>{told}</b> <span class="quiet">{escape(measured)}. {_APART}</span></p>'
        f'<div class="first"><ol class="conclusions">{"".join(_entry(one, sections) for one in conclusions)}</ol>'
        f"<aside>{_arms_table(summary)}</aside></div>"
    )


def _entry(one: Conclusion, sections: dict[str, str]) -> str:
    question = escape(one.question)
    if one.number in sections:
        question = f'<a href="#{escape(sections[one.number])}">{question}</a>'
    marks = "".join(map(_mark, sorted(one.checks, key=lambda check: check.holds)))
    total = len(one.checks)
    told = f"{one.failing} of {total} checks fail" if one.failing else f"{total} of {total} checks hold"
    kind = "fails" if one.failing else "holds"
    return (
        f'<li class="{kind}"><h2>{one.number} {question}</h2><p>{escape(one.finding)}</p>'
        f'<details{" open" if one.failing else ""}><summary><span class="mark">{marks}</span> {told}</summary>'
        f"{claims_table(one.checks)}</details></li>"
    )


def _mark(check: Claim) -> str:
    told = escape(f"{check.claim}: expected {check.expected}, found {check.actual}")
    return f'<span title="{told}">{"✓" if check.holds else "✗"}</span>'


def _arms_table(summary: Summary) -> str:
    arms = {"plain": summary.baseline, "as served": summary.as_served, "cured": summary.cured}
    rows = []
    for title, key, form in _NUMBERS:
        values = [getattr(arm, key, None) for arm in arms.values()]
        rows.append((title, *("" if value is None else form.format(value) for value in values)))
    for phase in ("prefill", "verify"):
        layouts = [getattr(getattr(arm, "layout", None), phase, None) for arm in arms.values()]
        rows.append((f"fed in {phase}", *("" if layout is None else str(layout) for layout in layouts)))
    return table(rows, ("", *arms))
