"""Figures: pure functions from artefacts to plotly figures, one per claim. Small template, fixed sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from wiring.offline.report import AccuracyReport
from wiring.speed.cost import chain_length, round_line
from wiring.speed.results import ArmResult

if TYPE_CHECKING:
    from wiring.offline.matching import SlotMatch
    from wiring.offline.search import Ranked

GREY, RED, GREEN, BLUE, ORANGE = "#8c959f", "#cf222e", "#1a7f37", "#0969da", "#bc4c00"
ARM_COLOURS = {"plain": GREY, "as served": RED, "cured": GREEN}
_CYCLE = (BLUE, ORANGE, GREEN, RED, "#8250df", GREY)


def figure(title: str, x: str, y: str, *, height: int = 360, width: int = 760) -> go.Figure:
    """An empty figure in the workbook's look, with axis titles that carry the units."""
    axis = dict(showgrid=True, gridcolor="#eaeef2", zeroline=False, linecolor="#57606a", ticks="outside")
    layout = go.Layout(
        template="none", title=dict(text=title, x=0.02, font=dict(size=15)), height=height, width=width,
        margin=dict(l=70, r=20, t=60, b=60), xaxis=dict(title=x, **axis), yaxis=dict(title=y, **axis),
        legend=dict(orientation="h", y=1.08, x=1, xanchor="right"), font=dict(family="sans-serif", size=12),
    )  # fmt: skip
    return go.Figure(layout=layout)


def throughput(arms: Sequence[ArmResult], predicted: float | None = None) -> go.Figure:
    """Tokens per second of each arm, median and quartiles; `predicted` tok/s as a mark over the last arm."""
    fig = figure("Throughput, batch 1, temperature 0", "", "output tokens per second (median, quartiles)")
    for arm in arms:
        low, high = arm.tok_per_s_quartiles
        fig.add_bar(
            x=[arm.arm], y=[arm.tok_per_s], marker_color=ARM_COLOURS.get(arm.arm, BLUE), name=arm.arm, width=0.5,
            error_y=dict(type="data", symmetric=False, array=[high - arm.tok_per_s], arrayminus=[arm.tok_per_s - low]),
            text=[f"{arm.speedup:.2f}x"], textposition="inside", showlegend=False,
        )  # fmt: skip
    if predicted is not None:
        mark = dict(symbol="line-ew-open", size=46, color="black", line=dict(width=3))
        fig.add_scatter(x=[arms[-1].arm], y=[predicted], mode="markers", marker=mark, name="predicted")
    return fig


def speedups(ratios: Mapping[str, Sequence[float]]) -> go.Figure:
    """Speed-up prompt by prompt; the line at 1 is no draft at all."""
    fig = figure("Speed-up over plain decoding, prompt by prompt", "prompt", "rate / plain rate on the same prompt")
    for name, values in ratios.items():
        fig.add_scatter(
            x=list(range(1, len(values) + 1)), y=list(values), mode="markers+lines", name=name,
            marker_color=ARM_COLOURS.get(name, BLUE),
        )  # fmt: skip
    fig.add_hline(y=1, line_dash="dash", line_color=GREY)
    return fig


def accuracy_by_depth(rows: Mapping[str, AccuracyReport]) -> go.Figure:
    """Accuracy of the draft at each TTT step under several layouts and controls, with 95 % intervals."""
    fig = figure(
        "The draft alone: accuracy by depth", "depth (TTT step)", "accuracy, out-of-vocabulary counts as wrong"
    )
    for (name, row), colour in zip(rows.items(), _CYCLE * 3, strict=False):
        y = [d.accuracy for d in row.depths]
        error = dict(
            type="data", symmetric=False, array=[d.high - d.accuracy for d in row.depths],
            arrayminus=[d.accuracy - d.low for d in row.depths],
        )  # fmt: skip
        fig.add_scatter(
            x=[d.depth for d in row.depths], y=y, error_y=error, mode="lines+markers", name=name, marker_color=colour
        )
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return fig


