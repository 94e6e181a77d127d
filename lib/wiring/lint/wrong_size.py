"""One size in the config that the tensors contradict: the single cause of many misshapen tensors, told once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.errors import WiringError
from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import DraftView, View, draft_view

_OF_FC = ("hidden_size", "target_hidden_size")
_OF_THE_DRAFT = ("target_hidden_size", "draft_vocab_size")  # speculators keeps these outside
_VOCABULARY = "draft_vocab_size"
_ABSENT = "is not in the config"
_NESTED = "transformer_layer_config"  # where speculators keeps the layers' sizes


@dataclass(frozen=True)
class WrongSize:
    """`field` of the config `said` something ("is 128", "is not in the config"), the tensors of these names `meant`."""

    field: str
    said: str
    meant: int
    tensors: tuple[str, ...]


def corrected(draft: DraftView) -> tuple[DraftView, WrongSize | None]:
    """The draft as it would be with the one size that its tensors contradict put right, and which size that is.

    Of all sizes that single tensors suggest, the one is taken under which the fewest tensors are left misshapen, if it
    explains more than half of those that are, and at least two. The draft comes back as it is where none does.
    """
    if draft.shape is None or draft.tensors is None:
        return draft, None
    misshapen = _misshapen(draft, draft.config)
    if misshapen is None or len(misshapen) < 2:
        return draft, None
    tried = []
    for field, value in dict.fromkeys(_suggested(draft, draft.shape)):
        left = _misshapen(draft, _with(draft, field, value))
        if left is not None and len(misshapen) - len(left) >= max(2, len(misshapen) // 2 + 1):
            tried.append((len(left), field, value, left))
    if not tried:
        return draft, None
    _, field, value, left = min(tried, key=lambda one: one[0])
    wrong = WrongSize(field, _said(draft, field), value, tuple(name for name in misshapen if name not in left))
    return draft_view(draft.folder, _with(draft, field, value), draft.tensors, draft.files), wrong


def wrong_size(view: View) -> list[LintFinding]:
    """The finding; every other check was made as if the size stood right."""
    wrong = view.wrong_size
    if wrong is None:
        return []
    kind = 3 if wrong.field in _OF_FC else 9 if wrong.field == _VOCABULARY else 10
    said = f"{wrong.field} {wrong.said}"
    if view.sglang and (wrong.field, wrong.said) == (_VOCABULARY, _ABSENT):
        said += ", so that SGLang stops at its start"
    return [
        LintFinding(
            kind,
            "error",
            f"{view.draft.where}: {wrong.field}",
            f"{said}, and {len(wrong.tensors)} tensors have the shapes of {wrong.meant}: {', '.join(wrong.tensors)}",
            f"Write {wrong.field} {wrong.meant}, if the tensors are the draft's; the rest was checked as if it stood there",
        )
    ]


def _said(draft: DraftView, field: str) -> str:
    source = draft.config if field in _OF_THE_DRAFT else draft.layer
    if field in source:
        return f"is {'null' if source[field] is None else source[field]}"
    return _ABSENT


def _with(draft: DraftView, field: str, value: int) -> dict[str, Any]:
    if draft.layer is draft.config or field in _OF_THE_DRAFT:
        return {**draft.config, field: value}
    return {**draft.config, _NESTED: {**draft.layer, field: value}}


def _misshapen(draft: DraftView, config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Names in the file of the tensors that this config gives another shape; None where it cannot be read at all.

    How many states `fc` takes is left to the tensor: a wrong count is no wrong size.
    """
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    try:
        shape = Eagle3Config.from_dict(plain, draft.where, draft.producer)
    except WiringError:
        return None
    fc = draft.named.get("fc.weight")
    if fc is not None and fc.dim() == 2 and fc.shape[1] and fc.shape[1] % shape.target_hidden_size == 0:
        shape = replace(shape, num_slots=fc.shape[1] // shape.target_hidden_size)
    known = shape.optional_shapes() | shape.required_shapes()
    return tuple(name for name, tensor in draft.named.items() if name in known and tuple(tensor.shape) != known[name])


def _suggested(draft: DraftView, shape: Eagle3Config) -> Iterator[tuple[str, int]]:
    """Each field with the value that one tensor alone would give it."""
    sizes = {name: tuple(tensor.shape) for name, tensor in draft.named.items()}

    def size(name: str, axis: int = 0) -> int:
        found = sizes.get(name, ())
        return found[axis] if len(found) > axis else 0

    for name in ("norm.weight", "layers.0.input_layernorm.weight", "fc.weight"):
        if size(name):
            yield "hidden_size", size(name)
    if size("fc.weight", 1) and size("fc.weight", 1) % shape.num_slots == 0:
        yield "target_hidden_size", size("fc.weight", 1) // shape.num_slots
    if size("lm_head.weight"):
        yield _VOCABULARY, size("lm_head.weight")
    for field, name, per in (
        ("intermediate_size", "mlp.gate_proj", 1),
        ("head_dim", "self_attn.q_proj", shape.num_heads),
        ("num_attention_heads", "self_attn.q_proj", shape.head_dim),
        ("num_key_value_heads", "self_attn.k_proj", shape.head_dim),
    ):
        rows = size(f"layers.0.{name}.weight")
        if rows and rows % per == 0:
            yield field, rows // per
