"""Negative controls: the same states spoilt in a known way, to show what failure would look like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wiring.boundary import Layout
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

    from wiring.files.states import StateSample

CONTROLS = {
    "none": "the states as they are",
    "zeroed": "all states zero: what the draft knows from the text alone",
    "shifted": "each row gets the state of the token before it",
    "permuted": "slots rotated by one: slot i gets the state of slot i + 1",
    "other_sequence": "states of the sequence before it in the sample",
}


def check_control(control: str, layout: Layout) -> None:
    """Raise WiringError for an unknown control, or for one that would change nothing under `layout`."""
    if control not in CONTROLS:
        raise WiringError(f"no control is called {control!r}", expected=", ".join(CONTROLS), found=repr(control))
    if control == "permuted" and len(set(layout)) < 2:
        raise WiringError(
            "rotating the slots changes nothing", where=f"layout {layout}", expected="two different boundaries"
        )


def with_control(samples: Iterable[StateSample], layout: Layout, control: str) -> Iterator[tuple[StateSample, Tensor]]:
    """Pair each sample with its states [N, n, H] in `layout` under `control`; samples are streamed.

    "other_sequence" needs two samples (the first comes last, paired with the last); where the other is shorter, its
    states are repeated. Raises WiringError as `check_control` does, and for a lone sample.
    """
    check_control(control, layout)
    if control == "other_sequence":
        return _from_other(samples, layout)
    return ((sample, _changed(sample.select(layout), control)) for sample in samples)


def _changed(states: Tensor, control: str) -> Tensor:
    if control == "zeroed":
        return states.new_zeros(states.shape)
    if control == "shifted":
        return states[[0, *range(len(states) - 1)]]
    return states.roll(-1, 1) if control == "permuted" else states


def _from_other(samples: Iterable[StateSample], layout: Layout) -> Iterator[tuple[StateSample, Tensor]]:
    first = before = None
    for sample in samples:
        if before is None:
            first = sample
        else:
            yield sample, _fitted(before.select(layout), len(sample.tokens))
        before = sample
    if first is None:
        return
    if first is before:
        raise WiringError("the control other_sequence needs two sequences", where=first.source, found="one")
    yield first, _fitted(before.select(layout), len(first.tokens))


def _fitted(states: Tensor, length: int) -> Tensor:
    """Cut or repeat states to `length` rows."""
    return states[[i % len(states) for i in range(length)]]
