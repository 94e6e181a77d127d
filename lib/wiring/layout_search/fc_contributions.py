"""Contribution of every (slot, boundary) to the output of `fc`, computed once; the output of a layout is their sum.

`fc` is linear in the concatenated slots: fc([h_a, h_b, h_c]) = W_0 h_a + W_1 h_b + W_2 h_c + bias. A norm of each slot
is applied before its product. A norm over all slots is a factor per row, 1 / rms of all slots, times a weight: the
weight is folded into W, and the mean square is the mean of those of the slots. With both norms, or where `fc` is
skipped, the output is not a sum, and each layout is projected on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from wiring.layers import Layout

if TYPE_CHECKING:
    from wiring.model.eagle3 import Eagle3Draft


class SlotContributions:
    """Contributions of the states of D documents to one draft's `fc`, computed document by document on first use."""

    def __init__(self, draft: Eagle3Draft, states: Tensor):
        """states [L+1, D, T, H]."""
        config = draft.config
        self.draft, self.states, self.slots = draft, states, config.num_slots
        skips_fc = config.skips_narrow_fc and config.fc_width == config.hidden_size
        self.separable = not skips_fc and not (config.norm_before_fc and config.fc_norm)
        self._computed = 0  # documents so far
        if self.separable:
            boundaries, documents, rows, _ = states.shape
            device, dtype = draft.fc.weight.device, draft.fc.weight.dtype
            shape = (self.slots, boundaries, documents, rows, config.hidden_size)
            self._products = torch.empty(shape, device=device, dtype=dtype)  # pages are allocated on first write
            self._squares = torch.empty(boundaries, documents, rows, device=device) if config.norm_before_fc else None

    def outputs(self, layouts: Sequence[Layout] | Tensor, documents: int, rows: int) -> Tensor:
        """Return outputs of `fc` [B, documents, rows, draft H] of layouts [B, n] on the first documents and rows."""
        layouts = torch.as_tensor(layouts, dtype=torch.int64)
        if not self.separable:
            chosen = self.states[:, :documents, :rows][layouts]  # [B, n, D, T, H]
            return self.draft.project(chosen.permute(0, 2, 3, 1, 4).flatten(0, 1)).unflatten(0, (-1, documents))
        self._compute(documents)
        columns = layouts.to(self._products.device).unbind(1)
        summed = self._products[0, :, :documents, :rows][columns[0]]
        for slot in range(1, self.slots):
            summed += self._products[slot, :, :documents, :rows][columns[slot]]
        if self._squares is not None:
            squares = (self._squares[:, :documents, :rows][column] for column in columns)
            mean = sum(squares, start=torch.zeros((), device=summed.device)) / self.slots
            summed *= torch.rsqrt(mean + self.draft.config.rms_norm_eps)[..., None].to(summed.dtype)
        return summed if self.draft.fc.bias is None else summed.add_(self.draft.fc.bias)

    def _compute(self, documents: int) -> None:
        config, draft = self.draft.config, self.draft
        weight = draft.fc.weight
        if config.norm_before_fc:
            weight = weight * draft.input_norm.weight
        for document in range(self._computed, documents):
            states = self.states[:, document].to(weight.device, weight.dtype)  # [L+1, T, H]
            if self._squares is not None:
                self._squares[:, document] = states.float().square().mean(-1)
            for slot, part in enumerate(weight.split(config.target_hidden_size, 1)):
                fed = draft.fc_norm[slot](states) if config.fc_norm else states
                self._products[slot, :, document] = F.linear(fed, part)
        self._computed = max(self._computed, documents)
