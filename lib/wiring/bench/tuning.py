"""Predicted accept length and speed-up of settings that were not measured, and the best of them.

Marginals of a longer chain give those of a shorter one: whether the first k drafts of a round are right does not
depend on how many follow. What differs is where rounds start, which moves marginals a little. Beyond the measured
chain the last conditional is held, and the outcome is marked as extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from wiring.bench.round_cost import Estimate, RoundModel, chain
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError


@dataclass(frozen=True)
class Workload:
    """One request: `tokens` of output, the first of which comes with the prefill.

    The prefill's price is in plain steps, without a draft and with one. `ENDLESS` leaves the prefill out.
    """

    tokens: float
    prefill_plain: float = 0.0
    prefill_draft: float = 0.0


ENDLESS = Workload(float("inf"))


@dataclass(frozen=True)
class Outlook:
    """A predicted setting, each figure with its standard error where known.

    `accept_length` includes the bonus token; `price` of a round in plain steps is also its break-even accept length;
    `speedup` is over plain decoding. `extrapolated`: the chain is longer than the one that was measured.
    """

    setting: Speculation
    accept_length: Estimate
    price: Estimate
    speedup: Estimate
    extrapolated: bool = False


def chain_marginals(by_position: Sequence[float], steps: int) -> tuple[float, ...]:
    """Share of rounds that accept at least 1..`steps` drafts, from the marginals of a chain of another length.

    Beyond the given ones the last conditional is held. Raises WiringError for marginals that are none: empty, outside
    0..1, or rising.
    """
    given = tuple(by_position)
    if not given or not all(0 <= b <= a <= 1 for a, b in zip((1.0, *given), given, strict=False)):
        raise WiringError(
            "not acceptance by position",
            where="by_position",
            expected="shares of rounds from 0 to 1 that never rise",
            found=given,
        )
    before = given[-2] if len(given) > 1 else 1.0
    conditional = given[-1] / before if before else 0.0
    more = (given[-1] * conditional**k for k in range(1, steps - len(given) + 1))
    return (*given[:steps], *more)


def chain_accept_length(by_position: Sequence[float], steps: int) -> float:
    """Accept length (bonus included) of a chain of `steps` drafts: 1 + the sum of its marginals."""
    return 1 + sum(chain_marginals(by_position, steps))


def overshoot(by_position: Sequence[float]) -> float:
    """Mean number of tokens that the last round of a request yields beyond the end of the answer.

    Renewal theory: with A = tokens of a round, (E[A^2] / E[A] - 1) / 2 for answers of many rounds. Those tokens count
    as accepted but are not served, so a request of n tokens takes (n - 1 + overshoot) / E[A] rounds.
    """
    first = 1 + sum(by_position)
    second = 1 + sum((2 * k + 1) * p for k, p in enumerate(by_position, 1))  # E[A^2] = sum of (2a - 1) P(A >= a)
    return (second / first - 1) / 2


def speedup(price: float, accept_length: float, work: Workload = ENDLESS, extra: float = 0.0) -> float:
    """Plain time over draft time of one request; `extra` = its overshoot in tokens (see `overshoot`)."""
    if work.tokens == float("inf"):
        return accept_length / price
    drafted = work.prefill_draft + (work.tokens - 1 + extra) / accept_length * price
    return (work.prefill_plain + work.tokens - 1) / drafted


def outlook(
    model: RoundModel, setting: Speculation, accept_length: Estimate, work: Workload = ENDLESS, *, extrapolated=False
) -> Outlook:
    """The speed-up at `setting`; its error joins those of the price and of the accept length."""
    price = model.price(setting)
    value = speedup(price.value, accept_length.value, work)
    error = None
    if price.error is not None and accept_length.error is not None:
        share = (price.error / price.value) ** 2 + (accept_length.error / accept_length.value) ** 2
        error = value * share**0.5
    return Outlook(setting, accept_length, price, Estimate(value, error), extrapolated)


def outlooks(
    model: RoundModel,
    by_position: Sequence[float],
    *,
    relative_error: float | None = None,
    by_prompt: Sequence[Sequence[float]] = (),
    work: Workload = ENDLESS,
    longest: int | None = None,
    trees: Mapping[Speculation, Estimate] | None = None,
) -> tuple[Outlook, ...]:
    """All chains up to `longest` steps, and the trees whose accept length is known, best first.

    `by_position`: marginals of a measured chain, pooled over prompts; `relative_error`: the standard error of its
    accept length over it. `by_prompt`: each prompt's own marginals; a chain's speed-up is then the median over prompts,
    as a benchmark's is, the overshoot of the last round reckoned in. Where prompts differ that is another figure.
    `longest`: by default the measured chain's own length, so that nothing is extrapolated. What a tree accepts does not
    follow from chains (their second choices were never tried), so `trees` brings it, measured or replayed.
    """
    found = []
    for steps in range(1, (longest or len(by_position)) + 1):
        length = chain_accept_length(by_position, steps)
        error = None if relative_error is None else relative_error * length
        far = steps > len(by_position)
        one = outlook(model, chain(steps), Estimate(length, error), work, extrapolated=far)
        found.append(_over_prompts(one, [chain_marginals(prompt, steps) for prompt in by_prompt], work))
    for setting, length in (trees or {}).items():
        found.append(outlook(model, setting, length, work))
    return tuple(sorted(found, key=lambda o: -o.speedup.value))


def _over_prompts(one: Outlook, by_prompt: Sequence[Sequence[float]], work: Workload) -> Outlook:
    if not by_prompt:
        return one
    value = median(speedup(one.price.value, 1 + sum(m), work, overshoot(m)) for m in by_prompt)
    error = None if one.speedup.error is None else one.speedup.error / one.speedup.value * value
    return replace(one, speedup=Estimate(value, error))


def alike(ranked: Sequence[Outlook]) -> tuple[Outlook, ...]:
    """Those that cannot be told from the best: their difference is within twice its standard error.

    Errors of one model are taken as independent, which makes the group rather too large than too small. Without errors
    the best stands alone.
    """
    best = ranked[0]

    def close(other: Outlook) -> bool:
        if best.speedup.error is None or other.speedup.error is None:
            return other is best
        spread = (best.speedup.error**2 + other.speedup.error**2) ** 0.5
        return best.speedup.value - other.speedup.value <= 2 * spread

    return tuple(o for o in ranked if close(o))
