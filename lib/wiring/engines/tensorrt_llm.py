"""TensorRT-LLM's rule: output ids given to the engine itself, sorted; the draft's config is not asked.

Read from TensorRT-LLM as stored publicly: `tensorrt_llm/_torch/speculative/eagle3.py` (`Eagle3SpecMetadata`). It is one
stored version, so no release is told from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wiring.engines.served_layout import Note, ServedLayout
from wiring.engines.target_shape import Target
from wiring.layers import IdConvention, to_boundaries

_FINAL_NORM = -1  # the id of the state after the final norm, which training data are saved with


def serve(
    version: str | None,
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    *,
    cuda_graphs: bool = True,
    tp_size: int = 1,
    embedding_plugin: bool = False,
    slots: int | None = None,
    engine_ids: tuple[int, ...] | None = None,
) -> ServedLayout:
    """As `wiring.engines.resolve.served_layout`, for TensorRT-LLM; `engine_ids` is its `eagle3_layers_to_capture`."""
    num_layers = Target.from_config(target_config).num_layers
    notes: tuple[Note, ...] = ()
    if version is not None:
        text = f"TensorRT-LLM {version} was not read itself: the rule of one stored version is assumed for all"
        notes = (Note(0, "warning", text, "Confirm the layout by capture"),)
    if engine_ids is None:
        engine_ids = (1, num_layers // 2 - 1, num_layers - 4)
        text = "TensorRT-LLM takes layer ids from its own eagle3_layers_to_capture, not from the draft: default layers"
        remedy = "Set eagle3_layers_to_capture to the trained boundaries less 1; the embedding cannot be captured there"
        notes += (Note(1, "warning", text, remedy),)
    asked = to_boundaries((i for i in engine_ids if i != _FINAL_NORM), IdConvention.OUTPUT_ID)
    captured = tuple(sorted({b for b in asked if 1 <= b <= num_layers}))
    notes += (Note(2, "note", "ids are output ids (boundary = id + 1)"),)
    wanted = slots or draft_config.get("num_aux_hidden_states") or len(set(asked))
    if len(captured) != len(engine_ids) or len(captured) != wanted:
        text = f"{len(captured)} states are captured ({list(captured)}), fc takes {wanted}"
        remedy = "Name as many different layers as fc has slots; the embedding cannot be captured"
        return ServedLayout(None, None, None, (*notes, Note(3, "error", text, remedy)))
    if captured != asked:
        text = "states are captured in ascending order whatever the order of the ids"
        notes += (Note(3, "warning", text, "Compare with the order of the slots in training"),)
    return ServedLayout(captured, captured, captured, notes)
