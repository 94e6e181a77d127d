"""Accuracy by depth of a draft under any layout, fast enough for a slider: computation and figure.

`fc` is linear in its slots, so the contribution of every boundary in every slot is computed once
(`wiring.layout_search.fc_contributions`). A layout is the sum of its contributions, and only the draft itself runs
again. Rows, labels and the counting rule are those of notebook 02 (SpecForge's).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import torch
import torch.nn.functional as F

from wiring.accuracy.counting import counting_rule
from wiring.accuracy.target_head import choices
from wiring.errors import WiringError
from wiring.figures.plot_template import BLUE, GREEN, GREY, RED, add_line, captioned, figure
from wiring.layers import Layout, describe
from wiring.layout_search.data import rows_that_fit
from wiring.layout_search.fc_contributions import SlotContributions

if TYPE_CHECKING:
    from wiring.accuracy.draft_evaluation import DraftEvaluation
    from wiring.model.target_reference import ReferenceTarget

DOCUMENTS, WINDOW = 12, 96  # limits of documents and of tokens per document: a move takes less than 200 ms
RULE = counting_rule("specforge")
_MARKS = {"trained": (GREEN, "circle", "solid"), "served": (RED, "square", "dash")}
_BATCH = 8  # documents per forward pass of the target


class LayoutExplorer:
    """Accuracy of one draft by depth on the first saved documents, under any layout of the target's boundaries."""

    @torch.no_grad()
    def __init__(
        self,
        opened: DraftEvaluation,
        reference: ReferenceTarget,
        depths: int,
        documents: int = DOCUMENTS,
        window: int = WINDOW,
    ):
        """Run the target `reference` over the first `window` tokens of the first saved documents.

        Fewer documents are used if their states do not fit in memory. Raises WiringError if no row counts.
        """
        draft = self._draft = opened.draft
        shape, device = draft.config, draft.fc.weight.device
        self.depths, self.num_layers, self.slots = depths, reference.num_layers, shape.num_slots
        fit = rows_that_fit(self.num_layers, shape.num_slots, shape.target_hidden_size, shape.hidden_size)
        samples = list(islice(iter(opened.states), max(1, min(documents, fit // window))))
        self._lengths = [min(len(sample.tokens), window) for sample in samples]
        tokens = torch.zeros(len(samples), max(self._lengths), dtype=torch.int64, device=device)  # [D, N]
        labels, counts = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)  # by label position
        head = opened.head.to(device, draft.fc.weight.dtype)
        for i, (sample, length) in enumerate(zip(samples, self._lengths, strict=True)):
            tokens[i, :length] = sample.tokens[:length].to(device)
            labels[i, 1:length] = choices(head.normed(sample, sample.last_hidden[1:length]), head.weight)
            counts[i, 1:length] = sample.loss_mask[: length - 1].to(device) != 0
        rows = tokens.shape[1] - 1
        # Row t at depth k has its label at position t + 1 + k.
        self._counted = [F.pad(counts[:, 1 + k :], (0, k)) for k in range(depths)]
        self._labels = [labels[:, 1 + k :][counted[:, : rows - k]] for k, counted in enumerate(self._counted)]
        if not all(len(labels) for labels in self._labels):
            problem, expected = "no row counts at some depth", f"documents with more than {depths} counted tokens"
            raise WiringError(problem, code="explorer-no-rows", where=opened.states.path, expected=expected)
        wanted = torch.stack(self._counted)
        self._wanted = [wanted[k:].any(0) for k in range(depths)]  # rows needed at this depth or a deeper one
        states = [
            reference.forward(group).boundaries[:, :, :rows].float().cpu() for group in tokens.split(_BATCH)
        ]  # each [L+1, batch, N-1, H]
        self._tokens, self._products = tokens, SlotContributions(draft, torch.cat(states, dim=1))
        self._known: dict[Layout, tuple[float, ...]] = {}
        self.accuracy((0,) * self.slots)  # computes the contributions

    @property
    def rows(self) -> int:
        """Number of rows counted at depth 0."""
        return len(self._labels[0])

    @torch.no_grad()
    def accuracy(self, layout: Layout) -> tuple[float, ...]:
        """Return the share of correct first choices at each depth under `layout`."""
        layout = tuple(layout)
        if layout not in self._known:
            documents, length = self._tokens.shape
            hidden = self._products.outputs([layout], documents, length - 1)[0]  # [D, T, H]
            steps = self._draft.steps_of(
                hidden, self._tokens, self.depths, self._lengths, keep=lambda step: self._wanted[step]
            )
            shares = []
            for out, counted, labels in zip(steps, self._counted, self._labels, strict=True):
                best = self._draft.to_target_ids(self._draft.logits(out[counted]).argmax(-1))
                shares.append(float((best == labels).double().mean()))
            self._known[layout] = tuple(shares)
        return self._known[layout]

    def rows_counted(self) -> str:
        """Return the rows, documents and counting rule of the accuracies in one sentence."""
        return f"{self.rows} rows of {len(self._lengths)} saved documents at depth 0; {RULE.describe}"


def accuracy_by_layout(
    explorer: LayoutExplorer, marks: Mapping[str, Layout], layout: Layout | None = None
) -> go.Figure:
    """Draw accuracy by depth under each marked layout ("trained", "served") and under the chosen `layout`."""
    fig = figure("Accuracy by depth, layout by layout", "depth (TTT step)", "accuracy (share of first choices)")
    marker = dict(symbol="diamond-open", size=14, color=BLUE, line=dict(width=2))
    chosen = dict(marker=marker, line=dict(color=BLUE, width=3))
    lines = [(name, marked, _MARKS.get(name, (GREY, "x", "dot")), {}) for name, marked in marks.items()]
    lines += [("chosen", layout, (BLUE, "diamond-open", "solid"), chosen)] if layout is not None else []
    for name, one, style, more in lines:
        accuracies = [round(share, 4) for share in explorer.accuracy(one)]
        add_line(fig, range(explorer.depths), accuracies, f"{name} {_tuple(one)}", *style, **more)
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return captioned(fig, explorer.rows_counted())


def named_layout(layout: Layout, num_layers: int) -> str:
    """Return a layout followed by the names of its boundaries."""
    return f"{_tuple(layout)} = " + ", ".join(describe(boundary, num_layers) for boundary in layout)


def _tuple(layout: Layout) -> str:
    return f"({', '.join(map(str, layout))})"
