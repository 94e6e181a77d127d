"""Shares and accepted drafts per round with 95 % intervals, and the comparisons of them that decide symptoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import stdev

from wiring.accuracy.stats import Z95, wilson_interval
from wiring.logs.evidence import AcceptanceRecord

# Rows and rounds of one prompt are correlated: n of them carry the information of n / DESIGN independent ones. On other
# prompts the factor is 4.7 and 4.8 on the two arms of data/recorded/cpu-tiny/05_measured.json (prompts resampled,
# against rounds); on the same prompts most of it cancels.
OTHER_PROMPTS, SAME_PROMPTS = 5.0, 2.0
BARE = 0.15  # half-width, as a share, assumed for a figure without counts
COUNTED, UNCOUNTED = 1.0, 0.8  # certainty of what counts decide, and of a clear effect between bare figures
SIGNIFICANT = 2.58  # standard errors, 1 in 100: many contrasts are tested per case, and a healthy server must pass all
CLEAR = 0.08  # the smallest fall between two bare figures that counts as one
LEAST, LEAST_OTHER = 0.1, 0.15  # drafts per round: smaller differences are ignored, on the same and on other text
NO_FALL = 0.25  # a fall is excluded where the interval leaves less than this share


@dataclass(frozen=True)
class Bounded:
    """A figure with its 95 % interval; `counted`: the interval comes from counts or was given."""

    value: float
    low: float
    high: float
    counted: bool

    @property
    def error(self) -> float:
        """Standard error that corresponds to the interval."""
        return (self.high - self.low) / (2 * Z95)

    def __str__(self) -> str:
        return f"{self.value:.3g}" + (f" ({self.low:.3g} to {self.high:.3g})" if self.counted else "")


def share(
    value: float,
    rows: int | None,
    low: float | None = None,
    high: float | None = None,
    design: float = OTHER_PROMPTS,
) -> Bounded:
    """Return a share with the given interval, Wilson's from `rows`, or the one assumed for a bare figure."""
    if low is not None and high is not None:
        return Bounded(value, low, high, True)
    if not rows:
        return Bounded(value, max(0.0, value * (1 - BARE)), min(1.0, value * (1 + BARE)), False)
    return Bounded(value, *wilson_interval(value, rows / design), True)


@dataclass(frozen=True)
class Accepted:
    """What the rounds of one condition accepted: drafts per round (without the bonus token), and by position.

    `by_position` is empty where unknown; `proposed`: drafts per round along one path; `design`: the design factor of
    the intervals.
    """

    drafts: Bounded
    rounds: int | None
    by_position: tuple[float, ...]
    proposed: int | None
    source: str
    design: float = OTHER_PROMPTS

    @property
    def length(self) -> float:
        """Accept length, bonus token included."""
        return 1 + self.drafts.value

    @property
    def first(self) -> Bounded | None:
        """Share of rounds that accepted the first draft, where known."""
        return share(self.by_position[0], self.rounds, design=self.design) if self.by_position else None

    @property
    def first_at_most(self) -> Bounded:
        """`first`, or its upper bound: at most as many rounds accept a first draft as drafts are accepted."""
        if self.first is not None:
            return self.first
        d = self.drafts
        return Bounded(min(1.0, d.value), min(1.0, d.low), min(1.0, d.high), d.counted)


def pool(records: Sequence[AcceptanceRecord], design: float = OTHER_PROMPTS) -> Accepted | None:
    """Pool the records of one condition, weighted by rounds where every record has them; None without a figure."""
    usable = [(r, drafts) for r in records if not r.impossible and (drafts := _drafts(r)) is not None]
    if not usable:
        return None
    counted = all(r.rounds for r, _ in usable)
    weights = [r.rounds if counted and r.rounds else 1 for r, _ in usable]
    total = sum(weights)
    value = sum(w * d for w, (_, d) in zip(weights, usable, strict=True)) / total
    proposed = max((r.proposed for r, _ in usable if r.proposed), default=None)
    known = [(w, r.by_position) for w, (r, _) in zip(weights, usable, strict=True) if r.by_position]
    depth = min((len(positions) for _, positions in known), default=0)
    among = sum(w for w, _ in known)
    by_position = tuple(sum(w * positions[k] for w, positions in known) / among for k in range(depth))
    error = None
    if counted:
        error = sqrt(_variance(value, by_position, proposed) * design / total)
    elif len(usable) >= 5:  # log lines: each is a sample
        error = stdev(d for _, d in usable) * sqrt(design / len(usable))
    half = BARE * value if error is None else Z95 * error
    high = max(value + half, 3 * design / total if counted else 0.0)  # rule of three: 0 of n leaves up to 3 / n
    drafts = Bounded(value, max(0.0, value - half), high, error is not None)
    return Accepted(drafts, total if counted else None, by_position, proposed, usable[0][0].source, design)


def _drafts(record: AcceptanceRecord) -> float | None:
    """Accepted drafts per round; None without a possible figure."""
    if record.accept_length is not None:
        return record.accept_length - 1 if record.accept_length >= 1 else None
    if record.by_position and len(record.by_position) >= (record.proposed or 0):
        return sum(record.by_position)
    return None


def _variance(value: float, by_position: tuple[float, ...], proposed: int | None) -> float:
    """Variance of the drafts that one round accepts; without positions the largest that the mean allows."""
    if by_position and abs(sum(by_position) - value) <= 0.02 + 0.02 * value:
        second = sum((2 * k + 1) * p for k, p in enumerate(by_position))  # E[a^2] of a count from its tail shares
        return max(0.0, second - value * value)
    return value * (proposed - value) if proposed and proposed > value else value * (1 + value)


def below(measured: Bounded, expected: Bounded, margin: float) -> bool | None:
    """Return whether `measured` is significantly below `margin` times `expected`; None where it is undecided."""
    if margin * expected.value - measured.value > Z95 * hypot(measured.error, margin * expected.error):
        return True
    if measured.value >= margin * expected.value and measured.low >= (2 * margin - 1) * expected.value:
        return False
    return None


def above(measured: Bounded, expected: Bounded, margin: float) -> bool:
    """Return whether `measured` is significantly above `expected` / `margin`."""
    return measured.value - expected.value / margin > Z95 * hypot(measured.error, expected.error / margin)


def certainty(*figures: Bounded) -> float:
    """Return the certainty of a comparison of these figures."""
    return COUNTED if all(figure.counted for figure in figures) else UNCOUNTED


def fall(good: Accepted, bad: Accepted, floor: float, tolerated: float = 0.0) -> tuple[bool, float] | None:
    """Return whether acceptance falls from `good` to `bad` by the share `floor` or more, and its certainty.

    With counts, a fall must also be significantly larger than the share `tolerated`, and the interval must exclude a
    fall; bare figures must differ clearly. None: undecided.
    """
    drop = good.drafts.value - bad.drafts.value
    least = LEAST_OTHER if tolerated else LEAST
    if good.drafts.value < least:
        return None
    relative = drop / good.drafts.value
    if good.drafts.counted and bad.drafts.counted:
        error = hypot(good.drafts.error, bad.drafts.error)
        if relative >= floor and drop >= least and drop - SIGNIFICANT * error > tolerated * good.drafts.value:
            return True, COUNTED
        if relative < floor and drop + Z95 * error < max(NO_FALL, floor) * good.drafts.value:
            return False, COUNTED
        return None
    if relative >= max(floor, CLEAR) and drop >= least:
        return True, UNCOUNTED
    return (False, 0.5) if relative < CLEAR / 4 else None
