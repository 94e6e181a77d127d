"""Cost model: speed-up = accept length x seconds of a plain step / seconds of a round, the prefill on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from wiring.errors import WiringError


@dataclass(frozen=True)
class SpeedupPrediction:
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
    """Return the round cost at `steps` draft steps, on the line through two other settings (steps -> cost).

    A round is one verify, one draft-extend and `steps - 1` draft decodes, hence linear in `steps`. Raises WiringError
    unless exactly two settings other than `steps` are given.
    """
    if len(costs) != 2 or steps in costs:
        raise WiringError(
            "the round cost is predicted from two other settings",
            code="cost-steps-unusable",
            where="cost_steps",
            expected=f"two numbers of steps, neither of them {steps}",
            found=sorted(costs),
        )
    (a, cost_a), (b, cost_b) = sorted(costs.items())
    return cost_a + (cost_b - cost_a) * (steps - a) / (b - a)


def chain_length(acceptance: float, steps: int) -> float:
    """Return the accept length (bonus included) of a chain whose drafts are right with probability `acceptance`."""
    return 1 + sum(acceptance**k for k in range(1, steps + 1))


def predict(
    *,
    accept_length: float,
    answers: Sequence[tuple[int, int]],
    round_s: float,
    step_s: float,
    prefill_plain_s: float,
    prefill_draft_s: float,
    steps: int,
) -> SpeedupPrediction:
    """Predict the speed-up of requests from the rounds that a draft needs for them and from the costs.

    `accept_length` is pooled over the prompts. `answers` holds (tokens, rounds) by prompt: the tokens of the answer,
    the first of which comes with the prefill, and the whole rounds for the others. The last round of a request costs
    as much as any although its surplus tokens are cut, so rounds are counted, not tokens over accept length. The
    speed-up is the median over prompts, as the measured one is.
    """

    def speedup(tokens: int, rounds: int) -> float:
        return (prefill_plain_s + (tokens - 1) * step_s) / (prefill_draft_s + rounds * round_s)

    return SpeedupPrediction(
        accept_length=accept_length,
        round_s=round_s,
        step_s=step_s,
        speedup=median(speedup(tokens, rounds) for tokens, rounds in answers),
        break_even=round_s / step_s,
        limit=median(speedup(tokens, ceil((tokens - 1) / (steps + 1))) for tokens, _ in answers),
    )
