"""Figures: pure functions from artefacts to plotly figures, one per claim, with the counting rule in the caption."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from wiring.accuracy.accuracy_report import AccuracyReport
from wiring.accuracy.counting import PRESETS
from wiring.bench.arm_results import ArmResult
from wiring.bench.measurement import RATE_RULE
from wiring.figures.plot_template import (
    ARM_COLOURS,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SYMBOLS,
    VIOLET,
    area,
    captioned,
    figure,
)

if TYPE_CHECKING:
    from wiring.capture.matching import SlotMatch
    from wiring.layout_search import Ranked

_FLOOR = 1e-3  # errors below are all "equal" to the eye


def throughput(
    arms: Sequence[ArmResult], predicted: float | None = None, rule: str = RATE_RULE, width: int = 760
) -> go.Figure:
    """Tokens per second of each arm, median and quartiles; `predicted` tok/s as a mark over the last arm."""
    fig = figure("Throughput", "", "output tokens per second", width=width)
    for arm in arms:
        low, high = arm.tok_per_s_quartiles
        colour = ARM_COLOURS.get(arm.arm, PURPLE)
        spread = dict(array=[high - arm.tok_per_s], arrayminus=[arm.tok_per_s - low], color=colour, thickness=2)
        fig.add_bar(
            x=[arm.arm],
            y=[arm.tok_per_s],
            marker=area(colour),
            name=arm.arm,
            width=0.5,
            showlegend=False,
            error_y=dict(type="data", symmetric=False, **spread),
            hovertext=[f"{arm.tok_per_s:.2f} tokens/s, {arm.requests} requests"],
            hoverinfo="text+name",
        )
    if predicted is not None:
        mark = dict(symbol="line-ew-open", size=60, color=INK, line=dict(width=3))
        fig.add_scatter(x=[arms[-1].arm], y=[predicted], mode="markers", marker=mark, name="predicted")
    names = [arm.arm for arm in arms]
    fig.update_xaxes(tickvals=names, ticktext=[f"{arm.arm}<br>{arm.speedup:.2f}x" for arm in arms])
    fig.update_yaxes(rangemode="tozero")
    counted = "Bars: median over requests, whiskers: quartiles. Factor: median over prompts of rate / plain rate."
    return captioned(fig, f"{counted}<br>Rate: {rule}.")


def speedups(ratios: Mapping[str, Sequence[float]]) -> go.Figure:
    """Speed-up prompt by prompt; the line at 1 is no draft at all."""
    fig = figure("Speed-up over plain decoding, prompt by prompt", "prompt", "rate / plain rate on the same prompt")
    for (name, values), symbol in zip(ratios.items(), SYMBOLS * 3, strict=False):
        fig.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=list(values),
            mode="markers+lines",
            name=name,
            marker=dict(color=ARM_COLOURS.get(name, PURPLE), symbol=symbol, size=9),
        )
    fig.add_hline(y=1, line_dash="dash", line_color=INK)
    fig.update_xaxes(dtick=1)
    fig.update_yaxes(rangemode="tozero")
    return captioned(fig, f"Repeats of a prompt are averaged; below the line the draft costs time. Rate: {RATE_RULE}.")


def accuracy_by_depth(rows: Mapping[str, AccuracyReport]) -> go.Figure:
    """Accuracy by layout: at each depth (TTT step), under several layouts and controls, with 95 % intervals.

    A name that begins with "trained" or "served" has that layout's colour; all others are controls, dotted.
    """
    fig = figure("The draft alone: accuracy by layout and depth", "depth (TTT step)", "accuracy (share of rows)")
    controls = iter((BLUE, PURPLE, GREY, VIOLET) * 3)
    for (name, row), symbol in zip(rows.items(), SYMBOLS * 3, strict=False):
        colour = {"trained": GREEN, "served": RED}.get(name.split()[0]) if name else None
        error = dict(
            type="data",
            symmetric=False,
            array=[d.high - d.accuracy for d in row.depths],
            arrayminus=[d.accuracy - d.low for d in row.depths],
        )
        fig.add_scatter(
            x=[d.depth for d in row.depths],
            y=[d.accuracy for d in row.depths],
            error_y=error,
            mode="lines+markers",
            name=name,
            marker=dict(color=colour or next(controls), symbol=symbol, size=8),
            line_dash="solid" if colour else "dot",
        )
    fig.update_layout(margin_t=95, height=400)  # the legend takes two lines
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    rules = dict.fromkeys(PRESETS[row.rule].describe if row.rule in PRESETS else row.rule for row in rows.values())
    return captioned(fig, "<br>".join(["Intervals: 95 %, bootstrap over documents; dotted: controls.", *rules]))


def similarity_map(
    phases: Mapping[str, Sequence[SlotMatch]], trained: Sequence[int], title: str = "Which boundary is in each slot"
) -> go.Figure:
    """Every served slot against every boundary: colour is log10 of the median relative error, dark where they agree.

    `phases` maps a phase's name to its slots' matches. A filled square marks the boundary that the slot was decided to
    hold, a ring the one that it was trained on.
    """
    rows = [
        (f"{phase}, slot {m.slot}" + (f" ({m.seen_as})" if m.seen_as else ""), m)
        for phase, slots in phases.items()
        for m in slots
    ]
    names = [name for name, _ in rows]
    fig = figure(title, "boundary of the reference (decoder layers passed)", "", height=160 + 32 * len(rows))
    fig.add_heatmap(
        z=[[round(math.log10(max(e, 0.1 * _FLOOR)), 2) if e < math.inf else None for e in m.errors] for _, m in rows],
        x=list(rows[0][1].boundaries) if rows else [],
        y=names,
        zmin=math.log10(_FLOOR),
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
    halo = dict(symbol="circle-open", size=17, color="white", line=dict(width=6))
    _marks(fig, "served", held, dict(symbol="square", size=10, color=RED, line=dict(width=2, color="white")))
    _marks(fig, "", wanted, halo)
    _marks(fig, "trained", wanted, dict(symbol="circle-open", size=17, color=GREEN, line=dict(width=3)))
    fig.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    fig.update_xaxes(showgrid=False)
    return captioned(
        fig,
        "Colour: median over rows of ||served - reference|| / ||reference|| at the shift and transform that fit the "
        "slot best. Square: the boundary that the slot holds; ring: the one it was trained on.",
    )


def _marks(fig: go.Figure, name: str, points: Sequence[tuple[int, str]], marker: dict) -> None:
    x, y = [boundary for boundary, _ in points], [row for _, row in points]
    quiet = {} if name else dict(hoverinfo="skip")
    fig.add_scatter(x=x, y=y, mode="markers", marker=marker, name=name, showlegend=bool(name), **quiet)


def ranking(rows: Sequence[Ranked], trained: Sequence[int]) -> go.Figure:
    """Layouts from a search, best first: how much worse than the best (95 % intervals); diamond: the trained one."""
    fig = figure(
        "Which layout were the weights trained on?",
        "nats per row worse than the best",
        "layout",
        height=160 + 26 * len(rows),
    )
    names = [", ".join(map(str, row.layout)) for row in rows]
    right = [row.layout == tuple(trained) for row in rows]
    fig.add_scatter(
        x=[row.difference for row in rows],
        y=names,
        mode="markers",
        showlegend=False,
        marker=dict(
            size=[11 if one else 8 for one in right],
            color=[GREEN if one else BLUE for one in right],
            symbol=["diamond" if one else "circle" for one in right],
            opacity=1,
        ),
        error_x=dict(
            type="data",
            symmetric=False,
            array=[row.high - row.difference for row in rows],
            arrayminus=[row.difference - row.low for row in rows],
            color=INK,
        ),
    )
    fig.update_yaxes(autorange="reversed", type="category", automargin=True)
    return captioned(
        fig,
        "Cross-entropy of the draft's first step against the target's own choice, minus that of the best layout on "
        "the same rows; bars: 95 % intervals over documents. Diamond: the layout that the profile calls trained.",
    )


def layouts(rows: Mapping[str, Sequence[int | None]], trained: Sequence[int]) -> go.Figure:
    """Which boundary fills each slot, row by row; a cell is green where it is the trained one, else orange."""
    names = list(rows)
    fig = figure("Boundary in each slot of fc", "", "", height=130 + 50 * len(names))
    right = [[1.0 if b == t else 0.0 for b, t in zip(rows[n], trained, strict=True)] for n in names]
    fig.add_heatmap(
        z=right,
        x=[f"slot {i}" for i in range(len(trained))],
        y=names,
        zmin=0,
        zmax=1,
        showscale=False,
        xgap=3,
        ygap=3,
        colorscale=[[0, ORANGE], [1, GREEN]],
        text=[["?" if b is None else str(b) for b in rows[n]] for n in names],
        texttemplate="%{text}",
        textfont=dict(color="black", size=14),
        hoverinfo="text",
    )
    fig.update_yaxes(autorange="reversed", automargin=True, showgrid=False)
    fig.update_xaxes(showgrid=False)
    return captioned(
        fig,
        "Boundary b: the state after b decoder layers, not normalised; 0 is the embedding. Green: the trained one, "
        "orange: another, ?: not decided.",
        below=32,
    )


def acceptance(series: Mapping[str, Sequence[float]]) -> go.Figure:
    """Share of rounds that accepted at least k drafts; what is no arm of a measurement is dashed, as a prediction."""
    fig = figure("Acceptance by position", "draft position k", "share of rounds that accepted k or more")
    predicted = iter((PURPLE, GREY, VIOLET) * 6)
    for (name, values), symbol in zip(series.items(), SYMBOLS * 3, strict=False):
        measured = name in ARM_COLOURS
        colour = ARM_COLOURS[name] if measured else next(predicted)
        fig.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=list(values),
            mode="lines+markers",
            name=name,
            marker=dict(color=colour, size=9, symbol=symbol + ("" if measured else "-open")),
            line_dash="solid" if measured else "dash",
        )
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return captioned(
        fig,
        "Full lines: measured in the server; dashed: predicted without it. A round is one verify; its bonus token is "
        "not counted, and a position counts only where all before it were accepted.",
    )
