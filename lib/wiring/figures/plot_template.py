"""The plotly template, colors and trace helpers that all figures share.

The template is readable on JupyterLab's light (white) and dark (#111111) pages; the figure itself is transparent. The
contrast between the two pages is 18.9:1, so a text color reaches at most 4.35:1 on both; INK does. Series use the
colors of Okabe and Ito ("Color universal design", 2008) with a contrast of at least 3:1 to both pages (WCAG 2.1,
1.4.11): blue, vermillion, bluish green, reddish purple. Their orange has 2.3:1 on white, so it only fills areas; VIOLET
is added as the last line color. Symbols and dashes change together with the color.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

BLUE, RED, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"  # RED: their vermillion
GREY = "#8C8C8C"
VIOLET = "#6C3CFC"
INK = "#797979"
CLEAR = "rgba(0,0,0,0)"
SERIES = (BLUE, PURPLE, GREEN, RED, GREY, VIOLET)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
ARM_COLORS = {"plain": BLUE, "as served": RED, "cured": GREEN}
_AXIS = dict(
    gridcolor="rgba(128,128,128,0.25)",
    linecolor=INK,
    tickcolor=INK,
    showgrid=True,
    zeroline=False,
    ticks="outside",
    title=dict(font=dict(size=12)),
)
_BOTTOM_MARGIN = 60
TEMPLATE = go.layout.Template(
    layout=dict(
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        colorway=SERIES,
        xaxis=_AXIS,
        yaxis=_AXIS,
        font=dict(family="sans-serif", size=12, color=INK),
        title=dict(x=0.02, y=1, yref="container", yanchor="top", pad=dict(t=12), font=dict(size=15)),
        margin=dict(l=70, r=20, t=70, b=_BOTTOM_MARGIN),
        legend=dict(orientation="h", x=1, xanchor="right", y=1.01, yanchor="bottom", bgcolor=CLEAR),
        modebar=dict(bgcolor=CLEAR, color="rgba(128,128,128,0.5)", activecolor=INK),
    )
)
_LINE_PIXELS, _LINE_LETTERS = 15, 108  # of captions: height of a line; letters per line of a figure 760 pixels wide


def figure(title: str, x: str, y: str, *, height: int = 360, width: int = 760) -> go.Figure:
    """Return an empty figure with the template; sizes in pixels, `x` and `y` are the axis titles with their units."""
    axes = {name: dict(title=dict(text=text)) for name, text in (("xaxis", x), ("yaxis", y))}
    return go.Figure(layout=dict(template=TEMPLATE, title=dict(text=title), height=height, width=width, **axes))


def area(color: str, alpha: float = 0.3) -> dict:
    """Return a bar marker with a light fill and a full outline, so that an error bar of the same color is visible."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return dict(color=f"rgba({red},{green},{blue},{alpha})", line=dict(color=color, width=2))


def interval(values: Iterable[float], lows: Iterable[float], highs: Iterable[float], **style: Any) -> dict:
    """Return an asymmetric error bar from `lows` to `highs` around `values`."""
    sides = [(high - value, value - low) for value, low, high in zip(values, lows, highs, strict=True)]
    above, below = zip(*sides, strict=True)
    return dict(type="data", symmetric=False, array=list(above), arrayminus=list(below), **style)


def add_line(
    fig: go.Figure, x: Iterable, y: Iterable, name: str, color: str, symbol: str, dash: str = "solid", **more: Any
) -> None:
    """Add a line with markers to the figure."""
    marker = dict(color=color, symbol=symbol, size=9)
    line = dict(color=color, dash=dash)
    fig.add_scatter(x=list(x), y=list(y), mode="lines+markers", name=name, **(dict(marker=marker, line=line) | more))


def captioned(fig: go.Figure, text: str, *, below: int = 56) -> go.Figure:
    """Add a caption `below` pixels under the x axis, and grow the figure by its height; `<br>` breaks a line."""
    layout: Any = fig.layout
    lines = _wrap(text, _LINE_LETTERS * layout.width // 760)
    fig.add_annotation(
        text="<br>".join(lines),
        xref="paper",
        yref="paper",
        x=0,
        xanchor="left",
        y=0,
        yanchor="top",
        yshift=-below,
        showarrow=False,
        align="left",
        font_size=11,
    )
    bottom = below + _LINE_PIXELS * len(lines) + 12
    fig.update_layout(margin_b=bottom, height=layout.height + bottom - _BOTTOM_MARGIN)
    return fig


def _wrap(text: str, letters: int) -> list[str]:
    return [line for part in text.split("<br>") for line in textwrap.wrap(part, letters) or [""]]
