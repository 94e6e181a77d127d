"""Boundaries, layouts, phases and id conventions: the numbering of layers that the whole package uses.

Boundary b is transformers' hidden_states[b] before the final norm (TransformerLens: resid_pre of block b): b = 0 is
the embedding output, b = k the output of the k-th layer (the input of layer index k), b = L the last layer's output.
A layout is the ordered tuple of boundaries in the slots of the draft's `fc` input.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum

from wiring.errors import WiringError

Layout = tuple[int, ...]
MIN_DEFAULT_LAYERS = 7  # fewer: the three default boundaries are not distinct


class Phase(StrEnum):
    """The step of serving in which the target's states were produced."""

    PREFILL = "prefill"  # the prompt
    VERIFY = "verify"  # decode: the target's forward over the draft tokens
    DRAFT_EXTEND = "draft_extend"  # the draft's forward over the tokens that verify accepted


class IdConvention(StrEnum):
    """How a program numbers layers in the ids of captured states."""

    INPUT_ID = "input id"  # id k is the input of layer k: boundary k (vLLM, SafeAILab, speculators)
    OUTPUT_ID = "output id"  # id k is the output of layer k: boundary k + 1 (SpecForge, ModelOpt, TorchSpec)


_OFFSET = {IdConvention.INPUT_ID: 0, IdConvention.OUTPUT_ID: 1}


def to_boundaries(ids: Iterable[int], convention: IdConvention) -> Layout:
    """Translate ids of `convention` to boundaries, slot by slot; output id -1 is the embedding."""
    return tuple(i + _OFFSET[convention] for i in ids)


def from_boundaries(layout: Iterable[int], convention: IdConvention) -> tuple[int, ...]:
    """Translate boundaries to ids of `convention`, slot by slot."""
    return tuple(b - _OFFSET[convention] for b in layout)


def default_layout(num_layers: int) -> Layout:
    """Return the boundaries (2, L//2, L-3) that every engine captures if a draft names no ids.

    Raises WiringError if the target is too shallow for three different boundaries inside it.
    """
    if num_layers < MIN_DEFAULT_LAYERS:
        raise WiringError(
            "the target is too shallow for the default capture layers",
            code="target-too-shallow",
            expected=f"at least {MIN_DEFAULT_LAYERS} layers",
            found=f"{num_layers} layers",
            remedy="Name the layer ids in the draft's config",
        )
    return (2, num_layers // 2, num_layers - 3)


class LayoutFault(IntEnum):
    """How a served layout differs from the trained one; the values are fault numbers of `wiring.engines.faults`."""

    OTHER_BOUNDARIES = 1
    OFF_BY_ONE = 2
    COUNT_OR_ORDER = 3


def classify_layout(trained: Iterable[int], served: Iterable[int], num_layers: int = 0) -> LayoutFault | None:
    """Classify a served layout by what each slot holds; return None where it equals the trained layout.

    COUNT_OR_ORDER: another number of slots, or the trained boundaries in another order.
    OFF_BY_ONE: every slot that differs holds the boundary next to its trained one, all on the same side. Slots that
    hold their trained boundary do not count against it: no numbering puts a boundary below the embedding or above the
    last layer, and engines accept the embedding under an id of its own, so trained (0, 3, 31) served as (0, 4, 32) is
    off by one. The exception is the default layers of a target with `num_layers` layers (0: unknown): if they are
    served and some slots agree, the engine ignored the draft's ids and these slots agree by chance (trained
    (1, 21, 40), served (2, 21, 40), 43 layers), which is OTHER_BOUNDARIES.
    OTHER_BOUNDARIES: everything else.
    """
    trained, served = tuple(trained), tuple(served)
    if trained == served:
        return None
    if len(trained) != len(served) or sorted(trained) == sorted(served):
        return LayoutFault.COUNT_OR_ORDER
    steps = {after - before for before, after in zip(trained, served, strict=True)}
    if steps in ({1}, {-1}) or (steps in ({0, 1}, {0, -1}) and not is_default_layout(served, num_layers)):
        return LayoutFault.OFF_BY_ONE
    return LayoutFault.OTHER_BOUNDARIES


def is_default_layout(layout: Layout, num_layers: int) -> bool:
    """Return whether the boundaries are those that engines capture by default on a target of this many layers."""
    return num_layers >= MIN_DEFAULT_LAYERS and layout == default_layout(num_layers)


def parse_layout(text: str, num_layers: int | None = None) -> Layout:
    """Read a layout written as "0,3,31" (brackets and blanks allowed).

    Raises WiringError on anything that is not a list of boundaries within 0..num_layers.
    """
    try:
        layout = tuple(int(part) for part in text.strip().strip("()[]").split(","))
    except ValueError:
        raise WiringError(
            "not a layout",
            code="layout-not-numbers",
            where=repr(text),
            expected="boundaries such as 0,3,31",
            remedy="Separate whole numbers by commas",
        ) from None
    check_layout(layout, num_layers)
    return layout


def check_layout(layout: Iterable[int], num_layers: int | None = None, where: object = "") -> None:
    """Raise WiringError unless every boundary is within 0..num_layers."""
    for boundary in layout:
        if boundary < 0 or (num_layers is not None and boundary > num_layers):
            raise WiringError(
                f"boundary {boundary} does not exist in {'any' if num_layers is None else 'this'} target",
                code="boundary-not-in-target",
                where=where,
                expected="whole numbers from 0" if num_layers is None else f"0..{num_layers}",
                found=boundary,
                remedy="Boundary 0 is the embedding, L the last layer's output",
            )


def describe(boundary: int, num_layers: int | None = None) -> str:
    """Return a name for a boundary: "embedding", "after 3 layers", "after the last layer"."""
    if boundary == 0:
        return "embedding"
    if boundary == num_layers:
        return "after the last layer"
    return f"after {boundary} layers"
