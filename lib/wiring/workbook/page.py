"""Build a self-contained HTML page: style, print view, tables, and plotly.js where it has figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from wiring.workbook.check import Claim

_DRAWN = "Plotly.newPlot"
_STYLE = """
:root{color-scheme:light}
body{font:16px/1.45 system-ui,sans-serif;color:#1f2328;background:#fff;max-width:78rem;margin:1rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.25} h1{margin:.2rem 0} p{margin:.4rem 0}
table{border-collapse:collapse;margin:.6rem 0;font-size:.9rem}
th,td{border:1px solid #d0d7de;padding:.2rem .5rem;vertical-align:top}
th{background:#f6f8fa;text-align:left} td.number{text-align:right;font-variant-numeric:tabular-nums}
.holds .mark{color:#00795a} .fails .mark{color:#b34700} tr.fails td{background:#fff1e5}
.quiet{color:#59636e;font-size:.9rem} pre{overflow-x:auto;font-size:.85rem;line-height:1.4;margin:.3rem 0}
summary{cursor:pointer}
"""
# Folded parts are opened for paper by a line of script: no browser prints what a closed <details> holds.
_PRINT = """
@media print{
@page{margin:12mm}
body{font-size:10pt;max-width:none;margin:0;padding:0}
a{color:inherit;text-decoration:none} .screen,.modebar{display:none!important} summary{list-style:none}
h1,h2,h3{break-after:avoid} tr,figure,.plotly-graph-div,.highlight{break-inside:avoid}
section{break-before:page} pre{white-space:pre-wrap} .plotly-graph-div{zoom:.85}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
_UNFOLD = (
    '<script>addEventListener("beforeprint",()=>document.querySelectorAll("details").forEach(d=>d.open=true))</script>'
)


def coded(text: str) -> str:
    """Return text as HTML; text in backticks becomes code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def page(title: str, body: str, style: str = "") -> str:
    """Return a whole page around `body`; plotly.js (5 MB) is included only where `body` has a figure."""
    script = ""
    if _DRAWN in body:
        import plotly.offline

        script = f"<script>{plotly.offline.get_plotlyjs()}</script>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}{_PRINT}</style>{script}{_UNFOLD}</head>"
        f"<body>{body}</body></html>\n"
    )


def figure_html(figure: go.Figure | Mapping, name: str) -> str:
    """Return an interactive figure that uses the page's plotly.js; `name` is its id."""
    import plotly.io

    return plotly.io.to_html(
        figure, config={"displaylogo": False}, include_plotlyjs=False, full_html=False, validate=False, div_id=name
    )


def table(rows: Iterable[Iterable[str]], head: Iterable[str]) -> str:
    """Return a table of texts; every cell after the first of a row is a number."""
    lines = ("".join(_cell(text, place) for place, text in enumerate(row)) for row in rows)
    heads = "".join(f"<th>{escape(text)}</th>" for text in head)
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(text: str, place: int) -> str:
    return f'<td class="number">{escape(text)}</td>' if place else f"<th>{escape(text)}</th>"


def claims_table(claims: Iterable[Claim]) -> str:
    """Return a table of claims with expected and actual values; failing claims come first."""
    rows = "".join(
        f'<tr class="{"holds" if claim.holds else "fails"}"><td class="mark">{"holds" if claim.holds else "FAILS"}</td>'
        + "".join(f"<td>{escape(text)}</td>" for text in (claim.claim, claim.expected, claim.actual))
        + "</tr>"
        for claim in sorted(claims, key=lambda claim: claim.holds)
    )
    return f"<table><tr><th></th><th>claim</th><th>expected</th><th>actual</th></tr>{rows}</table>"
