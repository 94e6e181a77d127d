"""The cost model: speed-up = accept length x t_base / t_round, with the prefill on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from wiring.errors import WiringError


@dataclass(frozen=True)
class Prediction:
    """A predicted request: `accept_length` (bonus included), seconds per round and per plain step, speed-up.

    `break_even` is the accept length at which a round costs as much as the plain steps that it replaces;
    `limit` the speed-up if every draft were accepted, in whole rounds too.
    """

    accept_length: float
    round_s: float
    step_s: float
    speedup: float
    break_even: float
    limit: float


def round_cost(costs: dict[int, float], steps: int) -> float:
    """The price of a round at `steps` draft steps, on the line through two other settings (steps -> price).

    Raises WiringError unless exactly two settings other than `steps` are given.
    """
    if len(costs) != 2 or steps in costs:
        raise WiringError(
            "the round cost is predicted from two other settings",
            where="cost_steps",
            expected=f"two numbers of steps, neither of them {steps}",
            found=sorted(costs),
        )
    return round_line(costs, steps)


def round_line(costs: dict[int, float], steps: float) -> float:
    """The line through two round costs (steps -> price, in seconds or in plain steps) at `steps`.

    A round is one verify, one draft-extend and `steps - 1` draft decodes, hence linear in `steps`.
    """
    (a, cost_a), (b, cost_b) = sorted(costs.items())
    return cost_a + (cost_b - cost_a) * (steps - a) / (b - a)


def chain_length(acceptance: float, steps: int) -> float:
    """Accept length (bonus included) of a chain whose every draft is right with probability `acceptance`."""
    return 1 + sum(acceptance**k for k in range(1, steps + 1))


def request_seconds(forwards: float, per_forward: float, prefill_s: float) -> float:
    """Seconds of a request: the prefill gives the first token, `forwards` (plain steps or rounds) give the others."""
    return prefill_s + forwards * per_forward


def predict(
    *,
    accept_length: float,
    answers: Sequence[tuple[int, int]],
    round_s: float,
    step_s: float,
    prefill_plain_s: float,
    prefill_draft_s: float,
    steps: int,
) -> Prediction:
    """Predict the speed-up of requests from the rounds that a draft needs for them and from the costs.

    `accept_length` is pooled over the prompts. `answers` holds (tokens, rounds) by prompt: the tokens of the answer,
    the first of which comes with the prefill, and the whole rounds that the others take. The last round of a request
    costs as much as any, though its surplus is cut: tokens over the accept length would count a fraction of it, and
    answers of 32 tokens at 2.9 a round would look an eighth too quick. The speed-up is the median over prompts, as the
    measured one is: prompts differ, and a mean would be another figure.
    """

    def speedup(tokens: int, rounds: int) -> float:
        return request_seconds(tokens - 1, step_s, prefill_plain_s) / request_seconds(rounds, round_s, prefill_draft_s)

    return Prediction(
        accept_length=accept_length,
        round_s=round_s,
        step_s=step_s,
        speedup=median(speedup(tokens, rounds) for tokens, rounds in answers),
        break_even=round_s / step_s,
        limit=median(speedup(tokens, ceil((tokens - 1) / (steps + 1))) for tokens, _ in answers),
    )
