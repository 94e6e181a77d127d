"""Two figures of what is left: the ladder from today's tok/s to the limit, and what a round costs by its width."""

from __future__ import annotations

import plotly.graph_objects as go

from wiring.show.figures import BLUE, GREEN, GREY, ORANGE, RED, figure
from wiring.speed.ladder import Ladder, floor_price
from wiring.speed.rounds import RoundModel

_COLOURS = (RED, GREEN, BLUE, ORANGE, GREY)


def ladder(rungs: Ladder) -> go.Figure:
    """Tok/s of each rung; full bars were measured, hatched ones are predicted. The line is decoding without a draft."""
    fig = figure("From today to the limit", "", "output tokens per second")
    for rung, gain, colour in zip(rungs.rungs, (None, *rungs.gains), _COLOURS, strict=False):
        error = None if rung.error is None else dict(type="data", array=[rung.error * rungs.plain_tok_per_s])
        told = f"{rung.speedup:.2f}x" + ("" if gain is None else f"<br>gain {gain:.2f}")
        pattern = dict(shape="" if rung.measured else "/", fgcolor="white")
        fig.add_bar(
            x=[rung.name], y=[rung.tok_per_s], text=[told], textposition="outside", cliponaxis=False, width=0.6,
            marker=dict(color=colour, pattern=pattern), error_y=error, showlegend=False,
            name=rung.name, hovertext=[f"{rung.assumes}; accept length {rung.accept_length:.2f}, "
                                       f"round {rung.price:.2f} plain steps"],
        )  # fmt: skip
    fig.add_hline(y=rungs.plain_tok_per_s, line_dash="dash", line_color=GREY, annotation_text="plain decoding")
    fig.update_yaxes(range=[0, 1.18 * max(rung.tok_per_s for rung in rungs.rungs)])
    missing = "".join(f"<br>not computed: {text}" for text in rungs.missing)
    return _captioned(fig, f"full: measured, hatched: predicted; {rungs.rule}{missing}")


def round_price(model: RoundModel, draft_share: float) -> go.Figure:
    """Price of a round against the tokens that it verifies, measured and fitted, over the floor of each setting."""
    fig = figure("What a round costs", "tokens verified per round, root included", "price of a round in plain steps")
    rows = sorted(model.settings, key=lambda p: (p.setting.draft_tokens, p.setting.steps))
    x = [p.setting.draft_tokens for p in rows]
    names = [f"{p.setting.steps} steps, top-{p.setting.topk}" for p in rows]
    errors = dict(type="data", array=[1.96 * (p.error or 0.0) for p in rows])
    fig.add_scatter(
        x=x, y=[p.price for p in rows], error_y=errors, mode="markers+text", text=names, textposition="top center",
        marker=dict(color=BLUE, size=9), name="measured (95 %)",
    )  # fmt: skip
    fig.add_scatter(
        x=x, y=[model.price(p.setting).value for p in rows], mode="markers", name="fitted",
        marker=dict(symbol="line-ew-open", size=22, color="black", line=dict(width=2)),
    )  # fmt: skip
    fig.add_scatter(
        x=x, y=[floor_price(p.setting, draft_share) for p in rows], mode="markers", name="floor",
        marker=dict(symbol="line-ew-open", size=22, color=GREY, line=dict(width=2)),
    )  # fmt: skip
    fig.update_yaxes(rangemode="tozero")
    terms = ", ".join(f"{c.name} {c.value:.3f}" for c in model.coefficients)
    return _captioned(fig, f"median over prompts, in plain steps of the same run; {terms} plain steps")


def _captioned(fig: go.Figure, text: str) -> go.Figure:
    """Put the counting rule under the axis, in lines that fit the figure."""
    words, lines = text.replace("<br>", " <br> ").split(), [""]
    for word in words:
        if word == "<br>" or len(lines[-1]) + len(word) > 110:
            lines.append("")
        if word != "<br>":
            lines[-1] = f"{lines[-1]} {word}".strip()
    fig.add_annotation(
        text="<br>".join(lines), xref="paper", yref="paper", x=0, y=-0.2, yanchor="top", showarrow=False, align="left",
        font=dict(size=11, color="#57606a"),
    )  # fmt: skip
    fig.update_layout(margin_b=70 + 16 * len(lines), height=fig.layout.height + 16 * len(lines))
    return fig
