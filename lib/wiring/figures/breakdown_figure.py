"""Figures of the speed-up breakdown (tok/s from today to the limit) and of round cost by tokens verified."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from wiring.bench.round_cost import RoundCostModel
from wiring.bench.speedup_breakdown import SpeedupBreakdown, lowest_round_cost
from wiring.figures.plot_template import BLUE, CLEAR, GREEN, GREY, INK, PURPLE, RED, area, captioned, figure

_COLORS = (RED, GREEN, BLUE, PURPLE, GREY)


def speedup_breakdown(breakdown: SpeedupBreakdown) -> go.Figure:
    """Draw tok/s of each step of the breakdown: measured steps as full bars, predicted ones hatched.

    The dashed line is decoding without a draft.
    """
    fig = figure("From today to the limit", "", "output tokens per second", height=400)
    plain = breakdown.plain_tok_per_s
    labels = []
    for step, gain, color in zip(breakdown.steps, (None, *breakdown.gains), _COLORS, strict=False):
        hatched = dict(pattern=dict(shape="/", fgcolor=color, bgcolor=CLEAR, size=7, solidity=0.25))
        error = dict(type="data", array=[(step.error or 0) * plain], color=color, thickness=2)
        fig.add_bar(
            x=[step.name],
            y=[step.tok_per_s],
            width=0.6,
            marker=area(color) | ({} if step.measured else hatched),
            error_y=None if step.error is None else error,
            showlegend=False,
            name=step.name,
            hoverinfo="text+name",
            hovertext=[
                f"{step.tok_per_s:.2f} tokens/s: {step.assumes}; accept length {step.accept_length:.2f}, "
                f"round {step.price:.2f} plain steps"
            ],
        )
        labels.append(f"{step.name}<br>{step.speedup:.2f}x" + ("" if gain is None else f"<br>gain {gain:.2f}"))
    line: dict[str, Any] = dict(
        line_dash="dash", line_color=INK, annotation_text="plain decoding", annotation_position="top left"
    )
    fig.add_hline(y=plain, **line)
    fig.update_xaxes(tickvals=[step.name for step in breakdown.steps], ticktext=labels)
    fig.update_yaxes(range=[0, 1.12 * max(step.tok_per_s for step in breakdown.steps)])
    counted = "Full bars: measured, hatched: predicted; whiskers: standard error. Gain: over the step before."
    return captioned(fig, f"{counted}<br>Rate: {breakdown.rule}.", below=68)


def round_cost(model: RoundCostModel, draft_share: float) -> go.Figure:
    """Draw the cost of a round by tokens verified: measured, fitted, and the lower limit of each setting.

    `draft_share` is the draft's share of the target's layers.
    """
    fig = figure("What a round costs", "tokens verified per round, root included", "round cost in plain steps")
    rows = sorted(model.settings, key=lambda p: p.steps)
    x = [p.steps + 1 for p in rows]
    names = [f"  {p.steps} steps" for p in rows]
    errors = [1.96 * (p.error or 0.0) for p in rows]
    fig.add_scatter(
        x=x,
        y=[p.cost for p in rows],
        error_y=dict(type="data", array=errors),
        mode="markers+text",
        text=["" if name in names[:place] else name for place, name in enumerate(names)],  # each setting named once
        textposition="middle right",
        marker=dict(color=BLUE, size=10),
        name="measured (95 %)",
    )
    fitted = dict(symbol="x-thin-open", size=11, color=RED, line=dict(width=3))
    limit = dict(symbol="line-ew-open", size=24, color=INK, line=dict(width=3))
    for name, y, marker in (
        ("fitted", [model.cost(p.steps).value for p in rows], fitted),
        ("lower limit", [lowest_round_cost(p.steps, draft_share) for p in rows], limit),
    ):
        fig.add_scatter(x=x, y=y, mode="markers", name=name, marker=marker)
    fig.update_yaxes(range=[0, 1.08 * max(p.cost + error for p, error in zip(rows, errors, strict=True))])
    fig.update_xaxes(dtick=1, range=[min(x) - 0.5, max(x) + 1])
    terms = ", ".join(f"{c.name} {c.value:.3f}" for c in model.coefficients)
    return captioned(
        fig,
        "Round cost: time of a draft-and-verify round divided by that of a plain decode step of the same run, median "
        "over prompts. Lower limit: one plain step, and for each draft forward its share of the layers."
        f"<br>Fitted, in plain steps: {terms}.",
    )
