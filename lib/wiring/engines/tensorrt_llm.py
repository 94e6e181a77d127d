"""TensorRT-LLM's rule: output ids given to the engine itself, sorted; the draft's config is not read.

Read from TensorRT-LLM as stored publicly: `tensorrt_llm/_torch/speculative/eagle3.py` (`Eagle3SpecMetadata`). It is one
stored version, so all releases have the same rule here.
"""

from __future__ import annotations

from dataclasses import replace

from wiring.engines.engine_inputs import ServeRequest
from wiring.engines.served_layout import Note, ServedLayout, sorted_states
from wiring.layers import IdConvention, to_boundaries

_FINAL_NORM = -1  # the id of the state after the final norm, which training data are saved with


def resolve_served_layout(version: str | None, request: ServeRequest) -> ServedLayout:
    """Return the layout as `wiring.engines.resolve.served_layout` does; `engine_ids` is `eagle3_layers_to_capture`."""
    num_layers, ids = request.target.num_layers, request.engine_ids
    notes: tuple[Note, ...] = ()
    if version is not None:
        text = f"TensorRT-LLM {version} was not read itself: the rule of one stored version is assumed for all"
        notes = (Note(0, "warning", text, "Confirm the layout by capture"),)
    if ids is None:
        ids = (1, num_layers // 2 - 1, num_layers - 4)
        text = "TensorRT-LLM takes layer ids from its own eagle3_layers_to_capture, not from the draft: default layers"
        remedy = "Set eagle3_layers_to_capture to the trained boundaries less 1; the embedding cannot be captured there"
        notes += (Note(1, "warning", text, remedy),)
    notes += (Note(2, "note", "ids are output ids (boundary = id + 1)"),)
    asked = to_boundaries((i for i in ids if i != _FINAL_NORM), IdConvention.OUTPUT_ID)
    served = sorted_states(asked, num_layers, request.fc_slots(len(set(asked))))
    if served.prefill is not None and len(served.prefill) != len(ids):
        text = f"{len(ids)} ids are given, {len(served.prefill)} states are captured: the server stops"
        served = ServedLayout.in_all_phases(None, Note(3, "error", text, "Name each layer once, and no embedding"))
    return replace(served, notes=(*notes, *served.notes))
