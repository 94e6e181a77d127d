"""Normalize acceptance figures of every source to one counting rule, and explain those that break it.

accept length = 1 + accepted drafts / rounds, and by_position[k] = share of all rounds that accepted at least k + 1
drafts. A figure that breaks the rule is not adjusted until it fits: `AcceptanceRecord.impossible` names the counting
rule that would explain it, and the other figures replace it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul

from wiring.logs.evidence import AcceptanceRecord, Value

_EDGE = 1e-9  # slack for floating-point arithmetic, far below any printed digit
_MOST_ROUNDS = 100_000  # candidates for the number of rounds; more cannot be distinguished by printed figures


@dataclass(frozen=True)
class Figures:
    """What a source prints about some rounds; all optional.

    `length` has `digits` after the point (None: not rounded) and should hold the bonus token. `rounds`, `accepted`,
    `drafted`: counts, drafts only. `by_position`: marginal shares with `position_digits` digits. `rate`: accepted /
    drafted. `per_round`: the most drafts that one round can accept (K).
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
    """Return the figures by the one rule. `rule` names the source's rule and what was converted."""
    problems: list[str] = []
    figures = _check_counts(figures, problems)
    length, exact = _length(figures, problems)
    positions = _positions(figures, length, problems)
    if length is None and positions:
        length, exact = 1 + sum(positions), True
    impossible = None if length is None else _out_of_bounds(length, figures, exact=exact)
    problems += [impossible] if impossible else []
    return AcceptanceRecord(
        source=source,
        accept_length=None if impossible else length,
        by_position=positions,
        rounds=figures.rounds,
        proposed=figures.per_round,
        rule=rule,
        impossible="; ".join(dict.fromkeys(problems)),
        condition=dict(condition or {}),
    )


def digits_of(text: str) -> int:
    """Return the number of digits after the point, as printed: 2 for "2.95"."""
    return len(text.partition(".")[2])


def half_unit(digits: int | None) -> float:
    """Return how far a printed number may be from the rounded one."""
    return (0.0 if digits is None else 0.5 * 10.0**-digits) + _EDGE


def recover_rounds(figures: Figures) -> int | None:
    """Return the number of rounds that fits every printed figure, where exactly one does.

    Uses accepted and drafted counts, the accept length and the shares by position: each share is a whole number of
    rounds over the rounds. A round of full length drafts `per_round` tokens; the last ones may be shorter.
    """
    accepted, length, drafted, per_round = figures.accepted, figures.length, figures.drafted, figures.per_round
    if figures.rounds is not None:
        return figures.rounds
    if accepted is None or length is None or not all(map(math.isfinite, (length, *figures.by_position))):
        return None  # drafted tokens alone do not decide it, since drafts may be shorter
    full = drafted // per_round if drafted and per_round and drafted % per_round == 0 else None
    if accepted <= 0 or length <= 1:
        return full
    slack = half_unit(figures.digits)
    low = math.ceil(accepted / (length + slack - 1) - _EDGE)
    high = math.floor(accepted / (length - slack - 1) + _EDGE) if length - slack > 1 else low
    if high - low > _MOST_ROUNDS:
        return None
    fitting = [rounds for rounds in range(max(low, 1), high + 1) if _fits(rounds, figures)]
    return full if full in fitting else fitting[0] if len(fitting) == 1 else None


def with_rounds(figures: Figures) -> Figures:
    """Return the figures with the number of rounds, where it follows from them."""
    return replace(figures, rounds=recover_rounds(figures))


def _fits(rounds: int, figures: Figures) -> bool:
    if figures.drafted is not None and figures.per_round and rounds * figures.per_round < figures.drafted:
        return False
    counts = [round(share * rounds) for share in figures.by_position]
    slack = half_unit(figures.position_digits)
    if any(abs(n / rounds - share) > slack for n, share in zip(counts, figures.by_position, strict=True)):
        return False
    return not counts or sum(counts) == figures.accepted


def _check_counts(figures: Figures, problems: list[str]) -> Figures:
    """The figures without impossible counts."""
    rounds, accepted, drafted, rate = figures.rounds, figures.accepted, figures.drafted, figures.rate
    for name, value in (("rounds", rounds), ("accepted drafts", accepted), ("drafted tokens", drafted)):
        if value is not None and value < 0:
            problems.append(
                f"{value} {name}: no counting rule explains a negative count (a sentinel was added up, "
                "or a counter was reset between two readings)"
            )
            return replace(figures, rounds=None, accepted=None)
    if accepted is not None and drafted is not None and accepted > drafted:
        why = "no counting rule explains it"
        if rounds and accepted - rounds <= drafted:
            why = f"explained if the bonus token of each of the {rounds} rounds was counted as accepted; "
            why += f"drafts alone would be {accepted - rounds}"
        problems.append(f"{accepted} accepted of {drafted} drafted: {why}")
        figures = replace(figures, rounds=None, accepted=None)
    if rate is not None and rate > 1 + _EDGE:
        text = f"acceptance rate {rate:g} is above 1: explained if the bonus token is in the numerator"
        if figures.per_round:
            text += f"; over {figures.per_round} drafts per round that is accept length {rate * figures.per_round:.2f}"
        problems.append(text)
    elif rate is not None and rate < 0:
        problems.append(f"acceptance rate {rate:g}: no counting rule explains a negative rate")
    return figures


