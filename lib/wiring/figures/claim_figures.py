"""One figure for each claim of the notebooks: functions from results to plotly figures with counting rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from wiring.accuracy.accuracy_report import AccuracyReport
from wiring.accuracy.counting import PRESETS
from wiring.bench.arm_results import ArmResult
from wiring.bench.measurement import RATE_RULE
from wiring.figures.plot_template import (
    ARM_COLORS,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SYMBOLS,
    VIOLET,
    add_line,
    area,
    captioned,
    figure,
    interval,
)

if TYPE_CHECKING:
    from wiring.capture.matching import SlotComparison
    from wiring.layout_search import RankedLayout

_SMALLEST_ERROR = 1e-3  # smaller relative errors have the same color


def arms_table(arms: Sequence[ArmResult]) -> pd.DataFrame:
    """Return requests, rate, speed-up, accept length, rounds and correct drafts of each arm as a table."""
    columns = ["arm", "requests", "tok_per_s", "speedup", "accept_length", "rounds", "correct_drafts"]
    return pd.DataFrame([{name: getattr(arm, name) for name in columns} for arm in arms]).round(3)


def throughput(
    arms: Sequence[ArmResult], predicted: float | None = None, rule: str = RATE_RULE, width: int = 760
) -> go.Figure:
    """Draw output tokens per second of each arm (median, quartiles); `predicted` tok/s is a mark on the last arm."""
    fig = figure("Throughput", "", "output tokens per second", width=width)
    for arm in arms:
        low, high = arm.tok_per_s_quartiles
        color = ARM_COLORS.get(arm.arm, PURPLE)
        fig.add_bar(
            x=[arm.arm],
            y=[arm.tok_per_s],
            marker=area(color),
            name=arm.arm,
            width=0.5,
            showlegend=False,
            error_y=interval([arm.tok_per_s], [low], [high], color=color, thickness=2),
            hovertext=[f"{arm.tok_per_s:.2f} tokens/s, {arm.requests} requests"],
            hoverinfo="text+name",
        )
    if predicted is not None:
        mark = dict(symbol="line-ew-open", size=60, color=INK, line=dict(width=3))
        fig.add_scatter(x=[arms[-1].arm], y=[predicted], mode="markers", marker=mark, name="predicted")
    fig.update_xaxes(tickvals=[arm.arm for arm in arms], ticktext=[f"{arm.arm}<br>{arm.speedup:.2f}x" for arm in arms])
    fig.update_yaxes(rangemode="tozero")
    counted = "Bars: median over requests, whiskers: quartiles. Factor: median over prompts of rate / plain rate."
    return captioned(fig, f"{counted}<br>Rate: {rule}.")


def speedups(ratios: Mapping[str, Sequence[float]]) -> go.Figure:
    """Draw the speed-up of each arm by prompt; the dashed line at 1 is decoding without a draft."""
    fig = figure("Speed-up over plain decoding, prompt by prompt", "prompt", "rate / plain rate on the same prompt")
    for (name, values), symbol in zip(ratios.items(), SYMBOLS * 3, strict=False):
        add_line(fig, range(1, len(values) + 1), values, name, ARM_COLORS.get(name, PURPLE), symbol)
    fig.add_hline(y=1, line_dash="dash", line_color=INK)
    fig.update_xaxes(dtick=1)
    fig.update_yaxes(rangemode="tozero")
    return captioned(fig, f"Repeats of a prompt are averaged; below the line the draft costs time. Rate: {RATE_RULE}.")


def accuracy_by_depth(rows: Mapping[str, AccuracyReport]) -> go.Figure:
    """Draw accuracy by depth (TTT step) under several layouts and controls, with 95 % intervals.

    A name that begins with "trained" or "served" gets the color of that layout; all others are controls, dotted.
    """
    fig = figure("The draft alone: accuracy by layout and depth", "depth (TTT step)", "accuracy (share of rows)")
    controls = iter((BLUE, PURPLE, GREY, VIOLET) * 3)
    for (name, row), symbol in zip(rows.items(), SYMBOLS * 3, strict=False):
        color = {"trained": GREEN, "served": RED}.get(name.partition(" ")[0])
        accuracies = [d.accuracy for d in row.depths]
        error = interval(accuracies, [d.low for d in row.depths], [d.high for d in row.depths])
        dash = "solid" if color else "dot"
        depths = [d.depth for d in row.depths]
        add_line(fig, depths, accuracies, name, color or next(controls), symbol, dash, error_y=error)
    fig.update_layout(margin_t=95, height=400)  # the legend takes two lines
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    rules = dict.fromkeys(PRESETS[row.rule].describe if row.rule in PRESETS else row.rule for row in rows.values())
    return captioned(fig, "<br>".join(["Intervals: 95 %, bootstrap over documents; dotted: controls.", *rules]))


def similarity_map(phases: Mapping[str, Sequence[SlotComparison]], trained: Sequence[int]) -> go.Figure:
    """Draw the relative error of every served slot against every boundary of the reference as a heat map.

    `phases` maps the name of a phase to the matches of its slots. Colors are log10 of the median relative error, dark
    for equal states. A square marks the boundary that the slot holds, a ring the one that it was trained on.
    """
    rows = [
        (f"{phase}, slot {m.slot}" + (f" ({m.seen_as})" if m.seen_as else ""), m)
        for phase, slots in phases.items()
        for m in slots
    ]
    fig = figure(
        "Which boundary is in each slot",
        "boundary of the reference (decoder layers passed)",
        "",
        height=160 + 32 * len(rows),
    )
    fig.add_heatmap(
        z=[
            [round(math.log10(max(e, 0.1 * _SMALLEST_ERROR)), 2) if e < math.inf else None for e in m.errors]
            for _, m in rows
        ],
        x=list(rows[0][1].boundaries) if rows else [],
        y=[name for name, _ in rows],
        zmin=math.log10(_SMALLEST_ERROR),
        zmax=0,
        colorscale="Cividis",
        ygap=2,
        hovertemplate="%{y}<br>boundary %{x}<br>log10 error %{z}<extra></extra>",
        colorbar=dict(
            title=dict(text="relative<br>error"),
            thickness=12,
            outlinewidth=0,
            tickvals=[-3, -2, -1, 0],
            ticktext=["0.001", "0.01", "0.1", "1"],
        ),
    )
    held = [(m.boundary, name) for name, m in rows if m.boundary is not None]
    wanted = [(trained[m.slot], name) for name, m in rows if m.slot < len(trained)]
    square = dict(symbol="square", size=10, color=RED, line=dict(width=2, color="white"))
    halo = dict(symbol="circle-open", size=17, color="white", line=dict(width=6))
    for name, points, marker in (
        ("served", held, square),
        ("", wanted, halo),
        ("trained", wanted, halo | dict(color=GREEN, line=dict(width=3))),
    ):
        x, y = [boundary for boundary, _ in points], [row for _, row in points]
        hover = None if name else "skip"
        fig.add_scatter(x=x, y=y, mode="markers", marker=marker, name=name, showlegend=bool(name), hoverinfo=hover)
    _rows_downward(fig, showgrid=False)
    return captioned(
        fig,
        "Color: median over rows of ||served - reference|| / ||reference|| with the shift and transform that fit the "
        "slot best. Square: the boundary that the slot holds; ring: the one that it was trained on.",
    )


def ranking(rows: Sequence[RankedLayout], trained: Sequence[int]) -> go.Figure:
    """Draw the layouts of a search, best first, by their distance from the best (95 % intervals); diamond: trained."""
    title, height = "Which layout were the weights trained on?", 160 + 26 * len(rows)
    fig = figure(title, "nats per row worse than the best", "layout", height=height)
    right = [row.layout == tuple(trained) for row in rows]
    differences = [row.difference for row in rows]
    fig.add_scatter(
        x=differences,
        y=[", ".join(map(str, row.layout)) for row in rows],
        mode="markers",
        showlegend=False,
        marker=dict(
            size=[11 if one else 8 for one in right],
            color=[GREEN if one else BLUE for one in right],
            symbol=["diamond" if one else "circle" for one in right],
            opacity=1,
        ),
        error_x=interval(differences, [row.low for row in rows], [row.high for row in rows], color=INK),
    )
    _rows_downward(fig, type="category")
    return captioned(
        fig,
        "Cross-entropy of the draft's first step against the target's own choice, minus that of the best layout on "
        "the same rows; bars: 95 % intervals over documents. Diamond: the trained layout of the profile.",
    )


def layouts(rows: Mapping[str, Sequence[int | None]], trained: Sequence[int]) -> go.Figure:
    """Draw the boundary in each slot as a table with one row per layout; green: the trained boundary, else orange."""
    fig = figure("Boundary in each slot of fc", "", "", height=130 + 50 * len(rows))
    fig.add_heatmap(
        z=[[float(b == t) for b, t in zip(row, trained, strict=True)] for row in rows.values()],
        x=[f"slot {i}" for i in range(len(trained))],
        y=list(rows),
        zmin=0,
        zmax=1,
        showscale=False,
        xgap=3,
        ygap=3,
        colorscale=[[0, ORANGE], [1, GREEN]],
        text=[["?" if b is None else str(b) for b in row] for row in rows.values()],
        texttemplate="%{text}",
        textfont=dict(color="black", size=14),
        hoverinfo="text",
    )
    _rows_downward(fig, showgrid=False)
    return captioned(
        fig,
        "Boundary b: the state after b decoder layers, not normalized; 0 is the embedding. Green: the trained one, "
        "orange: another, ?: not decided.",
        below=32,
    )


def acceptance(series: Mapping[str, Sequence[float]]) -> go.Figure:
    """Draw the share of rounds that accepted at least k drafts; a series that is no measured arm is dashed."""
    fig = figure("Acceptance by position", "draft position k", "share of rounds that accepted k or more")
    predicted = iter((PURPLE, GREY, VIOLET) * 6)
    for (name, values), symbol in zip(series.items(), SYMBOLS * 3, strict=False):
        x = range(1, len(values) + 1)
        if name in ARM_COLORS:
            add_line(fig, x, values, name, ARM_COLORS[name], symbol)
        else:
            add_line(fig, x, values, name, next(predicted), f"{symbol}-open", "dash")
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return captioned(
        fig,
        "Solid lines: measured in the server; dashed: predicted without it. A round is one verify step; its bonus "
        "token is not counted, and a position counts only if all positions before it were accepted.",
    )


def _rows_downward(fig: go.Figure, showgrid: bool | None = None, **y_axis: Any) -> None:
    """Draw the first row at the top, with room for the row names."""
    fig.update_yaxes(autorange="reversed", automargin=True, showgrid=showgrid, **y_axis)
    fig.update_xaxes(showgrid=showgrid)
