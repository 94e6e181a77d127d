"""Trained layout against served layout: which of the three layout faults it is, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wiring.diagnosis.symptoms.symptom import Letter, Symptom
from wiring.layers import Layout, default_layout

OTHER, OFF_BY_ONE, REORDERED = "other_boundaries_served", "boundaries_off_by_one", "slots_reordered"
PREFILL_ALONE = 0.6  # certainty that the layout is right everywhere where only the prefill was seen


def layout_symptom(trained: Layout, served: Layout, num_layers: int = 0) -> str | None:
    """The symptom's name, None where both are the same. `num_layers` 0: the target's depth is not known.

    The trained boundaries in another order or number are `REORDERED`. All slots one boundary up or down is a
    convention (`OFF_BY_ONE`) even where that makes the engine's default layers; so are single slots, unless it does.
    Everything else serves what was not trained (`OTHER`).
    """
    if trained == served:
        return None
    if len(trained) != len(served) or sorted(trained) == sorted(served):
        return REORDERED
    # The embedding and the last boundary have nothing below or above them: they may stay where they are.
    ends = (0, num_layers)
    moved = {s - t for t, s in zip(trained, served, strict=True) if not (s == t and t in ends)}
    if moved in ({1}, {-1}):
        return OFF_BY_ONE
    default = num_layers >= 8 and served == default_layout(num_layers)
    return OFF_BY_ONE if moved <= {-1, 0, 1} and not default else OTHER


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
    for other in (OTHER, OFF_BY_ONE, REORDERED):
        yield Symptom(other, False, certainty, letter, text, source)


def _shown(layout: Layout) -> str:
    return "(" + ", ".join(map(str, layout)) + ")"
