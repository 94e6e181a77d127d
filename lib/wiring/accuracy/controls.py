"""Negative controls: the saved states corrupted in a known way, to measure what failure looks like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from wiring.checkpoints.states import StateSample

AS_THEY_ARE = "none"
CORRUPTED = ("zeroed", "shifted", "permuted", "other_sequence")
"""zeroed: all states zero. shifted: each row gets the state of the token before. permuted: slot i gets the state of
slot i + 1. other_sequence: states of the previous sequence of the sample."""


def with_controls(
    samples: Iterable[StateSample], layout: Layout, controls: Sequence[str] = (AS_THEY_ARE,)
) -> Iterator[tuple[StateSample, dict[str, Tensor]]]:
    """Pair each sample with its states [N, n, H] in `layout` under each control; samples are streamed in order.

    "other_sequence" takes the states of the sample before (the first sample those of the second), repeated where they
    are shorter. Raises WiringError for an unknown control, for one that changes nothing under `layout`, and for a
    single sample there.
    """
    for control in controls:
        if control not in (AS_THEY_ARE, *CORRUPTED):
            names = ", ".join((AS_THEY_ARE, *CORRUPTED))
            raise WiringError(
                "unknown control", code="control-unknown", where="controls", expected=names, found=control
            )
        if control == "permuted" and len(set(layout)) < 2:
            raise WiringError(
                "rotating the slots changes nothing",
                code="control-without-effect",
                where=f"layout {layout}",
                expected="two different boundaries",
            )
    pairs = _with_neighbor(samples) if "other_sequence" in controls else ((sample, None) for sample in samples)
    return ((sample, {c: _changed(sample, layout, c, other) for c in controls}) for sample, other in pairs)


def _changed(sample: StateSample, layout: Layout, control: str, other: StateSample | None) -> Tensor:
    if other is not None and control == "other_sequence":
        states = other.select(layout)
        return states[[i % len(states) for i in range(len(sample.tokens))]]
    states = sample.select(layout)
    if control == "zeroed":
        return states.new_zeros(states.shape)
    if control == "shifted":
        return states[[0, *range(len(states) - 1)]]
    return states.roll(-1, 1) if control == "permuted" else states


def _with_neighbor(samples: Iterable[StateSample]) -> Iterator[tuple[StateSample, StateSample]]:
    """Pair each sample with the one before it, the first with the second."""
    stream = iter(samples)
    first = next(stream, None)
    if first is None:
        return
    second = next(stream, None)
    if second is None:
        raise WiringError(
            "the control other_sequence needs two sequences", code="one-sequence", where=first.source, found="one"
        )
    yield first, second
    yield second, first
    before = second
    for sample in stream:
        yield sample, before
        before = sample
