"""Two runs side by side as one HTML file: what differs, the figures row by row, the throughput of both."""

from __future__ import annotations

from html import escape
from pathlib import Path

import plotly.graph_objects as go
from pydantic import ValidationError

from wiring.bench.arm_results import ArmResult
from wiring.checkpoints.atomic import write_text
from wiring.figures import claim_figures as figures
from wiring.workbook.compare_runs import Comparison, Row, Run
from wiring.workbook.page import figure_html, page

_STYLE = """
.two{display:flex;flex-wrap:wrap;gap:1rem} tr.refused td{background:#fff1e5} td.why{font-size:.85rem}
"""
_ARMS = ("plain", "as_served", "cured")


def write_comparison(path: Path, comparison: Comparison, runs: tuple[Run, Run]) -> Path:
    """Write the comparison to `path`, with both runs' throughput where an artefact of this release holds it."""
    a, b = escape(comparison.a), escape(comparison.b)
    differing = "".join(
        f"<tr><th>{escape(one.what)}</th><td>{escape(one.a)}</td><td>{escape(one.b)}</td></tr>"
        for one in comparison.differences
    )
    known = f"<table><tr><th></th><th>{a}</th><th>{b}</th></tr>{differing}</table>" if differing else "<p>Nothing.</p>"
    rows = "".join(map(_row, comparison.rows))
    drawn = "".join(
        f"<div>{figure_html(one, f'throughput-{place}')}</div>" for place, one in enumerate(_throughput(runs))
    )
    body = (
        f"<h1>{a} and {b}</h1><h2>What is not the same</h2>{known}<p>{escape(comparison.note)}</p>"
        f"<h2>Side by side</h2><table><tr><th></th><th>{a}</th><th>{b}</th><th>change</th><th></th></tr>{rows}</table>"
        f'<div class="two">{drawn}</div>'
    )
    return write_text(path, page(f"{comparison.a} and {comparison.b}", body, _STYLE))


def _row(row: Row) -> str:
    why = f"not compared: {row.refused}" if row.refused else row.unchecked
    cells = "".join(f'<td class="number">{escape(text)}</td>' for text in (row.a, row.b, row.change))
    kind = ' class="refused"' if row.refused else ""
    return f'<tr{kind}><th>{escape(row.name)}</th>{cells}<td class="why">{escape(why)}</td></tr>'


def _throughput(runs: tuple[Run, Run]) -> list[go.Figure]:
    """The throughput of each run on one scale; none of a run whose artefact is of another release."""
    drawn = []
    for run in runs:
        try:
            arms = [ArmResult.model_validate(run.at(f"05_rebenchmark.{name}")) for name in _ARMS]
        except ValidationError:  # its figures stand in the table
            continue
        figure = figures.throughput(arms, rule=str(run.at("05_rebenchmark.rate_rule")), width=600)
        drawn.append(figure.update_layout(title_text=f"Throughput, {run.name}"))
    highest = max((arm.y[0] + arm.error_y.array[0] for figure in drawn for arm in figure.data), default=0)
    return [figure.update_yaxes(range=[0, 1.05 * highest]) for figure in drawn]
