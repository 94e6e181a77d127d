"""Several records of acceptance as one: weighted by rounds where these are known, and said where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wiring.errors import WiringError
from wiring.logs.evidence import AcceptanceRecord, Value

_UNWEIGHTED = "mean of {n} figures, not weighted: their rounds are not printed"
_WEIGHTED = "pooled over {n} figures by their rounds"


class Pool:
    """Takes records one by one and keeps sums only.

    Records with rounds count by their rounds. Those without (gauges and lines of a log interval) are averaged as they
    come, and only where none has rounds: one figure must not mix both. Records without an accept length, which is
    what an impossible figure leaves behind, are left out and counted; `impossible` speaks of what was taken in.
    """

    def __init__(self, condition: Mapping[str, Value] | None = None) -> None:
        """`condition`: what the pool stands for; else what its records have in common."""
        self._first: AcceptanceRecord | None = None
        self._given = condition
        self._condition: dict[str, Value] = {}
        self._proposed: int | None = None
        self._weighted = self._rounds = self._plain = self._left_out = 0
        self._accepted = self._lengths = 0.0
        self._positions: list[float] | None = None
        self._position_rounds = 0
        self._impossible = self._left_out_why = ""

    def add(self, record: AcceptanceRecord) -> None:
        """Count one record in."""
        if self._first is None:
            self._first, self._proposed = record, record.proposed
            self._condition = dict(record.condition if self._given is None else self._given)
        else:
            if self._given is None:
                shared = set(self._condition.items()) & set(record.condition.items())
                self._condition = {name: value for name, value in self._condition.items() if (name, value) in shared}
            self._proposed = self._proposed if self._proposed == record.proposed else None
        if record.accept_length is None:
            self._left_out += 1
            self._left_out_why = self._left_out_why or record.impossible
            return
        self._impossible = self._impossible or record.impossible
        if record.rounds:
            self._weighted += 1
            self._rounds += record.rounds
            self._accepted += record.rounds * (record.accept_length - 1)
            self._add_positions(record)
        else:
            self._plain += 1
            self._lengths += record.accept_length

    def _add_positions(self, record: AcceptanceRecord) -> None:
        if not record.by_position or (self._positions is not None and len(self._positions) != len(record.by_position)):
            return
        self._positions = self._positions or [0.0] * len(record.by_position)
        self._position_rounds += record.rounds or 0
        for depth, share in enumerate(record.by_position):
            self._positions[depth] += share * (record.rounds or 0)

    def result(self) -> AcceptanceRecord:
        """The pooled record. Raises WiringError where nothing was added."""
        first = self._first
        if first is None:
            raise WiringError("no acceptance to pool", expected="at least one record", found="none")
        taken = self._weighted or self._plain
        if taken + self._left_out + (self._plain if self._weighted else 0) == 1:
            return first.model_copy(update={"condition": self._condition})
        told = [first.rule, (_WEIGHTED if self._weighted else _UNWEIGHTED).format(n=taken)]
        without = self._plain if self._weighted else 0
        if without:
            told.append(f"{without} without rounds left out")
        if self._left_out:
            told.append(f"{self._left_out} without a believable accept length left out")
        length = None
        if self._weighted:
            length = 1 + self._accepted / self._rounds
        elif self._plain:
            length = self._lengths / self._plain
        whole = self._positions is not None and self._position_rounds == self._rounds
        return AcceptanceRecord(
            source=f"{first.source} and {taken + without + self._left_out - 1} more",
            accept_length=length,
            by_position=tuple(min(share / self._rounds, 1.0) for share in self._positions or ()) if whole else (),
            rounds=self._rounds or None,
            proposed=self._proposed,
            rule="; ".join(filter(None, told)),
            impossible=self._impossible if taken else self._left_out_why,
            condition=self._condition,
        )


def pool(records: Iterable[AcceptanceRecord]) -> AcceptanceRecord:
    """One record of acceptance from several, e.g. all lines of a log. Raises WiringError where there are none."""
    pooled = Pool()
    for record in records:
        pooled.add(record)
    return pooled.result()
