"""Two figures of what is left: the ladder from today's tok/s to the limit, and what a round costs by its width."""

from __future__ import annotations

import plotly.graph_objects as go

from wiring.bench.round_cost import RoundModel
from wiring.bench.speedup_breakdown import Ladder, floor_price
from wiring.figures.plot_template import BLUE, CLEAR, GREEN, GREY, INK, PURPLE, RED, area, captioned, figure

_COLOURS = (RED, GREEN, BLUE, PURPLE, GREY)


def ladder(rungs: Ladder) -> go.Figure:
    """Tok/s of each rung; full bars were measured, hatched ones are predicted. The line is decoding without a draft."""
    fig = figure("From today to the limit", "", "output tokens per second", height=400)
    told = []
    for rung, gain, colour in zip(rungs.rungs, (None, *rungs.gains), _COLOURS, strict=False):
        error = None
        if rung.error is not None:
            error = dict(type="data", array=[rung.error * rungs.plain_tok_per_s], color=colour, thickness=2)
        hatched = dict(pattern=dict(shape="/", fgcolor=colour, bgcolor=CLEAR, size=7, solidity=0.25))
        fig.add_bar(
            x=[rung.name],
            y=[rung.tok_per_s],
            width=0.6,
            marker=area(colour) | ({} if rung.measured else hatched),
            error_y=error,
            showlegend=False,
            name=rung.name,
            hoverinfo="text+name",
            hovertext=[
                f"{rung.tok_per_s:.2f} tokens/s: {rung.assumes}; accept length {rung.accept_length:.2f}, "
                f"round {rung.price:.2f} plain steps"
            ],
        )
        told.append(f"{rung.name}<br>{rung.speedup:.2f}x" + ("" if gain is None else f"<br>gain {gain:.2f}"))
    fig.add_hline(
        y=rungs.plain_tok_per_s,
        line_dash="dash",
        line_color=INK,
        annotation_text="plain decoding",
        annotation_position="top left",
    )
    fig.update_xaxes(tickvals=[rung.name for rung in rungs.rungs], ticktext=told)
    fig.update_yaxes(range=[0, 1.12 * max(rung.tok_per_s for rung in rungs.rungs)])
    missing = "".join(f"<br>Not computed: {text}." for text in rungs.missing)
    counted = "Full bars measured, hatched predicted; whiskers: standard error. Gain: over the rung before."
    return captioned(fig, f"{counted}<br>Counted: {rungs.rule}.{missing}", below=68)


def round_price(model: RoundModel, draft_share: float) -> go.Figure:
    """Price of a round against the tokens that it verifies, measured and fitted, over the floor of each setting."""
    fig = figure("What a round costs", "tokens verified per round, root included", "price of a round in plain steps")
    rows = sorted(model.settings, key=lambda p: (p.setting.draft_tokens, p.setting.steps))
    x = [p.setting.draft_tokens for p in rows]
    names = [f"{p.setting.steps} steps, top-{p.setting.topk}" for p in rows]
    names = ["" if name in names[:place] else name for place, name in enumerate(names)]  # a setting measured twice
    errors = dict(type="data", array=[1.96 * (p.error or 0.0) for p in rows])
    fig.add_scatter(
        x=x,
        y=[p.price for p in rows],
        error_y=errors,
        mode="markers+text",
        text=[f"  {name}" for name in names],
        textposition="middle right",
        marker=dict(color=BLUE, size=10),
        name="measured (95 %)",
    )
    fig.add_scatter(
        x=x,
        y=[model.price(p.setting).value for p in rows],
        mode="markers",
        name="fitted",
        marker=dict(symbol="x-thin-open", size=11, color=RED, line=dict(width=3)),
    )
    fig.add_scatter(
        x=x,
        y=[floor_price(p.setting, draft_share) for p in rows],
        mode="markers",
        name="floor",
        marker=dict(symbol="line-ew-open", size=24, color=INK, line=dict(width=3)),
    )
    fig.update_yaxes(range=[0, 1.08 * max(p.price + 1.96 * (p.error or 0.0) for p in rows)])
    fig.update_xaxes(dtick=1, range=[min(x) - 0.5, max(x) + 1])
    terms = ", ".join(f"{c.name} {c.value:.3f}" for c in model.coefficients)
    return captioned(
        fig,
        "Price: time of a draft-and-verify round over that of a plain decode step of the same run, median over prompts."
        f" Floor: one plain step, and each draft forward its share of the layers.<br>Fitted, in plain steps: {terms}.",
    )
