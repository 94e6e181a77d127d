"""The 25 kinds of fault, each as one declared entry; numbers and names are those of `wiring.engines.faults`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from wiring.diagnosis.faults import capture_faults as capture
from wiring.diagnosis.faults import cost_faults as cost
from wiring.diagnosis.faults import draft_faults as inputs
from wiring.diagnosis.faults import server_faults as server
from wiring.diagnosis.faults import training_faults as training
from wiring.diagnosis.faults.fault import FaultKind

__all__ = ["KINDS", "FaultKind"]

KINDS: Mapping[int, FaultKind] = MappingProxyType(
    {kind.number: kind for group in (capture, inputs, server, training, cost) for kind in group.KINDS}
)
