"""The target's choice after each position, from its saved last hidden state: the labels of every accuracy."""

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

    `state` ("post" or "pre") overrides the norm state of the samples; "" takes it from each sample.
    """

    weight: Tensor
    norm: Tensor | None = None
    eps: float = 1e-6
    state: str = ""

    def to(self, device: torch.device | str, dtype: torch.dtype) -> TargetHead:
        """Return the head on a device, in a dtype."""
        norm = None if self.norm is None else self.norm.to(device, dtype)
        return TargetHead(self.weight.to(device, dtype), norm, self.eps, self.state)

    def normed(self, sample: StateSample, rows: Tensor) -> Tensor:
        """Return rows [M, H] of the sample's last hidden state, normed for `lm_head`.

        Raises WiringError when the state is not normed and the norm is unknown, when its norm state is undecided, or
        when its width differs from the head's.
        """
        if rows.shape[-1] != self.weight.shape[-1]:
            raise WiringError(
                "the target's head does not fit the saved last hidden state",
                code="head-width",
                where=sample.source,
                expected=f"width {self.weight.shape[-1]} of lm_head.weight",
                found=f"width {rows.shape[-1]}",
            )
        rows = rows.to(self.weight.device, self.weight.dtype)
        state = self.state or sample.norm
        if state == "post":
            return rows
        if state != "pre":
            raise WiringError(
                "the norm state of the saved last hidden state is unknown",
                code="norm-state-unknown",
                where=sample.source,
                remedy="Pass --last-hidden post or --last-hidden pre",
            )
        if self.norm is None:
            raise WiringError(
                "the saved last hidden state is not normed, and the target's final norm is unknown",
                code="final-norm-unknown",
                where=sample.source,
                expected="model.norm.weight of the target",
                remedy="Pass the folder of the target's weights to --target",
            )
        return rms_norm(rows, self.norm, self.eps)


def choices(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the argmax [M] of a head weight [V, H] on rows [M, H]."""
    return first_choices(rows, len(weight), lambda part: part @ weight.T)


def first_choices(rows: Tensor, vocab: int, logits: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the argmax [M] of `logits` ([m, H] -> [m, vocab]) on rows [M, H], computed in blocks to bound memory."""
    block = max(1, _BLOCK_BYTES // (vocab * rows.element_size()))
    best = [logits(part).argmax(-1) for part in rows.split(block)] if len(rows) else []
    return torch.cat(best) if best else torch.zeros(0, dtype=torch.int64, device=rows.device)