def similarity_map(
    phases: Mapping[str, Sequence[SlotMatch]], trained: Sequence[int], title: str = "Which boundary is in each slot"
) -> go.Figure:
    """Every served slot against every boundary: colour is log10 of the median relative error, dark where they agree.

    `phases` maps a phase's name to its slots' matches. A filled square marks the boundary that the slot was decided to
    hold, an open circle the one that it was trained on.
    """
    rows = [
        (f"{phase}, slot {m.slot}" + (f" ({m.seen_as})" if m.seen_as else ""), m)
        for phase, slots in phases.items()
        for m in slots
    ]
    names = [name for name, _ in rows]
    fig = figure(title, "boundary of the reference", "", height=150 + 32 * len(rows))
    fig.add_heatmap(
        z=[[round(math.log10(max(e, 1e-4)), 2) if e < math.inf else None for e in m.errors] for _, m in rows],
        x=list(rows[0][1].boundaries) if rows else [], y=names, zmin=-3, zmax=0, colorscale="Viridis", ygap=2,
        colorbar=dict(title=dict(text="log10 error"), thickness=12),
        hovertemplate="%{y}<br>boundary %{x}<br>log10 error %{z}<extra></extra>",
    )  # fmt: skip
    held = [(m.boundary, name) for name, m in rows if m.boundary is not None]
    wanted = [(trained[m.slot], name) for name, m in rows if m.slot < len(trained)]
    marks = {"served": (held, dict(symbol="square", size=9, color=RED)),
             "trained": (wanted, dict(symbol="circle-open", size=17, color=GREEN, line=dict(width=3)))}  # fmt: skip
    for label, (points, marker) in marks.items():
        fig.add_scatter(x=[b for b, _ in points], y=[n for _, n in points], mode="markers", marker=marker, name=label)
    fig.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    fig.update_xaxes(showgrid=False)
    return fig


def ranking(rows: Sequence[Ranked], trained: Sequence[int]) -> go.Figure:
    """Layouts from a search, best first: how much worse than the best, with 95 % intervals; green: the trained one."""
    fig = figure(
        "Which layout were the weights trained on?", "nats worse than the best (95 %)", "", height=150 + 26 * len(rows)
    )
    names = [", ".join(map(str, row.layout)) for row in rows]
    fig.add_scatter(
        x=[row.difference for row in rows], y=names, mode="markers", showlegend=False,
        marker=dict(size=9, color=[GREEN if row.layout == tuple(trained) else BLUE for row in rows]),
        error_x=dict(type="data", symmetric=False, array=[row.high - row.difference for row in rows],
                     arrayminus=[row.difference - row.low for row in rows]),
    )  # fmt: skip
    fig.update_yaxes(autorange="reversed", type="category", automargin=True)
    return fig


def layouts(rows: Mapping[str, Sequence[int | None]], trained: Sequence[int]) -> go.Figure:
    """Which boundary fills each slot, row by row; a cell is green where it is the trained one."""
    names = list(rows)
    fig = figure("Boundary in each slot of fc", "slot", "", height=120 + 50 * len(names))
    right = [[1.0 if b == t else 0.0 for b, t in zip(rows[n], trained, strict=True)] for n in names]
    fig.add_heatmap(
        z=right, x=[f"slot {i}" for i in range(len(trained))], y=names, zmin=0, zmax=1, showscale=False, xgap=3, ygap=3,
        colorscale=[[0, "#ffcecb"], [1, "#aceebb"]], text=[[str(b) for b in rows[n]] for n in names],
        texttemplate="%{text}", hoverinfo="text",
    )  # fmt: skip
    fig.update_yaxes(autorange="reversed", automargin=True)
    return fig


def acceptance(series: Mapping[str, Sequence[float]]) -> go.Figure:
    """Share of rounds that accepted at least k drafts, for several sources."""
    fig = figure("Acceptance by position", "draft position k", "share of rounds that accepted at least k drafts")
    for (name, values), colour in zip(series.items(), _CYCLE * 3, strict=False):
        fig.add_scatter(
            x=list(range(1, len(values) + 1)), y=list(values), mode="lines+markers", name=name,
            marker_color=ARM_COLOURS.get(name, colour),
        )  # fmt: skip
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return fig


def speedup_by_steps(acceptance: float, round_costs: dict[int, float], top: int = 12) -> go.Figure:
    """Speed-up of chains of 1..`top` drafts, each right with probability `acceptance`; the prefill left out.

    Round costs lie on the line through the two measured settings (draft steps -> plain steps).
    """
    title = f"Speed-up by chain length, each draft right with probability {acceptance:.2f}"
    fig = figure(title, "draft steps", "accept length / price of a round in plain steps")
    steps = list(range(1, top + 1))
    y = [chain_length(acceptance, n) / round_line(round_costs, n) for n in steps]
    fig.add_scatter(x=steps, y=y, mode="lines+markers", marker_color=BLUE, name="predicted")
    fig.add_hline(y=1, line_dash="dash", line_color=GREY)
    fig.update_yaxes(rangemode="tozero")
    return fig
