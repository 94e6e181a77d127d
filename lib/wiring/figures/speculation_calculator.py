"""The speculation calculator: tok/s and break-even of a chain from acceptance and costs; compute, sources and figures.

    price of a round = verify + token x (tokens verified - 1) + wide x (tokens verified beyond a width) + draft x steps
    tok/s            = plain tok/s x accept length / price

in plain decode steps, the prefill left out on both sides.

The price is also the break-even accept length. Acceptance is that of a draft given that all before it in its round were
accepted; beyond the last one known it is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from wiring.bench.cost_model import chain_length
from wiring.bench.round_cost import BASE, CHAIN_STEP, STEP, TOKEN, RoundModel, bend_name
from wiring.bench.speedup_breakdown import price_from_rates
from wiring.bench.tuning import chain_accept_length
from wiring.diagnosis.evidence_file import read_evidence
from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError
from wiring.figures.plot_template import BLUE, GREY, INK, RED, captioned, figure
from wiring.logs.evidence import Evidence
from wiring.workbook.profile import REPOSITORY

if TYPE_CHECKING:
    from wiring.bench.arm_results import ArmResult

EVIDENCE = REPOSITORY / "data" / "evidence"
LONGEST = 12  # steps of the curves


@dataclass(frozen=True)
class Assumed:
    """What is computed from.

    conditional: acceptance by position, each given that the ones before were accepted; steps, draft_tokens: as asked;
    draft, verify, token: plain steps for one draft forward, for verifying one token, for each further one; wide: what
    each one beyond `bend` costs on top. plain_tok_per_s: without a draft. resolved: the server makes draft tokens
    steps + 1 (SGLang at top-k 1). measured: tok/s as measured at this setting, None where it was not; note: where the
    figures come from.
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
    """What comes of it: `price` in plain steps is the break-even accept length; both lengths with the bonus token."""

    steps: int
    draft_tokens: int
    accept_length: float
    price: float
    speedup: float
    tok_per_s: float


def outcome(assumed: Assumed, steps: int | None = None) -> Outcome:
    """The outcome at `steps` draft steps, by default those that were asked for.

    A draft beyond the verified tokens costs and is never accepted. Raises WiringError for steps or tokens below 1.
    """
    asked = Speculation(assumed.steps if steps is None else steps, 1, assumed.draft_tokens)
    verified = resolve_speculation(asked).draft_tokens if assumed.resolved else asked.draft_tokens
    marginals = tuple(accumulate(assumed.conditional, mul))
    length = chain_accept_length(marginals, min(asked.steps, verified - 1)) if verified > 1 else 1.0
    price = assumed.verify + assumed.token * (verified - 1) + assumed.draft * asked.steps
    price += assumed.wide * max(0, verified - assumed.bend)
    speedup = length / price if price > 0 else float("inf")
    return Outcome(asked.steps, verified, length, price, speedup, speedup * assumed.plain_tok_per_s)


def told(assumed: Assumed) -> str:
    """The outcome in a sentence or two."""
    out = outcome(assumed)
    verified = f"{out.draft_tokens} tokens verified"
    if out.draft_tokens != assumed.draft_tokens:
        verified += f" ({assumed.draft_tokens} asked: with top-k 1 SGLang verifies steps + 1)"
    pays = "pays" if out.speedup > 1 else "does not pay"
    return (
        f"{out.steps} draft steps, {verified}: accept length {out.accept_length:.2f} against break-even "
        f"{out.price:.2f}; {out.tok_per_s:.1f} tok/s, {out.speedup:.2f}x of plain decoding. The draft {pays}."
    )


def of_arm(
    arm: ArmResult, plain: ArmResult, model: RoundModel, asked: Speculation, note: str = "measured in this case"
) -> Assumed:
    """What a benchmark measured: acceptance of `arm`, the fitted price of a round, and rates without the prefill.

    Those are 1 / seconds of a plain step, and accept length / seconds of a round: the rates of the benchmark have the
    prefill in them, which the calculator leaves out. Where only chains were priced a draft step stands with its
    verified token.
    """
    terms = {c.name: c.value for c in model.coefficients}
    step = terms.get(CHAIN_STEP, terms.get(STEP, 0.0))
    assert plain.step_s and arm.round_s and arm.accept_length, "an arm with a draft has rounds, plain has steps"
    return Assumed(
        conditional=tuple(share or 0.0 for share in arm.acceptance_conditional),
        steps=asked.steps,
        draft_tokens=asked.draft_tokens,
        draft=step,
        verify=max(0.0, terms[BASE] - step),
        plain_tok_per_s=1 / plain.step_s,
        token=terms.get(TOKEN, 0.0),
        wide=terms[bend_name(model.bend)] if model.bend else 0.0,
        bend=model.bend or 0,
        measured=arm.accept_length / arm.round_s,
        note=note,
    )


