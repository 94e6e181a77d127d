"""One rule for every source: drafts accepted per round, the bonus token apart; and what that rule cannot explain.

accept length = 1 + accepted drafts / rounds, and by_position[k] = share of all rounds that accepted at least k + 1
drafts. A figure that breaks the rule is not bent until it fits: it goes to `Acceptance.impossible`, with the counting
rule that would explain it, and what the other figures say takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul

from wiring.logs.evidence import AcceptanceRecord, Value

_EDGE = 1e-9  # slack for the arithmetic itself, far below any printed digit


@dataclass(frozen=True)
class Figures:
    """What a source says about some rounds; all optional.

    `length` as printed, with `digits` after the point (None: not rounded), said to hold the bonus token. `rounds`,
    `accepted`, `drafted`: counts, drafts only. `by_position`: marginal shares with `position_digits` digits. `rate`:
    accepted / drafted. `per_round`: the most drafts that one round can accept (K).
    """

    length: float | None = None
    digits: int | None = 2
    rounds: int | None = None
    accepted: int | None = None
    drafted: int | None = None
    by_position: tuple[float, ...] = ()
    position_digits: int | None = 3
    rate: float | None = None
    per_round: int | None = None


def normalise(
    source: str, figures: Figures, *, rule: str, condition: Mapping[str, Value] | None = None
) -> AcceptanceRecord:
    """The figures by the one rule. `rule` names the source's own rule and what was converted."""
    faults: list[str] = []
    counts = _counts(figures, faults)
    length, computed = _length(figures, counts, faults)
    positions = _positions(figures, length, faults)
    if length is None and positions:
        length = computed = 1 + sum(positions)
    if length is not None:
        faults += _out_of_bounds(length, figures, exact=computed is not None)
    believable = length is not None and not _out_of_bounds(length, figures, exact=computed is not None)
    rounds, accepted, _ = counts
    return AcceptanceRecord(
        source=source,
        accept_length=length if believable else None,
        by_position=positions,
        rounds=rounds if accepted is not None or figures.accepted is None else None,
        proposed=figures.per_round,
        rule=rule,
        impossible="; ".join(dict.fromkeys(faults)),
        condition=dict(condition or {}),
    )


def digits_of(text: str) -> int:
    """Digits after the point, as printed: 2 for "2.95"."""
    return len(text.partition(".")[2])


def half_unit(digits: int | None) -> float:
    """How far a printed number may be from what was rounded."""
    return (0.0 if digits is None else 0.5 * 10.0**-digits) + _EDGE


def recover_rounds(figures: Figures) -> int | None:
    """The number of rounds that fits every printed figure, where exactly one does.

    Uses accepted and drafted counts, the accept length and the shares by position: each share is a whole number of
    rounds over the rounds. A round of full length drafts `per_round` tokens; the last ones may be shorter.
    """
    if figures.rounds is not None:
        return figures.rounds
    accepted, length = figures.accepted, figures.length
    if accepted is None or length is None:
        return None  # a count of drafted tokens alone says nothing: drafts may be shorter
    if not all(map(math.isfinite, (length, *figures.by_position))):
        return None  # printed as nan or inf
    if accepted <= 0 or length <= 1:
        if figures.drafted and figures.per_round and figures.drafted % figures.per_round == 0:
            return figures.drafted // figures.per_round
        return None
    slack = half_unit(figures.digits)
    low = math.ceil(accepted / (length + slack - 1) - _EDGE)
    high = math.floor(accepted / (length - slack - 1) + _EDGE) if length - slack > 1 else low
    if high - low > 100_000:  # too coarse a print to tell anything, and too much to try
        return None
    fitting = [rounds for rounds in range(max(low, 1), high + 1) if _fits(rounds, figures)]
    full = figures.drafted // figures.per_round if figures.drafted and figures.per_round else None
    if full in fitting and figures.drafted == full * figures.per_round:
        return full
    return fitting[0] if len(fitting) == 1 else None


def with_rounds(figures: Figures) -> Figures:
    """Return the figures with the number of rounds, where it follows from them."""
    rounds = recover_rounds(figures)
    return figures if rounds is None else replace(figures, rounds=rounds)


def _fits(rounds: int, figures: Figures) -> bool:
    if figures.drafted is not None and figures.per_round and rounds * figures.per_round < figures.drafted:
        return False
    counts = [round(share * rounds) for share in figures.by_position]
    slack = half_unit(figures.position_digits)
    if any(abs(n / rounds - share) > slack for n, share in zip(counts, figures.by_position, strict=True)):
        return False
    return not counts or sum(counts) == figures.accepted


