"""Predicted accept length and speed-up of chains that were not measured, from acceptance by position and round cost.

Whether the first k drafts of a round are right does not depend on how many follow, so the marginals of a chain give
those of a shorter one. Beyond the measured chain the last conditional acceptance is assumed constant, and the
prediction is marked as extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from wiring.bench.round_cost import Estimate, RoundCostModel
from wiring.errors import WiringError


@dataclass(frozen=True)
class Workload:
    """One request: `tokens` of output, the first of which comes with the prefill.

    The cost of the prefill is in plain steps, without a draft and with one. `ENDLESS` leaves the prefill out.
    """

    tokens: float
    prefill_plain: float = 0.0
    prefill_draft: float = 0.0


ENDLESS = Workload(float("inf"))


@dataclass(frozen=True)
class PredictedChain:
    """A predicted chain of `steps` drafts, each figure with its standard error where known.

    `accept_length` includes the bonus token; `cost` of a round in plain steps is also its break-even accept length;
    `speedup` is over plain decoding. `extrapolated`: the chain is longer than the measured one.
    """

    steps: int
    accept_length: Estimate
    cost: Estimate
    speedup: Estimate
    extrapolated: bool = False

    def indistinguishable(self, other: PredictedChain) -> bool:
        """Whether the speed-ups differ by at most twice the standard error of their difference."""
        if self.speedup.error is None or other.speedup.error is None:
            return self is other
        spread = (self.speedup.error**2 + other.speedup.error**2) ** 0.5
        return abs(self.speedup.value - other.speedup.value) <= 2 * spread


def chain_marginals(by_position: Sequence[float], steps: int) -> tuple[float, ...]:
    """Return the shares of rounds that accept at least 1..`steps` drafts, from those of a chain of another length.

    Raises WiringError for shares that are empty, outside 0..1, or rising.
    """
    given = tuple(by_position)
    if not given or not all(0 <= b <= a <= 1 for a, b in zip((1.0, *given), given, strict=False)):
        raise WiringError(
            "not acceptance by position",
            code="acceptance-not-falling",
            where="by_position",
            expected="shares of rounds from 0 to 1 that never rise",
            found=given,
        )
    before, last = [1.0, *given][-2:]
    conditional = last / before if before else 0.0
    more = (last * conditional**k for k in range(1, steps - len(given) + 1))
    return (*given[:steps], *more)


def chain_accept_length(by_position: Sequence[float], steps: int) -> float:
    """Return the accept length (bonus included) of a chain of `steps` drafts: 1 + the sum of its marginals."""
    return 1 + sum(chain_marginals(by_position, steps))


def overshoot(by_position: Sequence[float]) -> float:
    """Return the mean number of tokens that the last round of a request yields beyond the end of the answer.

    Renewal theory: with A = tokens of a round, (E[A^2] / E[A] - 1) / 2 for answers of many rounds. Those tokens count
    as accepted but are not returned, so a request of n tokens takes (n - 1 + overshoot) / E[A] rounds.
    """
    first = 1 + sum(by_position)
    second = 1 + sum((2 * k + 1) * p for k, p in enumerate(by_position, 1))  # E[A^2] = sum of (2a - 1) P(A >= a)
    return (second / first - 1) / 2


def speedup(cost: float, accept_length: float, work: Workload = ENDLESS, extra: float = 0.0) -> float:
    """Return plain time over draft time of one request; `cost` of a round in plain steps, `extra` = its overshoot."""
    if work.tokens == float("inf"):
        return accept_length / cost
    drafted = work.prefill_draft + (work.tokens - 1 + extra) / accept_length * cost
    return (work.prefill_plain + work.tokens - 1) / drafted


def predict_chains(
    model: RoundCostModel,
    by_position: Sequence[float],
    *,
    relative_error: float | None = None,
    by_prompt: Sequence[Sequence[float]] = (),
    work: Workload = ENDLESS,
    longest: int | None = None,
) -> tuple[PredictedChain, ...]:
    """Predict all chains up to `longest` steps (default: the measured length), best speed-up first.

    `by_position`: marginals of the measured chain, pooled over prompts; `relative_error`: standard error of its accept
    length over the accept length. `by_prompt`: marginals of each prompt; the speed-up is then the median over prompts
    with the overshoot of the last round, as a benchmark measures it.
    """
    found = []
    for steps in range(1, (longest or len(by_position)) + 1):
        length, cost = chain_accept_length(by_position, steps), model.cost(steps)
        speeds = [
            speedup(cost.value, 1 + sum(m), work, overshoot(m)) for m in (chain_marginals(p, steps) for p in by_prompt)
        ]
        value = median(speeds) if speeds else speedup(cost.value, length, work)
        length_error = error = None
        if relative_error is not None:
            length_error = relative_error * length
            error = None if cost.error is None else value * ((cost.error / cost.value) ** 2 + relative_error**2) ** 0.5
        extrapolated = steps > len(by_position)
        found.append(PredictedChain(steps, Estimate(length, length_error), cost, Estimate(value, error), extrapolated))
    return tuple(sorted(found, key=lambda one: -one.speedup.value))
