"""Pool records of acceptance and of speed that were measured under one condition, in constant memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from wiring.logs.evidence import AcceptanceRecord, SpeedRecord, Value

_UNWEIGHTED = "mean of {n} figures, not weighted: their rounds are not printed"
_WEIGHTED = "pooled over {n} figures by their rounds"
_KEPT_SPEEDS = 1_000  # the median is of the first ones


@dataclass
class AcceptancePool:
    """Adds up records of acceptance under `condition`.

    Records with rounds are weighted by them. Those without (gauges and lines of a log interval) are averaged, and only
    where no record has rounds: one figure must not mix both. Records without an accept length, which is what an
    impossible figure leaves, are left out and counted; `impossible` is about the records taken in.
    """

    condition: dict[str, Value]
    first: AcceptanceRecord | None = None
    proposed: int | None = None
    weighted: int = 0
    unweighted: int = 0
    left_out: int = 0
    rounds: int = 0
    accepted: float = 0.0
    lengths: float = 0.0
    positions: list[float] = field(default_factory=list)  # rounds that accepted each position
    position_rounds: int = 0
    impossible: str = ""
    why_left_out: str = ""

    def add(self, record: AcceptanceRecord) -> None:
        """Add one record."""
        if self.first is None:
            self.first, self.proposed = record, record.proposed
        elif self.proposed != record.proposed:
            self.proposed = None
        if record.accept_length is None:
            self.left_out += 1
            self.why_left_out = self.why_left_out or record.impossible
            return
        self.impossible = self.impossible or record.impossible
        if not record.rounds:
            self.unweighted += 1
            self.lengths += record.accept_length
            return
        self.weighted += 1
        self.rounds += record.rounds
        self.accepted += record.rounds * (record.accept_length - 1)
        if record.by_position and len(self.positions) in (0, len(record.by_position)):
            before = self.positions or [0.0] * len(record.by_position)
            self.positions = [
                total + share * record.rounds for total, share in zip(before, record.by_position, strict=True)
            ]
            self.position_rounds += record.rounds

    def result(self) -> AcceptanceRecord:
        """Return the pooled record; at least one must have been added."""
        first, total = self.first, self.weighted + self.unweighted + self.left_out
        assert first is not None
        if total == 1:
            return first.model_copy(update={"condition": self.condition})
        taken = self.weighted or self.unweighted
        rule = [first.rule, (_WEIGHTED if self.weighted else _UNWEIGHTED).format(n=taken)]
        if self.weighted and self.unweighted:
            rule.append(f"{self.unweighted} without rounds left out")
        if self.left_out:
            rule.append(f"{self.left_out} without a believable accept length left out")
        length = self.lengths / self.unweighted if self.unweighted else None
        if self.weighted:
            length = 1 + self.accepted / self.rounds
        complete = self.position_rounds == self.rounds
        return AcceptanceRecord(
            source=f"{first.source} and {total - 1} more",
            accept_length=length,
            by_position=tuple(min(n / self.rounds, 1.0) for n in self.positions) if complete else (),
            rounds=self.rounds or None,
            proposed=self.proposed,
            rule="; ".join(filter(None, rule)),
            impossible=self.impossible if taken else self.why_left_out,
            condition=self.condition,
        )


@dataclass
class SpeedPool:
    """Collects speeds under `condition`; `length` is the sum of their accept lengths."""

    condition: dict[str, Value]
    first: SpeedRecord | None = None
    values: list[float] = field(default_factory=list)
    length: float = 0.0

    def add(self, record: SpeedRecord) -> None:
        """Add one record."""
        self.first = self.first or record
        if len(self.values) < _KEPT_SPEEDS and record.tok_per_s is not None:
            self.values.append(record.tok_per_s)
            self.length += record.accept_length or 0.0

    def result(self) -> SpeedRecord:
        """Return the median speed with the mean accept length; at least one record must have been added."""
        assert self.first is not None
        if len(self.values) == 1:
            return self.first.model_copy(update={"condition": self.condition})
        update = {
            "source": f"{self.first.source} and {len(self.values) - 1} more, median of log intervals",
            "tok_per_s": median(self.values),
            "condition": self.condition,
            "accept_length": self.length / len(self.values) or None,
        }
        return self.first.model_copy(update=update)
