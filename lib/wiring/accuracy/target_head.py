"""The target's own choice after each position, from its saved last hidden state: the labels of every accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wiring.errors import WiringError
from wiring.model.draft_layers import rms_norm

if TYPE_CHECKING:
    from wiring.checkpoints.states import StateSample

_BLOCK_BYTES = 128 << 20  # logits held at once


@dataclass(frozen=True)
class TargetHead:
    """`lm_head` [V, H] of the target, and its final RMS norm [H] where the saved states are not normed yet.

    `state` ("post" or "pre") overrides what the samples' format says of their norm state; "" takes it from each sample.
    """

    weight: Tensor
    norm: Tensor | None = None
    eps: float = 1e-6
    state: str = ""

    def to(self, device: torch.device | str, dtype: torch.dtype) -> TargetHead:
        """The same head on a device, in a type."""
        norm = None if self.norm is None else self.norm.to(device, dtype)
        return TargetHead(self.weight.to(device, dtype), norm, self.eps, self.state)

    def normed(self, sample: StateSample, rows: Tensor) -> Tensor:
        """Rows [M, H] of the sample's last hidden state as `lm_head` takes them.

        Raises WiringError when the state is not normed and the norm is not known, when its norm state is undecided, or
        when its width is not the head's.
        """
        if rows.shape[-1] != self.weight.shape[-1]:
            raise WiringError(
                "the target's head does not fit the saved last hidden state",
                where=sample.source,
                expected=f"width {self.weight.shape[-1]}, as lm_head.weight has it",
                found=f"width {rows.shape[-1]}",
            )
        rows = rows.to(self.weight.device, self.weight.dtype)
        state = self.state or sample.norm
        if state == "post":
            return rows
        if state != "pre":
            raise WiringError(
                "it is not known whether the saved last hidden state is normed",
                where=sample.source,
                remedy="Say --last-hidden post or --last-hidden pre",
            )
        if self.norm is None:
            raise WiringError(
                "the saved last hidden state is not normed, and the target's final norm is not known",
                where=sample.source,
                expected="model.norm.weight of the target",
                remedy="Give --target a folder with the target's weights",
            )
        return rms_norm(rows, self.norm, self.eps)


def choices(rows: Tensor, weight: Tensor) -> Tensor:
    """First choice [M] of a head weight [V, H] on rows [M, H]."""
    return first_choices(rows, len(weight), lambda part: part @ weight.T)


def first_choices(rows: Tensor, vocab: int, logits: Callable[[Tensor], Tensor]) -> Tensor:
    """First choice [M] of `logits` ([m, H] -> [m, vocab]) on rows [M, H].

    Logits are made in blocks of rows, so that a large vocabulary does not need all of them at once.
    """
    block = max(1, _BLOCK_BYTES // (vocab * rows.element_size()))
    best = [logits(part).argmax(-1) for part in rows.split(block)] if len(rows) else []
    return torch.cat(best) if best else torch.zeros(0, dtype=torch.int64, device=rows.device)
