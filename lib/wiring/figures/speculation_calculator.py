"""Speculation calculator: tok/s and break-even of a chain from acceptance and costs, presets and figures.

    round cost = verify + token x (tokens verified - 1) + wide x (tokens verified beyond a width) + draft x steps
    tok/s      = plain tok/s x accept length / round cost

in plain decode steps, without the prefill. The round cost is also the break-even accept length. Acceptance is that of a
draft whose predecessors in the round were accepted; beyond the last known position it is constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from scipy.optimize import brentq

from wiring.bench.cost_model import chain_length
from wiring.bench.round_cost import BASE, CHAIN_STEP, RoundCostModel, bend_name
from wiring.bench.speedup_breakdown import round_cost_from_rates
from wiring.bench.tuning import chain_accept_length
from wiring.diagnosis.evidence_file import read_evidence
from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError
from wiring.figures.plot_template import BLUE, GREY, INK, RED, add_line, captioned, figure
from wiring.workbook.profile import REPOSITORY

if TYPE_CHECKING:
    from wiring.bench.arm_results import ArmResult

EVIDENCE = REPOSITORY / "data" / "evidence"
LONGEST = 12  # largest number of steps in the figures


@dataclass(frozen=True)
class Assumed:
    """Inputs of the calculator.

    conditional: acceptance by position, given that all positions before were accepted. steps, draft_tokens: as asked.
    draft, verify, token: cost in plain steps of one draft forward, of verifying one token, and of each further token;
    wide: extra cost of each token beyond `bend`. plain_tok_per_s: rate without a draft. resolved: the server sets draft
    tokens to steps + 1 (SGLang with top-k 1). measured: measured tok/s of this setting, or None. note: the source.
    """

    conditional: tuple[float, ...]
    steps: int
    draft_tokens: int
    draft: float
    verify: float
    plain_tok_per_s: float
    token: float = 0.0
    wide: float = 0.0
    bend: int = 0
    resolved: bool = True
    measured: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """Outputs of the calculator: `round_cost` in plain steps is the break-even accept length (bonus token included)."""

    steps: int
    draft_tokens: int
    accept_length: float
    round_cost: float
    speedup: float
    tok_per_s: float


def outcome(assumed: Assumed, steps: int | None = None) -> Outcome:
    """Compute the outcome at `steps` draft steps (default: as asked).

    A draft beyond the verified tokens costs time and is never accepted. Raises WiringError for steps or tokens below 1.
    """
    asked = Speculation(assumed.steps if steps is None else steps, 1, assumed.draft_tokens)
    verified = resolve_speculation(asked).draft_tokens if assumed.resolved else asked.draft_tokens
    marginals = tuple(accumulate(assumed.conditional, mul))
    length = chain_accept_length(marginals, min(asked.steps, verified - 1)) if verified > 1 else 1.0
    cost = assumed.verify + assumed.token * (verified - 1) + assumed.draft * asked.steps
    cost += assumed.wide * max(0, verified - assumed.bend)
    speedup = length / cost if cost > 0 else float("inf")
    return Outcome(asked.steps, verified, length, cost, speedup, speedup * assumed.plain_tok_per_s)


def outcome_text(assumed: Assumed) -> str:
    """Return the outcome in one or two sentences."""
    out = outcome(assumed)
    verified = f"{out.draft_tokens} tokens verified"
    if out.draft_tokens != assumed.draft_tokens:
        verified += f" ({assumed.draft_tokens} asked: with top-k 1 SGLang verifies steps + 1)"
    pays = "pays" if out.speedup > 1 else "does not pay"
    return (
        f"{out.steps} draft steps, {verified}: accept length {out.accept_length:.2f}, break-even "
        f"{out.round_cost:.2f}; {out.tok_per_s:.1f} tok/s, {out.speedup:.2f}x plain decoding. The draft {pays}."
    )


def from_arm(arm: ArmResult, plain: ArmResult, model: RoundCostModel, asked: Speculation) -> Assumed:
    """Return the inputs that a benchmark measured: acceptance of `arm`, fitted round cost, rates without the prefill.

    The rates are 1 / seconds of a plain step and accept length / seconds of a round, because those of the benchmark
    include the prefill. The cost of a draft step includes its verified token.
    """
    terms = {c.name: c.value for c in model.coefficients}
    step = terms.get(CHAIN_STEP, 0.0)
    assert plain.step_s and arm.round_s and arm.accept_length, "an arm with a draft has rounds, plain has steps"
    return Assumed(
        conditional=tuple(share or 0.0 for share in arm.acceptance_conditional),
        steps=asked.steps,
        draft_tokens=asked.draft_tokens,
        draft=step,
        verify=max(0.0, terms[BASE] - step),
        plain_tok_per_s=1 / plain.step_s,
        wide=terms[bend_name(model.bend)] if model.bend else 0.0,
        bend=model.bend or 0,
        measured=arm.accept_length / arm.round_s,
        note="measured in this case",
    )


def case_study() -> dict[str, Assumed]:
    """Return the published case by name: as served, as cured, and with the draft's own accuracy.

    Its figures are one accept length and one rate each: acceptance is assumed equal at every position, and the known
    round cost is split into one plain step for verify and the rest for the drafts.
    """
    served, cured = (read_evidence(EVIDENCE / f"{name}.json") for name in ("case-study", "case-study-cured"))
    rates = {speed.arm: speed.tok_per_s for speed in cured.speed if speed.tok_per_s}
    before = next(speed.tok_per_s for speed in served.speed if speed.arm == "draft" and speed.tok_per_s)
    length = next(one.accept_length for one in cured.acceptance if one.accept_length)
    steps, plain = int(cured.setting.steps or 0), rates["plain"]
    cost = round_cost_from_rates(rates["draft"], length, plain)
    accuracy = next(a.accuracy for a in cured.accuracy if a.side == "T" and not a.claimed)
    common: dict[str, Any] = dict(
        steps=steps,
        draft_tokens=int(cured.setting.draft_tokens or steps + 1),
        verify=1.0,
        draft=(cost - 1) / steps,
        plain_tok_per_s=plain,
        note="published figures, with equal acceptance at every position and verify at one plain step",
    )
    lengths = {
        "case study, as served": (cost * before / plain, before),
        "case study, cured": (length, rates["draft"]),
        "case study, by the draft's own accuracy": (chain_length(accuracy, steps), None),
    }
    return {
        name: Assumed(conditional=(equal_acceptance(wanted, steps),) * steps, measured=measured, **common)
        for name, (wanted, measured) in lengths.items()
    }


def equal_acceptance(accept_length: float, steps: int) -> float:
    """Return the acceptance, equal at every position, that gives this accept length (bonus token included).

    Raises WiringError outside 1..steps + 1.
    """
    if not 1 <= accept_length <= steps + 1:
        problem, expected = "no acceptance gives this accept length", f"1 to {steps + 1}"
        raise WiringError(
            problem, code="accept-length-unreachable", where="accept length", expected=expected, found=accept_length
        )
    root: Any = brentq(lambda acceptance: chain_length(acceptance, steps) - accept_length, 0.0, 1.0, xtol=1e-14)
    return float(root)


def tok_per_s_by_steps(assumed: Assumed) -> go.Figure:
    """Draw tok/s by draft steps, with plain decoding, the chosen setting and its measured rate."""
    fig = _by_steps("Throughput by draft steps", "output tokens per second")
    steps, rates = _curve(assumed, lambda out: out.tok_per_s)
    add_line(fig, steps, rates, "computed", BLUE, "circle")
    chosen = outcome(assumed)
    ring = dict(symbol="circle-open", size=16, color=BLUE, line=dict(width=3))
    fig.add_scatter(x=[chosen.steps], y=[round(chosen.tok_per_s, 3)], mode="markers", marker=ring, name="chosen")
    if assumed.measured is not None:
        mark = dict(symbol="x", size=11, color=RED)
        fig.add_scatter(x=[assumed.steps], y=[assumed.measured], mode="markers", marker=mark, name="measured")
    fig.add_hline(y=assumed.plain_tok_per_s, line_dash="dash", line_color=INK, annotation_text="plain decoding")
    return captioned(fig, f"Batch 1, without the prefill. Source: {assumed.note}.")


def break_even_by_steps(assumed: Assumed) -> go.Figure:
    """Draw accept length and break-even by draft steps: a draft pays where the first exceeds the second."""
    fig = _by_steps("Accept length and break-even", "tokens per round (bonus token included)")
    for name, value, *style in (
        ("accept length", lambda out: out.accept_length, BLUE, "circle", "solid"),
        ("break-even: round cost in plain steps", lambda out: out.round_cost, RED, "square", "dash"),
        ("every draft accepted", lambda out: min(out.steps, out.draft_tokens - 1) + 1.0, GREY, "line-ew", "dot"),
    ):
        add_line(fig, *_curve(assumed, value), name, *style)
    fig.add_vline(x=assumed.steps, line_color=INK, line_width=1)
    wide = f", {assumed.wide:.3f} more for each beyond {assumed.bend}" if assumed.wide else ""
    return captioned(
        fig,
        "A draft pays where the accept length exceeds the break-even, which is the round cost in plain decode steps: "
        f"{assumed.verify:.3f} for verify, {assumed.token:.3f} for each further token{wide}, "
        f"{assumed.draft:.3f} for each draft step.",
    )


def _by_steps(title: str, y: str) -> go.Figure:
    fig = figure(title, "draft steps", y)
    fig.update_yaxes(rangemode="tozero")
    return fig.update_xaxes(dtick=1)


def _curve(assumed: Assumed, value: Callable[[Outcome], float]) -> tuple[range, list[float]]:
    steps = range(1, LONGEST + 1)
    return steps, [round(value(outcome(assumed, count)), 4) for count in steps]