def case_study(folder: Path = EVIDENCE) -> dict[str, Assumed]:
    """The published case by name: as served, as cured, and what its draft could do.

    Its figures are one accept length and one rate for each: acceptance is taken to be the same at every position, and
    of a round's price, which is known as a whole, one plain step is put on verify and the rest on the drafts.
    """
    served, cured = (read_evidence(folder / f"{name}.json") for name in ("case-study", "case-study-cured"))
    plain, rate = _rate(cured, "plain"), _rate(cured, "draft")
    length, steps = _length(cured), int(cured.setting.steps or 0)
    price = price_from_rates(rate, length, plain)
    alone = next(a.accuracy for a in cured.accuracy if a.side == "T" and not a.claimed)
    common = dict(
        steps=steps,
        draft_tokens=int(cured.setting.draft_tokens or steps + 1),
        verify=1.0,
        draft=(price - 1) / steps,
        plain_tok_per_s=plain,
        note="published figures: acceptance put equal at every position, verify at one plain step",
    )
    before = _rate(served, "draft")
    found = {
        "case study, as served": (price * before / plain, before),
        "case study, cured": (length, rate),
        "case study, by the draft's own accuracy": (chain_length(alone, steps), None),
    }
    return {
        name: Assumed(conditional=(equal_acceptance(wanted, steps),) * steps, measured=measured, **common)
        for name, (wanted, measured) in found.items()
    }


def equal_acceptance(accept_length: float, steps: int) -> float:
    """The acceptance of every draft, the same at each position, that gives this accept length (bonus included).

    Raises WiringError outside 1..steps + 1.
    """
    if not 1 <= accept_length <= steps + 1:
        raise WiringError(
            "no acceptance gives this accept length",
            where="accept length",
            expected=f"1 to {steps + 1}",
            found=accept_length,
        )
    low, high = 0.0, 1.0
    for _ in range(60):  # chain_length rises with acceptance: halve until a double tells no more
        middle = (low + high) / 2
        low, high = (middle, high) if chain_length(middle, steps) < accept_length else (low, middle)
    return (low + high) / 2


def tok_per_s_by_steps(assumed: Assumed) -> go.Figure:
    """Tok/s by draft steps, with plain decoding, the chosen setting, and what was measured there."""
    fig = figure("Throughput by draft steps", "draft steps", "output tokens per second")
    steps = list(range(1, LONGEST + 1))
    fig.add_scatter(
        x=steps, y=_curve(assumed, lambda out: out.tok_per_s), mode="lines+markers", name="computed", marker_color=BLUE
    )
    chosen = outcome(assumed)
    ring = dict(symbol="circle-open", size=16, color=BLUE, line=dict(width=3))
    fig.add_scatter(x=[chosen.steps], y=[round(chosen.tok_per_s, 3)], mode="markers", marker=ring, name="chosen")
    if assumed.measured is not None:
        mark = dict(symbol="x", size=11, color=RED)
        fig.add_scatter(x=[assumed.steps], y=[assumed.measured], mode="markers", marker=mark, name="measured")
    fig.add_hline(y=assumed.plain_tok_per_s, line_dash="dash", line_color=INK, annotation_text="plain decoding")
    fig.update_yaxes(rangemode="tozero")
    fig.update_xaxes(dtick=1)
    return captioned(fig, f"Batch 1, the prefill left out everywhere. Source: {assumed.note}.")


def break_even_by_steps(assumed: Assumed) -> go.Figure:
    """Accept length and break-even by draft steps: a draft pays where the first lies above the second."""
    fig = figure("Accept length and break-even", "draft steps", "tokens per round (bonus token included)")
    steps = list(range(1, LONGEST + 1))
    lines = (
        ("accept length", lambda out: out.accept_length, BLUE, "solid", "circle"),
        ("break-even: price of a round in plain steps", lambda out: out.price, RED, "dash", "square"),
        ("every draft accepted", lambda out: min(out.steps, out.draft_tokens - 1) + 1.0, GREY, "dot", "line-ew"),
    )
    for name, value, colour, dash, symbol in lines:
        fig.add_scatter(
            x=steps,
            y=_curve(assumed, value),
            mode="lines+markers",
            name=name,
            line=dict(color=colour, dash=dash),
            marker=dict(symbol=symbol, color=colour),
        )
    fig.add_vline(x=assumed.steps, line_color=INK, line_width=1)
    fig.update_yaxes(rangemode="tozero")
    fig.update_xaxes(dtick=1)
    wide = f", {assumed.wide:.3f} more for each beyond {assumed.bend}" if assumed.wide else ""
    return captioned(
        fig,
        "A draft pays where the accept length lies above the break-even, which is the price of a round in plain decode "
        f"steps: {assumed.verify:.3f} for verify, {assumed.token:.3f} for each further token{wide}, "
        f"{assumed.draft:.3f} for each draft step.",
    )


def _curve(assumed: Assumed, value: Callable[[Outcome], float]) -> list[float]:
    return [round(value(outcome(assumed, steps)), 4) for steps in range(1, LONGEST + 1)]


def _rate(evidence: Evidence, arm: str) -> float:
    return next(speed.tok_per_s for speed in evidence.speed if speed.arm == arm and speed.tok_per_s)


def _length(evidence: Evidence) -> float:
    return next(one.accept_length for one in evidence.acceptance if one.accept_length)
