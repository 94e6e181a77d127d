"""Boundaries, layouts, phases and the two id dialects: the one numbering used inside the package.

Boundary b is the residual stream after b decoder layers, not normalised: b = 0 is the embedding output,
b = k the output of the k-th layer (the input of layer index k), b = L the last layer's output before the
final norm. A layout is the ordered tuple of boundaries that fills the slots of the draft's `fc` input.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from wiring.errors import WiringError

Layout = tuple[int, ...]


class Phase(StrEnum):
    """Where in serving the target's states were produced."""

    PREFILL = "prefill"  # the prompt
    VERIFY = "verify"  # decode: the target's forward over the draft tokens
    DRAFT_EXTEND = "draft_extend"  # the draft's forward over the tokens that verify accepted


class IdConvention(StrEnum):
    """How a program numbers layers when it names a captured state."""

    INPUT_ID = "input id"  # id k is the input of layer k: boundary k (vLLM, SafeAILab, speculators)
    OUTPUT_ID = "output id"  # id k is the output of layer k: boundary k + 1 (SpecForge, ModelOpt, TorchSpec)


_OFFSET = {IdConvention.INPUT_ID: 0, IdConvention.OUTPUT_ID: 1}


def to_boundaries(ids: Iterable[int], dialect: IdConvention) -> Layout:
    """Translate ids written in `dialect` to boundaries, slot by slot; output id -1 is the embedding."""
    return tuple(i + _OFFSET[dialect] for i in ids)


def from_boundaries(layout: Iterable[int], dialect: IdConvention) -> tuple[int, ...]:
    """Translate boundaries to ids of `dialect`, slot by slot."""
    return tuple(b - _OFFSET[dialect] for b in layout)


def default_layout(num_layers: int) -> Layout:
    """The boundaries (2, L//2, L-3) that every engine captures when a draft names no ids.

    Raises WiringError when the target is too shallow for three different boundaries inside it.
    """
    layout = (2, num_layers // 2, num_layers - 3)
    if not layout[0] < layout[1] < layout[2]:
        raise WiringError(
            "the target is too shallow for the default capture layers",
            expected="at least 8 layers",
            found=f"{num_layers} layers",
            remedy="Name the layer ids in the draft's config",
        )
    return layout


def parse_layout(text: str, num_layers: int | None = None) -> Layout:
    """Read a layout written as "0,3,31" (brackets and blanks allowed).

    Raises WiringError on anything that is not a list of boundaries within 0..num_layers.
    """
    try:
        layout = tuple(int(part) for part in text.strip().strip("()[]").split(","))
    except ValueError:
        raise WiringError(
            "not a layout",
            where=repr(text),
            expected="boundaries such as 0,3,31",
            remedy="Separate whole numbers by commas",
        ) from None
    check_layout(layout, num_layers)
    return layout


def check_layout(layout: Iterable[int], num_layers: int | None = None) -> None:
    """Raise WiringError unless every boundary is within 0..num_layers."""
    bad = [b for b in layout if b < 0 or (num_layers is not None and b > num_layers)]
    if bad:
        raise WiringError(
            f"boundary {bad[0]} does not exist in {'any' if num_layers is None else 'this'} target",
            expected="whole numbers from 0" if num_layers is None else f"0..{num_layers}",
            found=bad[0],
            remedy="Boundary 0 is the embedding, L the last layer's output",
        )


def describe(boundary: int, num_layers: int | None = None) -> str:
    """Name a boundary in words: "embedding", "after 3 layers", "after the last layer"."""
    if boundary == 0:
        return "embedding"
    if boundary == num_layers:
        return "after the last layer"
    return f"after {boundary} layers"
