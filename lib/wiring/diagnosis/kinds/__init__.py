"""The 25 kinds of fault, each as one declared entry; numbers and names are those of `wiring.rules.faults`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from wiring.diagnosis.kinds import capture, cost, inputs, server, training
from wiring.diagnosis.kinds.kind import FaultKind

__all__ = ["KINDS", "FaultKind"]

KINDS: Mapping[int, FaultKind] = MappingProxyType(
    {kind.number: kind for group in (capture, inputs, server, training, cost) for kind in group.KINDS}
)
