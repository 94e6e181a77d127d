"""From today's tok/s to the limit, one cause at a time: what each step of a cure is worth, and what it assumes.

    speed-up = accept length / price of a round in plain steps

Rungs: today; the wiring cured (the accept length that the draft is worth); the settings tuned; the round at its floor;
a perfect draft. The floor is what a round cannot be cheaper than: one verify reads the target once, as a plain step
does, and each of its `steps` draft forwards (the draft-extend and steps - 1 decodes) runs the draft's layers, which is
at least draft layers / target layers of a plain step. A perfect draft has all accepted: steps + 1 tokens a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from wiring.bench.round_cost import Estimate, is_chain
from wiring.bench.tuning import ENDLESS, Outlook, Workload, alike, speedup
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError

TODAY, CURED, TUNED, FLOOR, PERFECT = "today", "wiring cured", "settings tuned", "round at its floor", "perfect draft"


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    `accept_length` includes the bonus token; `price` is that of a round in plain steps; `tok_per_s` at the client;
    `speedup` over plain decoding, `error` its standard error (None: unknown). `measured`: it was, else it is predicted.
    `assumes` says what must hold.
    """

    name: str
    setting: Speculation
    accept_length: float
    price: float
    tok_per_s: float
    speedup: float
    measured: bool
    assumes: str
    error: float | None = None


@dataclass(frozen=True)
class Served:
    """What a server gave: accept length (bonus included), and output tokens per second (None: not measured)."""

    accept_length: float
    tok_per_s: float | None = None


@dataclass(frozen=True)
class Ladder:
    """The rungs from today to the limit, lowest cause first; `plain_tok_per_s` is decoding without a draft.

    `missing`: rungs that could not be computed, each with what it takes. `rule` is the counting rule.
    """

    plain_tok_per_s: float
    rungs: tuple[Rung, ...]
    missing: tuple[str, ...]
    rule: str = (
        "accept length with the bonus token; price of a round in plain decode steps of the same run; "
        "speed-up over decoding without a draft"
    )

    def rung(self, name: str) -> Rung:
        """The rung of this name. Raises KeyError where it is missing."""
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise KeyError(name)

    @property
    def gains(self) -> tuple[float, ...]:
        """What each rung but the first brings, as a factor on the one before it."""
        return tuple(b.speedup / a.speedup for a, b in zip(self.rungs, self.rungs[1:], strict=False))

    @property
    def largest(self) -> Rung:
        """The rung that brings most: what to do first."""
        return self.rungs[1 + max(range(len(self.gains)), key=self.gains.__getitem__)]

    def as_json(self) -> dict:
        """The ladder for JSON: tok/s at the client, prices in plain steps, gains as factors on the rung before."""
        gains = (None, *self.gains)
        return {
            "rule": self.rule,
            "plain_tok_per_s": self.plain_tok_per_s,
            "rungs": [{**asdict(rung), "gain": gain} for rung, gain in zip(self.rungs, gains, strict=True)],
            "missing": list(self.missing),
        }


def price_from_rates(tok_per_s: float, accept_length: float, plain_tok_per_s: float) -> float:
    """The price of a round in plain steps from published figures alone, the prefill left out.

    A round takes accept_length / tok_per_s seconds, a plain step 1 / plain_tok_per_s.
    """
    if min(tok_per_s, accept_length, plain_tok_per_s) <= 0:
        raise WiringError(
            "rates and accept lengths are above zero",
            where="price of a round",
            expected="> 0",
            found=f"{tok_per_s} tok/s, accept length {accept_length}, plain {plain_tok_per_s} tok/s",
        )
    return accept_length * plain_tok_per_s / tok_per_s


def floor_price(setting: Speculation, draft_share: float) -> float:
    """The least that a round can cost: one plain step, and `steps` draft forwards of `draft_share` plain steps each."""
    return 1 + setting.steps * draft_share


