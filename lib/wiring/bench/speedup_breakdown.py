"""Speed-up breakdown: tok/s from the draft as served to the limit, one cause at a time.

    speed-up = accept length / round cost in plain steps

Steps: today; the wiring fixed (the accept length of the trained layout); the settings tuned; the lowest round cost; a
perfect draft. The lowest round cost is one verify, which reads the target once as a plain step does, and `steps` draft
forwards (the draft-extend and steps - 1 decodes), each at least draft layers / target layers of a plain step. A perfect
draft has all drafts accepted: steps + 1 tokens per round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from wiring.bench.tuning import ENDLESS, PredictedChain, Workload, speedup
from wiring.errors import WiringError

TODAY, CURED, TUNED, FLOOR, PERFECT = "today", "wiring cured", "settings tuned", "round at its floor", "perfect draft"


@dataclass(frozen=True)
class BreakdownStep:
    """One step of the breakdown, for a chain of `steps` drafts.

    `accept_length` includes the bonus token; `price` is the round cost in plain steps; `tok_per_s` at the client;
    `speedup` over plain decoding, `error` its standard error (None: unknown). `measured`: not predicted. `assumes`:
    the assumption behind the figure.
    """

    name: str
    steps: int
    accept_length: float
    price: float
    tok_per_s: float
    speedup: float
    measured: bool
    assumes: str
    error: Annotated[float | None, Field(exclude=True)] = None


@dataclass(frozen=True)
class ServedRate:
    """Measured accept length (bonus included) and output tokens per second of a server."""

    accept_length: float
    tok_per_s: float


@dataclass(frozen=True)
class SpeedupBreakdown:
    """The steps from today to the limit; `plain_tok_per_s` is decoding without a draft, `rule` the counting rule."""

    plain_tok_per_s: float
    steps: tuple[BreakdownStep, ...]
    rule: str = (
        "accept length with the bonus token; round cost in plain decode steps of the same run; "
        "speed-up over decoding without a draft"
    )

    @property
    def gains(self) -> tuple[float, ...]:
        """The gain of each step but the first, as a factor on the step before."""
        return tuple(b.speedup / a.speedup for a, b in zip(self.steps, self.steps[1:], strict=False))


def round_cost_from_rates(tok_per_s: float, accept_length: float, plain_tok_per_s: float) -> float:
    """Return the round cost in plain steps from published figures alone, the prefill left out.

    A round takes accept_length / tok_per_s seconds, a plain step 1 / plain_tok_per_s.
    """
    if min(tok_per_s, accept_length, plain_tok_per_s) <= 0:
        raise WiringError(
            "rates and accept lengths must be positive",
            code="rate-not-positive",
            where="round cost",
            expected="> 0",
            found=f"{tok_per_s} tok/s, accept length {accept_length}, plain {plain_tok_per_s} tok/s",
        )
    return accept_length * plain_tok_per_s / tok_per_s


def lowest_round_cost(steps: int, draft_share: float) -> float:
    """Return the lowest round cost: one plain step, and `steps` draft forwards of `draft_share` plain steps each."""
    return 1 + steps * draft_share


def break_down(
    *,
    plain_tok_per_s: float,
    steps: int,
    round_cost: float,
    today: ServedRate,
    cured: ServedRate,
    draft_share: float,
    tuned: Sequence[PredictedChain],
    work: Workload = ENDLESS,
) -> SpeedupBreakdown:
    """Build the breakdown of a chain of `steps` drafts at `round_cost` plain steps.

    `tuned`: predictions of the chains that the fixed draft could run at, `steps` among them. `draft_share`: lowest cost
    of one draft forward, in plain steps. Each predicted step is the step before times its predicted gain, so a miss of
    the model at the measured setting does not appear as a gain. Raises WiringError for an unreachable accept length.
    """
    for name, served in ((TODAY, today), (CURED, cured)):
        _check_reachable(name, served.accept_length, steps)

    def measured(name: str, served: ServedRate, assumes: str) -> BreakdownStep:
        rate, value = served.tok_per_s, served.tok_per_s / plain_tok_per_s
        return BreakdownStep(name, steps, served.accept_length, round_cost, rate, value, True, assumes)

    found = [
        measured(TODAY, today, "as measured"),
        measured(CURED, cured, "served states are those of training; the round costs the same"),
    ]
    present = next(one for one in tuned if one.steps == steps)
    best = max(tuned, key=lambda one: (one.speedup.value, one is present))
    n, length, cost = steps, cured.accept_length, round_cost
    assumes = f"a chain of {steps} is already the best"
    if best is not present:
        n, length, cost = best.steps, best.accept_length.value, best.cost.value
        assumes = f"a chain of {n}, by the fitted round cost"
        assumes += "; conditional acceptance is constant beyond the measured drafts" if best.extrapolated else ""
        assumes += f"; a chain of {steps} is within the error" if best.indistinguishable(present) else ""
    lowest = min(cost, lowest_round_cost(n, draft_share))

    def predicted(name: str, length: float, cost: float, gain: float, assumes: str, error: float | None = None) -> None:
        value = found[-1].speedup * gain
        error = None if error is None else error * value
        found.append(BreakdownStep(name, n, length, cost, plain_tok_per_s * value, value, False, assumes, error))

    relative = None if best.speedup.error is None else best.speedup.error / best.speedup.value
    predicted(TUNED, length, cost, best.speedup.value / present.speedup.value, assumes, relative)
    gain = speedup(lowest, length, work) / speedup(cost, length, work)
    assumes = f"verify costs one plain step and each of {n} draft forwards {draft_share:.3g}, nothing else"
    predicted(FLOOR, length, lowest, gain, assumes)
    gain = speedup(lowest, n + 1.0, work) / speedup(lowest, length, work)
    predicted(PERFECT, n + 1.0, lowest, gain, "every draft is accepted")
    return SpeedupBreakdown(plain_tok_per_s, tuple(found))


def _check_reachable(name: str, length: float, steps: int) -> None:
    if not 1 <= length <= steps + 1 + 1e-9:
        raise WiringError(
            f"a chain of {steps} cannot reach this accept length",
            code="accept-length-unreachable",
            where=f"accept length, {name}",
            expected=f"1 to {steps + 1} (steps + 1, bonus included)",
            found=length,
            remedy="Check whether the figure counts the bonus token, and which steps the server resolved",
        )
