"""Every case by a neutral name: single plants, pairs and healthy servers, measured by one protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plants_draft
import plants_server
import plants_states
from healthy_servers import HEALTHY
from measured_evidence import examine
from planted_server import Server
from planting import Ground, Plant, healthy

from wiring.diagnosis.verdict import Verdict, diagnose
from wiring.logs.evidence import Evidence

PLANTS: tuple[Plant, ...] = tuple(
    sorted((*plants_states.PLANTS, *plants_draft.PLANTS, *plants_server.PLANTS), key=lambda plant: plant.fault)
)
_BY = {(plant.fault, plant.strength): plant for plant in PLANTS}
# Two faults at once. The second is looked for again after the first named one is removed.
PAIRS: tuple[tuple[Plant, Plant], ...] = tuple(
    (_BY[a], _BY[b])
    for a, b in (
        ((1, "strong"), (24, "strong")),
        ((12, "strong"), (5, "strong")),
        ((9, "strong"), (18, "strong")),
        ((21, "weak"), (15, "strong")),
        ((11, "weak"), (14, "strong")),
        ((16, "strong"), (6, "strong")),
    )
)


@dataclass(frozen=True)
class Case:
    """`planted`: the plants in the order of planting; empty for a healthy server."""

    name: str
    planted: tuple[Plant, ...]
    evidence: Evidence
    verdict: Verdict

    @property
    def faults(self) -> tuple[int, ...]:
        """The expected answer."""
        return tuple(plant.fault for plant in self.planted)

    @property
    def ranked(self) -> tuple[int, ...]:
        """The verdict's faults, best first."""
        return tuple(candidate.fault for candidate in self.verdict.ranking)


class Cases:
    """Measures each case once, on first use."""

    def __init__(self, ground: Ground):
        self.ground = ground
        self._made: dict[tuple, Case] = {}

    def planted(self, *plants: Plant) -> Case:
        """A server with these faults."""

        def make() -> Server:
            server = healthy(self.ground)
            for plant in plants:
                server = plant.apply(self.ground, server)
            return server

        return self._case(tuple(plants), make)

    def healthy(self, index: int) -> Case:
        """One of the healthy servers."""
        return self._case((), lambda: HEALTHY[index](self.ground), index)

    def _case(self, plants: tuple[Plant, ...], make: Callable[[], Server], index: int = -1) -> Case:
        key = *((plant.fault, plant.strength) for plant in plants), index
        if key not in self._made:
            name = f"case {len(self._made):02}"
            evidence = examine(self.ground.bench, make(), name)
            self._made[key] = Case(name, plants, evidence, diagnose(evidence))
        return self._made[key]