def ladder(
    *,
    plain_tok_per_s: float,
    setting: Speculation,
    price: Estimate,
    today: Served,
    cured: Served,
    draft_share: float,
    tuned: Sequence[Outlook] = (),
    work: Workload = ENDLESS,
) -> Ladder:
    """Build the ladder at `setting`, whose rounds cost `price` plain steps.

    Without a measured `cured.tok_per_s` that rung is predicted from its accept length. `tuned`: the outlook of the
    chains and trees that the cured draft could run at, `setting` among them (`wiring.bench.tuning.outlooks`).
    `draft_share`: the least that one draft forward costs, in plain steps. Every predicted rung is the one before it
    times its predicted gain, so that a miss of the model at the measured setting does not pass for a gain.

    Raises WiringError for an accept length that `setting` cannot reach, and for a `tuned` without `setting`.
    """
    for name, served in (("today", today), ("cured", cured)):
        _check_reachable(name, served.accept_length, setting)
    first = _Reach(setting, cured.accept_length, price.value, work)
    rungs = [
        _rung(TODAY, _Reach(setting, today.accept_length, price.value, work), plain_tok_per_s, today, "as measured"),
        _rung(CURED, first, plain_tok_per_s, cured, "served states are those of training; the round costs the same"),
    ]
    if cured.tok_per_s is None and price.error is not None:
        rungs[1] = replace(rungs[1], error=first.speedup * price.error / price.value)
    speed, missing, best = rungs[1].speedup, (), first
    if tuned:
        present, chosen = _at(tuned, setting), _best(tuned, setting)
        assumes = f"{_named(setting)} is the best already"
        if chosen is not present:
            best = _Reach(chosen.setting, chosen.accept_length.value, chosen.price.value, work)
            assumes = f"{_named(chosen.setting)}, by the fitted price"
            assumes += "; beyond the measured drafts the last conditional is held" if chosen.extrapolated else ""
            assumes += f"; {_named(setting)} is within the error" if present in alike([chosen, present]) else ""
        speed *= chosen.speedup.value / present.speedup.value
        error = None if chosen.speedup.error is None else chosen.speedup.error / chosen.speedup.value * speed
        rungs.append(_predicted(TUNED, best, plain_tok_per_s, speed, assumes, error))
    else:
        missing = (f"{TUNED}: needs the price of a round at two settings or more, and acceptance by position",)
    at = best.setting
    floor = replace(best, price=min(best.price, floor_price(at, draft_share)))
    perfect = replace(floor, accept_length=at.steps + 1.0)
    least = f"verify costs one plain step and each of {at.steps} draft forwards {draft_share:.3g}, nothing else"
    speed *= floor.speedup / best.speedup
    rungs.append(_predicted(FLOOR, floor, plain_tok_per_s, speed, least))
    speed *= perfect.speedup / floor.speedup
    rungs.append(_predicted(PERFECT, perfect, plain_tok_per_s, speed, "every draft is accepted"))
    return Ladder(plain_tok_per_s, tuple(rungs), missing)


@dataclass(frozen=True)
class _Reach:
    """A setting with what it accepts and costs."""

    setting: Speculation
    accept_length: float
    price: float
    work: Workload

    @property
    def speedup(self) -> float:
        return speedup(self.price, self.accept_length, self.work)


def _rung(name: str, reach: _Reach, plain: float, served: Served, assumes: str) -> Rung:
    if served.tok_per_s is None:
        return _predicted(name, reach, plain, reach.speedup, assumes)
    value = served.tok_per_s / plain
    return Rung(name, reach.setting, reach.accept_length, reach.price, served.tok_per_s, value, True, assumes)


def _predicted(name: str, reach: _Reach, plain: float, value: float, assumes: str, error: float | None = None) -> Rung:
    return Rung(name, reach.setting, reach.accept_length, reach.price, plain * value, value, False, assumes, error)


def _check_reachable(name: str, length: float, setting: Speculation) -> None:
    if not 1 <= length <= setting.steps + 1 + 1e-9:
        raise WiringError(
            "rounds of this many steps cannot accept that much",
            where=f"accept length, {name}",
            expected=f"1 to {setting.steps + 1} (steps + 1, bonus included)",
            found=length,
            remedy="Check whether the figure counts the bonus token, and what the server resolved the steps to",
        )


def _at(outlooks: Sequence[Outlook], setting: Speculation) -> Outlook:
    for one in outlooks:
        if one.setting == setting:
            return one
    raise WiringError(
        "the present setting has no outlook, so what another one gains cannot be told",
        where="tuned",
        expected=_named(setting),
        found=", ".join(_named(o.setting) for o in outlooks),
    )


def _best(outlooks: Sequence[Outlook], setting: Speculation) -> Outlook:
    """The fastest, or the present one where it is as fast."""
    present, best = _at(outlooks, setting), max(outlooks, key=lambda o: o.speedup.value)
    return best if best.speedup.value > present.speedup.value else present


def _named(setting: Speculation) -> str:
    if is_chain(setting):
        return f"a chain of {setting.steps}"
    return f"a tree of {setting.steps} steps, top-k {setting.topk}, {setting.draft_tokens} tokens"
