"""The look of every figure: one small template, readable on light and dark pages and by colour-blind readers.

Pages: JupyterLab's light (white) and dark theme (#111111), with the figure itself transparent. Their contrast is
18.9 : 1, so one colour for text reaches at most its root on both, 4.35 : 1; INK does. The colours of series are those
of Okabe and Ito ("Color universal design", 2008) that stand out by 3 : 1 from both pages (WCAG 2.1, 1.4.11): blue,
vermillion, bluish green, reddish purple. Their orange stands out from white by 2.3 : 1 only, so it fills areas, and a
violet of ours is the last colour of lines. Colour never stands alone: marks and dashes change with it.
"""

from __future__ import annotations

import plotly.graph_objects as go

BLUE, RED, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"  # RED: their vermillion
GREY = "#8C8C8C"
VIOLET = "#6C3CFC"
INK = "#797979"
CLEAR = "rgba(0,0,0,0)"
SERIES = (BLUE, PURPLE, GREEN, RED, GREY, VIOLET)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
ARM_COLOURS = {"plain": BLUE, "as served": RED, "cured": GREEN}
_AXIS = dict(
    gridcolor="rgba(128,128,128,0.25)",
    linecolor=INK,
    tickcolor=INK,
    showgrid=True,
    zeroline=False,
    ticks="outside",
    title=dict(font=dict(size=12)),
)
TEMPLATE = go.layout.Template(
    layout=dict(
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        colorway=SERIES,
        xaxis=_AXIS,
        yaxis=_AXIS,
        font=dict(family="sans-serif", size=12, color=INK),
        title=dict(x=0.02, y=1, yref="container", yanchor="top", pad=dict(t=12), font=dict(size=15)),
        margin=dict(l=70, r=20, t=70, b=60),
        legend=dict(orientation="h", x=1, xanchor="right", y=1.01, yanchor="bottom", bgcolor=CLEAR),
        modebar=dict(bgcolor=CLEAR, color="rgba(128,128,128,0.5)", activecolor=INK),
    )
)
_CAPTION = dict(size=11, line=15, letters=108)  # pixels, pixels, letters per line of a figure 760 pixels wide


def figure(title: str, x: str, y: str, *, height: int = 360, width: int = 760) -> go.Figure:
    """An empty figure in the workbook's look, sizes in pixels; `x` and `y` name the axes with their units."""
    axes = {name: dict(title=dict(text=text)) for name, text in (("xaxis", x), ("yaxis", y))}
    return go.Figure(layout=dict(template=TEMPLATE, title=dict(text=title), height=height, width=width, **axes))


def area(colour: str, share: float = 0.3) -> dict:
    """A bar's marker: a light fill with a full outline, so that an error bar of the same colour shows within it."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return dict(color=f"rgba({red},{green},{blue},{share})", line=dict(color=colour, width=2))


def captioned(fig: go.Figure, text: str, *, below: int = 56) -> go.Figure:
    """Put a caption (what is counted, and how) under the x axis, `below` pixels under its line; `<br>` breaks a line.

    The figure grows by what the caption needs.
    """
    lines = _lines(text, _CAPTION["letters"] * fig.layout.width // 760)
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
        font_size=_CAPTION["size"],
    )
    bottom = below + _CAPTION["line"] * len(lines) + 12
    fig.update_layout(margin_b=bottom, height=fig.layout.height + bottom - TEMPLATE.layout.margin.b)
    return fig


def _lines(text: str, letters: int) -> list[str]:
    lines = [""]
    for word in text.replace("<br>", " <br> ").split():
        if word == "<br>" or len(lines[-1]) + len(word) >= letters:
            lines.append("")
        if word != "<br>":
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
