"""Accuracy by depth of one draft under any layout, fast enough to be moved by hand: compute and figure.

`fc` is linear over the slots, so what every (slot, boundary) adds to its output is computed once
(`wiring.layout_search.fc_contributions`); a layout is then a sum, and only the draft itself runs again. The rows, labels and
the counting rule are those of notebook 02: SpecForge's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import torch
from torch import Tensor

from wiring.accuracy.counting import counting_rule
from wiring.accuracy.target_head import choices
from wiring.errors import WiringError
from wiring.figures.plot_template import BLUE, GREEN, GREY, RED, captioned, figure
from wiring.layers import Layout, describe
from wiring.layout_search.data import rows_that_fit
from wiring.layout_search.fc_contributions import SlotProducts

if TYPE_CHECKING:
    from wiring.accuracy.draft_evaluation import DraftEvaluation
    from wiring.model.eagle3 import Eagle3Draft
    from wiring.model.target_reference import ReferenceTarget

DOCUMENTS, WINDOW = 12, 96  # at most so many documents, and of each its first tokens: a move stays under 200 ms
RULE = counting_rule("specforge")
_MARKS = {"trained": (GREEN, "circle", "solid"), "served": (RED, "square", "dash")}
_BATCH = 8  # documents that the target runs at once


class LayoutExplorer:
    """One draft on the same rows of D documents under any layout of `boundaries`.

    `num_layers` of the target names boundaries in words; `rows` that are counted at depth 0; `slots` of `fc`.
    """

    def __init__(
        self,
        draft: Eagle3Draft,
        tokens: Tensor,
        lengths: Sequence[int],
        labels: Tensor,
        counts: Tensor,
        states: Tensor,
        boundaries: Layout,
        depths: int,
        num_layers: int,
    ):
        """tokens [D, N], labels and counts [D, N] by label position, states [boundaries, D, N-1, H]."""
        self.boundaries, self.depths, self.num_layers = tuple(boundaries), depths, num_layers
        self.slots, self.documents = draft.config.num_slots, len(tokens)
        self._draft, self._tokens, self._lengths = draft, tokens, list(lengths)
        rows = tokens.shape[1] - 1
        self._counted = []
        for depth in range(depths):  # row t at depth k has its label at position t + 1 + k
            self._counted.append(torch.zeros_like(counts[:, 1:]))
            self._counted[-1][:, : rows - depth] = counts[:, 1 + depth :]
        self._labels = [labels[:, 1 + k :][counted[:, : rows - k]] for k, counted in enumerate(self._counted)]
        if not all(len(labels) for labels in self._labels):
            raise WiringError("no row counts", where="layout explorer", expected="documents longer than the depths")
        wanted = torch.stack(self._counted)
        self._wanted = [wanted[k:].any(0) for k in range(depths)]  # of this depth or a deeper one
        self._products = SlotProducts(draft, states)
        self._known: dict[Layout, tuple[float, ...]] = {}
        self.accuracy((self.boundaries[0],) * self.slots)  # makes the products

    @property
    def rows(self) -> int:
        """Rows that are counted at depth 0."""
        return len(self._labels[0])

    @torch.no_grad()
    def accuracy(self, layout: Layout) -> tuple[float, ...]:
        """Share of right first choices at each depth under `layout`.

        Raises WiringError for a layout of another number of slots, and for boundaries that there are no states of.
        """
        layout = tuple(layout)
        absent = [b for b in layout if b not in self.boundaries]
        if absent or len(layout) != self.slots:
            raise WiringError(
                "there are no states for this layout",
                where=layout,
                expected=f"{self.slots} of the boundaries {self.boundaries}",
                found=absent or f"{len(layout)} slots",
                remedy="Load the target too (reference=), and every boundary is there",
            )
        if layout not in self._known:
            self._known[layout] = self._computed(layout)
        return self._known[layout]

    def _computed(self, layout: Layout) -> tuple[float, ...]:
        at = [self.boundaries.index(b) for b in layout]
        hidden = self._products.outputs([at], self.documents, self._tokens.shape[1] - 1)[0]  # [D, T, H]
        steps = self._draft.steps_of(
            hidden, self._tokens, self.depths, self._lengths, keep=lambda step: self._wanted[step]
        )
        shares = []
        for out, counted, labels in zip(steps, self._counted, self._labels, strict=True):
            best = self._draft.to_target_ids(self._draft.logits(out[counted]).argmax(-1))
            shares.append(float((best == labels).double().mean()))
        return tuple(shares)


@torch.no_grad()
def open_explorer(
    opened: DraftEvaluation,
    depths: int,
    *,
    reference: ReferenceTarget | None = None,
    documents: int = DOCUMENTS,
    window: int = WINDOW,
) -> LayoutExplorer:
    """The explorer on the first saved documents, with the boundaries that the files hold; with `reference` all of them.

    A longer document gives its first `window` tokens. Fewer documents are taken where they would not fit in memory.
    Raises WiringError where the files do not say which boundaries they hold, and where no row counts.
    """
    draft, head = opened.draft, opened.head.to(opened.draft.fc.weight.device, opened.draft.fc.weight.dtype)
    boundaries = opened.states.boundaries if reference is None else tuple(range(reference.num_layers + 1))
    if boundaries is None:
        raise WiringError("nobody said which boundaries are stored", where=opened.states.path, remedy="Name them")
    shape, device = draft.config, draft.fc.weight.device
    fit = rows_that_fit(len(boundaries) - 1, shape.num_slots, shape.target_hidden_size, shape.hidden_size)
    samples = list(islice(iter(opened.states), max(1, min(documents, fit // window))))
    longest = min(window, max(len(sample.tokens) for sample in samples))
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64, device=device)
    labels, counts = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)
    states = torch.zeros(len(boundaries), len(samples), longest - 1, shape.target_hidden_size)
    for i, sample in enumerate(samples):
        length = min(len(sample.tokens), longest)
        tokens[i, :length] = sample.tokens[:length].to(device)
        labels[i, 1:length] = choices(head.normed(sample, sample.last_hidden[1:length]), head.weight)
        counts[i, 1:length] = sample.loss_mask[: length - 1].to(device) != 0
        if reference is None:
            states[:, i, : length - 1] = sample.select(boundaries)[: length - 1].transpose(0, 1).float().cpu()
    if reference is not None:
        _from_target(reference, tokens, states)
    lengths = [min(len(sample.tokens), longest) for sample in samples]
    num_layers = opened.target.num_layers
    return LayoutExplorer(draft, tokens, lengths, labels, counts, states, boundaries, depths, num_layers)


def _from_target(reference: ReferenceTarget, tokens: Tensor, states: Tensor) -> None:
    """Fill states [L+1, D, N-1, H] by running the target over tokens [D, N], padded on the right."""
    for first in range(0, len(tokens), _BATCH):
        seen = reference.forward(tokens[first : first + _BATCH])
        states[:, first : first + _BATCH] = seen.boundaries[:, :, : states.shape[2]].float().cpu()


def accuracy_by_layout(
    explorer: LayoutExplorer, marks: Mapping[str, Layout], layout: Layout | None = None
) -> go.Figure:
    """Accuracy by depth under each marked layout ("trained", "served"), and under `layout`, the one that was chosen."""
    fig = figure("Accuracy by depth, layout by layout", "depth (TTT step)", "accuracy (share of first choices)")
    depths = list(range(explorer.depths))
    for name, marked in marks.items():
        colour, symbol, dash = _MARKS.get(name, (GREY, "x", "dot"))
        fig.add_scatter(
            x=depths,
            y=_rounded(explorer.accuracy(marked)),
            mode="lines+markers",
            name=f"{name} {_told(marked)}",
            marker=dict(symbol=symbol, size=9, color=colour),
            line=dict(color=colour, dash=dash),
        )
    if layout is not None:
        fig.add_scatter(
            x=depths,
            y=_rounded(explorer.accuracy(layout)),
            mode="lines+markers",
            name=f"chosen {_told(layout)}",
            marker=dict(symbol="diamond-open", size=14, color=BLUE, line=dict(width=2)),
            line=dict(color=BLUE, width=3),
        )
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return captioned(fig, counted_by(explorer))


def counted_by(explorer: LayoutExplorer) -> str:
    """On what the accuracies stand, in a sentence: rows, documents, boundaries, and the counting rule."""
    every = len(explorer.boundaries) == explorer.num_layers + 1
    stored = "every boundary" if every else f"boundaries {', '.join(map(str, explorer.boundaries))}"
    return f"{explorer.rows} rows of {explorer.documents} saved documents at depth 0, {stored}; {RULE.describe}"


def in_words(layout: Layout, num_layers: int) -> str:
    """A layout with its boundaries named."""
    return f"{_told(layout)} = " + ", ".join(describe(boundary, num_layers) for boundary in layout)


def _told(layout: Layout) -> str:
    return f"({', '.join(map(str, layout))})"


def _rounded(shares: Sequence[float]) -> list[float]:
    return [round(share, 4) for share in shares]
