"""Trained layout against served layout: which of the three layout faults it is, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wiring.diagnosis.symptoms.symptom import Letter, Symptom
from wiring.layers import Layout, LayoutFault, classify_layout

_NAMES = {
    LayoutFault.OTHER_BOUNDARIES: "other_boundaries_served",
    LayoutFault.OFF_BY_ONE: "boundaries_off_by_one",
    LayoutFault.COUNT_OR_ORDER: "slots_reordered",
}
PREFILL_ALONE = 0.6  # certainty that the layout is right everywhere where only the prefill was seen


def layout_symptom(trained: Layout, served: Layout, num_layers: int = 0) -> str | None:
    """Return the symptom's name by `wiring.layers.classify_layout`; None where both layouts are equal."""
    fault = classify_layout(trained, served, num_layers)
    return None if fault is None else _NAMES[fault]


def layout_symptoms(
    trained: Sequence[int], served: Sequence[int], num_layers: int, phase: str, letter: Letter, source: str
) -> Iterator[Symptom]:
    """The layout fault of one phase as present, or all three as absent."""
    trained, served = tuple(trained), tuple(served)
    name = layout_symptom(trained, served, num_layers)
    if name is not None:
        text = f"{phase}: trained on boundaries {_shown(trained)}, served {_shown(served)}"
        yield Symptom(name, True, 1.0, letter, text, source)
        return
    certainty = PREFILL_ALONE if phase == "prefill" else 1.0
    text = f"{phase}: served the trained boundaries {_shown(trained)}"
    for other in _NAMES.values():
        yield Symptom(other, False, certainty, letter, text, source)


def _shown(layout: Layout) -> str:
    return "(" + ", ".join(map(str, layout)) + ")"
