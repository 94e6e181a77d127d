"""Cross-entropy of the draft's first step under many layouts at once, on the same rows.

Logits are divided by TEMPERATURE. A trained draft is overconfident: without it nearly all of the loss comes from the
few rows where the draft is confidently wrong, and a neighboring layout with flatter outputs can have a lower loss. On
the tiny pair, layouts one layer away lie within 2.5 standard errors of the trained one at temperature 1, on either
side, and 1.7 to 7 above it at temperature 4 (64 documents).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from wiring.layers import Layout
from wiring.layout_search.data import SearchData
from wiring.layout_search.fc_contributions import SlotContributions

if TYPE_CHECKING:
    from wiring.model.eagle3 import Eagle3Draft

TEMPERATURE = 4.0
_BYTES = 24 << 20  # activations of a layer: beyond the cache is slower, less takes more calls
_ROWS = 256  # minimum of rows, for which the weights of a wide draft are read once
_LEAVE_OUT = 0.7  # share of counted rows below which the layer leaves out the others


@dataclass(frozen=True)
class Extent:
    """The first `documents` documents and their first `rows` rows."""

    documents: int
    rows: int


class Losses:
    """Losses of a draft on search data."""

    def __init__(self, draft: Eagle3Draft, data: SearchData):
        self.draft, self.data = draft, data
        self.contributions = SlotContributions(draft, data.states)
        device = draft.fc.weight.device
        self.tokens, self.labels = data.tokens.to(device), data.labels.to(device)
        config = draft.config
        floats = 3 * config.intermediate_size + 6 * config.hidden_size + 3 * config.num_heads * config.head_dim
        self._row_bytes = draft.fc.weight.element_size() * (floats + 2 * config.draft_vocab_size)

    @property
    def whole(self) -> Extent:
        """All documents and rows."""
        return Extent(*self.labels.shape)

    def rows(self, extent: Extent) -> Tensor:
        """Return the number of counted rows by document [documents]."""
        return self.data.counted[: extent.documents, : extent.rows].sum(1)

    @torch.no_grad()
    def sums(
        self, layouts: Sequence[Layout] | Tensor, extent: Extent, temperatures: Sequence[float] = (TEMPERATURE,)
    ) -> Tensor:
        """Return the summed cross-entropy of layouts [B, n] in nats: [temperatures, B, documents] float64."""
        layouts = torch.as_tensor(layouts, dtype=torch.int64)
        rows = extent.documents * extent.rows
        size = max(1, max(_BYTES // self._row_bytes, _ROWS) // rows)
        return torch.cat([self._sums(part, extent, temperatures) for part in layouts.split(size)], 1)

    def means(self, layouts: Sequence[Layout] | Tensor, extent: Extent, temperature: float = TEMPERATURE) -> Tensor:
        """Return the mean cross-entropy over the counted rows of the extent [B] float64."""
        sums = self.sums(layouts, extent, (temperature,))[0]
        return sums.sum(1) / self.rows(extent).sum().clamp(min=1)

    def _sums(self, layouts: Tensor, extent: Extent, temperatures: Sequence[float]) -> Tensor:
        return first_step_sums(
            self.draft,
            self.contributions.outputs(layouts, extent.documents, extent.rows),
            self.tokens[: extent.documents, : extent.rows + 1],
            self.labels[: extent.documents, : extent.rows],
            temperatures,
        )


class CachedLosses(Losses):
    """Losses with cached means, for a search that returns to the same layouts."""

    def __init__(self, draft: Eagle3Draft, data: SearchData):
        super().__init__(draft, data)
        self._known: dict[tuple[Extent, float], dict[Layout, float]] = {}

    def means(self, layouts: Sequence[Layout] | Tensor, extent: Extent, temperature: float = TEMPERATURE) -> Tensor:
        """Return `Losses.means`, from the cache where known."""
        known = self._known.setdefault((extent, temperature), {})
        asked = [tuple(layout) for layout in torch.as_tensor(layouts).tolist()]
        if new := [layout for layout in dict.fromkeys(asked) if layout not in known]:
            known.update(zip(new, super().means(new, extent, temperature).tolist(), strict=True))
        return torch.tensor([known[layout] for layout in asked], dtype=torch.float64)


def first_step_sums(
    draft: Eagle3Draft, outputs: Tensor, tokens: Tensor, labels: Tensor, temperatures: Sequence[float] = (1.0,)
) -> Tensor:
    """Return summed cross-entropies [temperatures, B, d] float64 on the CPU for outputs of `fc` [B, d, T, H].

    tokens [d, T+1]; labels [d, T] draft ids, negative where the row does not count.
    """
    layouts, documents, rows, _ = outputs.shape
    counts = labels >= 0
    keep = counts.repeat(layouts, 1) if counts.float().mean() < _LEAVE_OUT else None
    hidden = next(draft.steps_of(outputs.flatten(0, 1), tokens, 1, keep=lambda step: keep))
    where = counts.flatten().nonzero()[:, 0]  # [M]
    logits = draft.logits(hidden.view(layouts, documents * rows, -1)[:, where]).flatten(0, 1).float()  # [B * M, Vd]
    wanted = labels.flatten()[where].repeat(layouts)
    document = torch.arange(documents, device=labels.device).repeat_interleave(rows)[where]
    sums = torch.zeros(len(temperatures), layouts, documents, dtype=torch.float64, device=logits.device)
    for number, temperature in enumerate(temperatures):
        loss = F.cross_entropy(logits / temperature, wanted, reduction="none").view(layouts, -1)
        sums[number].index_add_(1, document, loss.double())
    return sums.cpu()