def _counts(figures: Figures, faults: list[str]) -> tuple[int | None, int | None, int | None]:
    rounds, accepted, drafted = figures.rounds, figures.accepted, figures.drafted
    for name, value in (("rounds", rounds), ("accepted drafts", accepted), ("drafted tokens", drafted)):
        if value is not None and value < 0:
            faults.append(
                f"{value} {name}: no counting rule explains a negative count (a sentinel was added up, "
                "or a counter was reset between two readings)"
            )
            return None, None, None
    if accepted is not None and drafted is not None and accepted > drafted:
        told = f"{accepted} accepted of {drafted} drafted"
        if rounds and accepted - rounds <= drafted:
            faults.append(
                f"{told}: explained if the bonus token of each of the {rounds} rounds was counted as "
                f"accepted; drafts alone would be {accepted - rounds}"
            )
        else:
            faults.append(f"{told}: no counting rule explains it")
        accepted = None
    rate = figures.rate
    if rate is not None and rate > 1 + _EDGE:
        told = f"acceptance rate {rate:g} is above 1: explained if the bonus token is in the numerator"
        if figures.per_round:
            told += f"; over {figures.per_round} drafts per round that is accept length {rate * figures.per_round:.2f}"
        faults.append(told)
    elif rate is not None and rate < 0:
        faults.append(f"acceptance rate {rate:g}: no counting rule explains a negative rate")
    return rounds, accepted, drafted


def _length(figures: Figures, counts: tuple[int | None, int | None, int | None], faults: list[str]):
    """The accept length, and the one computed from counts where there are any (exact, so it is preferred)."""
    rounds, accepted, _ = counts
    printed = figures.length
    if printed is not None and not math.isfinite(printed):
        faults.append(f"accept length {printed}: no counting rule explains it (something was divided by no rounds)")
        printed = None
    if not rounds or accepted is None:
        return printed, None
    computed = 1 + accepted / rounds
    if printed is not None:
        slack, off = half_unit(figures.digits), printed - computed
        shown = f"accept length {printed:g} beside 1 + {accepted}/{rounds} = {computed:.2f}"
        if abs(off - 1) <= slack:
            faults.append(f"{shown}: one higher, explained if the bonus token of each round was counted twice")
        elif abs(off + 1) <= slack:
            faults.append(f"{shown}: one lower, explained if the bonus token was not counted")
        elif abs(off) > slack:
            faults.append(f"{shown}: no counting rule explains the difference")
    return computed, computed


def _out_of_bounds(length: float, figures: Figures, *, exact: bool) -> list[str]:
    slack = _EDGE if exact else half_unit(figures.digits)
    if length < 1 - slack:
        if length < 0:
            return [f"accept length {length:g}: no counting rule explains a negative length"]
        return [
            f"accept length {length:g} is below 1: explained if the bonus token was not counted; "
            f"with it that is {1 + length:g}"
        ]
    bound = figures.per_round
    if bound is None or length <= bound + 1 + slack:
        return []
    told = f"accept length {length:g} is above drafts per round + 1 = {bound + 1}: explained if a round drafts at "
    told += f"least {math.ceil(length - slack) - 1} (look at the resolved steps and draft tokens)"
    if length - 1 <= bound + 1 + slack:
        told += (
            f", or if one token per round was counted too many (the bonus token twice), which leaves "
            f"{length - 1:.2f}, or if the prefill token of short answers was counted"
        )
    return [told]


def _positions(figures: Figures, length: float | None, faults: list[str]) -> tuple[float, ...]:
    """Marginal shares, shifted where position 0 is the bonus token and multiplied out where they are conditional."""
    shares = figures.by_position
    if not shares:
        return ()
    slack = half_unit(figures.position_digits)
    listed = ", ".join(f"{share:g}" for share in shares)
    wrong = [share for share in shares if not math.isfinite(share) or not -slack <= share <= 1 + slack]
    if wrong:
        faults.append(f"acceptance by position {listed}: {wrong[0]:g} is no share of rounds; no rule explains it")
        return ()
    rises = any(after > before + 2 * slack for before, after in pairwise(shares))
    products = tuple(accumulate(shares, mul))
    fits = _adds_up(figures, length)
    if length is not None and len(shares) > 1 and shares[0] >= 1 - slack and not fits(shares) and fits(shares[1:]):
        faults.append(
            f"acceptance by position {listed} adds up to the accept length itself: position 0 is the bonus "
            "token, the drafts begin at position 1"
        )
        return shares[1:]
    if figures.per_round is not None and len(shares) == figures.per_round + 1 and shares[0] >= 1 - slack:
        faults.append(
            f"acceptance by position {listed} has one position more than {figures.per_round} drafts: "
            "position 0 is the bonus token"
        )
        return shares[1:]
    if rises or not fits(shares):
        if fits(products) and length is not None:
            faults.append(
                f"acceptance by position {listed} cannot be shares of all rounds: explained as conditional "
                "rates (of the rounds that came so far), which multiply out to the length"
            )
            return products
        short = f"does not add up to accept length {length:.2f} - 1" if length is not None else ""
        why = "rises, which a share of all rounds cannot" if rises else short
        fix = "explained if the rates are conditional" if rises and length is None else "no counting rule explains it"
        faults.append(f"acceptance by position {listed} {why}: {fix}")
        return ()
    return shares


def _adds_up(figures: Figures, length: float | None):
    slack = half_unit(figures.digits if figures.accepted is None or not figures.rounds else None)

    def fits(shares: Sequence[float]) -> bool:
        spread = len(shares) * half_unit(figures.position_digits)
        return length is None or abs(sum(shares) - (length - 1)) <= slack + spread

    return fits
