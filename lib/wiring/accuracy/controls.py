"""Negative controls: the same states spoilt in a known way, to show what failure would look like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from wiring.checkpoints.states import StateSample

AS_THEY_ARE = "none"
CONTROLS = {
    AS_THEY_ARE: "the states as they are",
    "zeroed": "all states zero: what the draft knows from the text alone",
    "shifted": "each row gets the state of the token before it",
    "permuted": "slots rotated by one: slot i gets the state of slot i + 1",
    "other_sequence": "states of the sequence before it in the sample",
}
SPOILT = tuple(name for name in CONTROLS if name != AS_THEY_ARE)


def check_control(control: str, layout: Layout) -> None:
    """Raise WiringError for an unknown control, or for one that would change nothing under `layout`."""
    if control not in CONTROLS:
        raise WiringError(f"no control is called {control!r}", expected=", ".join(CONTROLS), found=repr(control))
    if control == "permuted" and len(set(layout)) < 2:
        raise WiringError(
            "rotating the slots changes nothing", where=f"layout {layout}", expected="two different boundaries"
        )


def with_controls(
    samples: Iterable[StateSample], layout: Layout, controls: Sequence[str] = (AS_THEY_ARE,)
) -> Iterator[tuple[StateSample, dict[str, Tensor]]]:
    """Pair each sample with its states [N, n, H] in `layout` under each control; samples are streamed in order.

    "other_sequence" takes the states of the sample before (the first sample those of the second); where the other is
    shorter, its states are repeated. Raises WiringError as `check_control` does, and for a lone sample there.
    """
    for control in controls:
        check_control(control, layout)
    if "other_sequence" in controls:
        paired = _with_neighbour(samples)
    else:
        paired = ((sample, None) for sample in samples)
    return (
        (sample, {control: _changed(sample, layout, control, other) for control in controls})
        for sample, other in paired
    )


def _changed(sample: StateSample, layout: Layout, control: str, other: StateSample | None) -> Tensor:
    if control == "other_sequence":
        states, length = other.select(layout), len(sample.tokens)
        return states[[i % len(states) for i in range(length)]]
    states = sample.select(layout)
    if control == "zeroed":
        return states.new_zeros(states.shape)
    if control == "shifted":
        return states[[0, *range(len(states) - 1)]]
    return states.roll(-1, 1) if control == "permuted" else states


def _with_neighbour(samples: Iterable[StateSample]) -> Iterator[tuple[StateSample, StateSample]]:
    stream = iter(samples)
    first = next(stream, None)
    if first is None:
        return
    second = next(stream, None)
    if second is None:
        raise WiringError("the control other_sequence needs two sequences", where=first.source, found="one")
    yield first, second
    yield second, first
    before = second
    for sample in stream:
        yield sample, before
        before = sample
