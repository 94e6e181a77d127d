"""Find one size in the config that the tensors contradict, and report it once instead of once per tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.file_findings import Finding
from wiring.errors import WiringError
from wiring.lint.lint_inputs import DraftView, View, WrongSize

_TOP_LEVEL = ("target_hidden_size", "draft_vocab_size")  # outside transformer_layer_config in speculators' format
_FAULTS = {"hidden_size": 3, "target_hidden_size": 3, "draft_vocab_size": 9}
_ABSENT = "is not in the config"


def correct_size(draft: DraftView) -> tuple[DraftView, WrongSize | None]:
    """Return the draft with the size corrected that its tensors contradict, and that size; None if there is none.

    Each tensor suggests values for sizes. The value is taken that leaves the fewest tensors misshapen, if it explains
    more than half of the misshapen tensors, and at least two.
    """
    misshapen = _misshapen(draft, draft.config) if draft.shape is not None else None
    if misshapen is None or len(misshapen) < 2:
        return draft, None
    tried = []
    for field, value in dict.fromkeys(_suggested(draft)):
        left = _misshapen(draft, _with(draft, field, value))
        if left is not None and len(misshapen) - len(left) >= max(2, len(misshapen) // 2 + 1):
            tried.append((len(left), field, value, left))
    if not tried:
        return draft, None
    _, field, value, left = min(tried, key=lambda one: one[0])
    source = draft.config if field in _TOP_LEVEL else draft.layer
    stated = _ABSENT if field not in source else "is null" if source[field] is None else f"is {source[field]}"
    wrong = WrongSize(field, stated, value, tuple(name for name in misshapen if name not in left))
    return replace(draft, config=_with(draft, field, value), shape=None, checkpoint=None).interpreted(), wrong


def wrong_size(view: View) -> Iterator[Finding]:
    """Report the wrong size; all other checks use the corrected one."""
    wrong = view.wrong_size
    if wrong is None:
        return
    stated = f"{wrong.field} {wrong.stated}"
    if view.sglang and (wrong.field, wrong.stated) == ("draft_vocab_size", _ABSENT):
        stated += ", so SGLang stops at its start"
    evidence = (
        f"{stated}, and {len(wrong.tensors)} tensors have the shapes of {wrong.meant}: {', '.join(wrong.tensors)}"
    )
    remedy = f"Write {wrong.field} {wrong.meant}, if the tensors are the draft's; the other checks use this value"
    yield Finding(_FAULTS.get(wrong.field, 10), "error", view.draft.at(wrong.field), evidence, remedy)


def _with(draft: DraftView, field: str, value: int) -> dict[str, Any]:
    if draft.layer is draft.config or field in _TOP_LEVEL:
        return {**draft.config, field: value}
    return {**draft.config, "transformer_layer_config": {**draft.layer, field: value}}


def _misshapen(draft: DraftView, config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the tensors to which this config gives another shape; None if it cannot be read.

    The number of states comes from `fc`: a wrong slot count is not a wrong size.
    """
    try:
        shape = Eagle3Config.from_dict(replace(draft, config=config).plain_config, draft.where, draft.producer)
    except WiringError:
        return None
    fc = draft.named.get("fc.weight")
    if fc is not None and fc.dim() == 2 and fc.shape[1] and fc.shape[1] % shape.target_hidden_size == 0:
        shape = replace(shape, num_slots=fc.shape[1] // shape.target_hidden_size)
    known = shape.optional_shapes() | shape.required_shapes()
    return tuple(name for name, tensor in draft.named.items() if name in known and tuple(tensor.shape) != known[name])


def _suggested(draft: DraftView) -> Iterator[tuple[str, int]]:
    """Yield each field with the value that one tensor suggests."""
    shape = draft.shape
    assert shape is not None

    def size(name: str, axis: int = 0) -> int:
        found = draft.named[name].shape if name in draft.named else ()
        return found[axis] if len(found) > axis else 0

    features = size("fc.weight", 1)
    candidates = [
        ("hidden_size", size("norm.weight"), 1),
        ("hidden_size", size("layers.0.input_layernorm.weight"), 1),
        ("hidden_size", size("fc.weight"), 1),
        ("target_hidden_size", features, shape.num_slots),
        ("draft_vocab_size", size("lm_head.weight"), 1),
        ("intermediate_size", size("layers.0.mlp.gate_proj.weight"), 1),
        ("head_dim", size("layers.0.self_attn.q_proj.weight"), shape.num_heads),
        ("num_attention_heads", size("layers.0.self_attn.q_proj.weight"), shape.head_dim),
        ("num_key_value_heads", size("layers.0.self_attn.k_proj.weight"), shape.head_dim),
    ]
    yield from ((field, rows // per) for field, rows, per in candidates if rows and rows % per == 0)