def _length(figures: Figures, problems: list[str]) -> tuple[float | None, bool]:
    """The accept length, and whether it is exact: computed from counts, which are preferred."""
    rounds, accepted, printed = figures.rounds, figures.accepted, figures.length
    if printed is not None and not math.isfinite(printed):
        problems.append(f"accept length {printed}: no counting rule explains it (something was divided by no rounds)")
        printed = None
    if not rounds or accepted is None:
        return printed, False
    computed = 1 + accepted / rounds
    if printed is not None:
        slack, off = half_unit(figures.digits), printed - computed
        why = "no counting rule explains the difference"
        if abs(off - 1) <= slack:
            why = "one higher, explained if the bonus token of each round was counted twice"
        elif abs(off + 1) <= slack:
            why = "one lower, explained if the bonus token was not counted"
        if abs(off) > slack:
            problems.append(f"accept length {printed:g}, but 1 + {accepted}/{rounds} = {computed:.2f}: {why}")
    return computed, True


def _out_of_bounds(length: float, figures: Figures, *, exact: bool) -> str | None:
    slack, bound = _EDGE if exact else half_unit(figures.digits), figures.per_round
    if length < 0 and length < 1 - slack:
        return f"accept length {length:g}: no counting rule explains a negative length"
    if length < 1 - slack:
        why = f"explained if the bonus token was not counted; with it that is {1 + length:g}"
        return f"accept length {length:g} is below 1: {why}"
    if bound is None or length <= bound + 1 + slack:
        return None
    why = f"explained if a round drafts at least {math.ceil(length - slack) - 1} (read the resolved draft tokens)"
    if length - 1 <= bound + 1 + slack:
        why += ", or if one token per round was counted too many (the bonus token twice), which leaves "
        why += f"{length - 1:.2f}, or if the prefill token of short answers was counted"
    return f"accept length {length:g} is above drafts per round + 1 = {bound + 1}: {why}"


def _positions(figures: Figures, length: float | None, problems: list[str]) -> tuple[float, ...]:
    """Marginal shares, shifted where position 0 is the bonus token and multiplied out where they are conditional."""
    shares = figures.by_position
    if not shares:
        return ()
    slack = half_unit(figures.position_digits)
    text = f"acceptance by position {', '.join(f'{share:g}' for share in shares)}"
    wrong = [share for share in shares if not math.isfinite(share) or not -slack <= share <= 1 + slack]
    if wrong:
        problems.append(f"{text}: {wrong[0]:g} is not a share of rounds; no rule explains it")
        return ()
    fits, products = _adds_up(figures, length), tuple(accumulate(shares, mul))
    bonus = shares[0] >= 1 - slack
    if bonus and length is not None and len(shares) > 1 and not fits(shares) and fits(shares[1:]):
        problems.append(
            f"{text} adds up to the accept length itself: position 0 is the bonus token, the drafts begin at position 1"
        )
        return shares[1:]
    if bonus and figures.per_round is not None and len(shares) == figures.per_round + 1:
        problems.append(f"{text} has one position more than {figures.per_round} drafts: position 0 is the bonus token")
        return shares[1:]
    rises = any(after > before + 2 * slack for before, after in pairwise(shares))
    if not rises and fits(shares):
        return shares
    if fits(products) and length is not None:
        problems.append(
            f"{text} cannot be shares of all rounds: explained as conditional rates (of the rounds that reach the "
            "position), which multiply out to the length"
        )
        return products
    why = "rises, which a share of all rounds cannot" if rises else f"does not add up to accept length {length:.2f} - 1"
    explained = rises and length is None
    problems.append(
        f"{text} {why}: {'explained if the rates are conditional' if explained else 'no counting rule explains it'}"
    )
    return ()


def _adds_up(figures: Figures, length: float | None) -> Callable[[Sequence[float]], bool]:
    slack = half_unit(figures.digits if figures.accepted is None or not figures.rounds else None)
    spread = half_unit(figures.position_digits)
    return lambda shares: length is None or abs(sum(shares) - (length - 1)) <= slack + spread * len(shares)
