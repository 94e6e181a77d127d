"""Accuracy by depth of a draft under any layout, fast enough for a slider: computation and figure.

`fc` is linear in its slots, so the contribution of every boundary in every slot is computed once
(`wiring.layout_search.fc_contributions`). A layout is the sum of its contributions, and only the draft itself runs
again. Rows, labels and the counting rule are those of notebook 02 (SpecForge's).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import torch
import torch.nn.functional as F
from torch import Tensor

from wiring.accuracy.counting import counting_rule
from wiring.accuracy.target_head import choices
from wiring.errors import WiringError
from wiring.figures.plot_template import BLUE, GREEN, GREY, RED, add_line, captioned, figure
from wiring.layers import Layout, describe
from wiring.layout_search.data import rows_that_fit
from wiring.layout_search.fc_contributions import SlotProducts

if TYPE_CHECKING:
    from wiring.accuracy.draft_evaluation import DraftEvaluation
    from wiring.model.eagle3 import Eagle3Draft
    from wiring.model.target_reference import ReferenceTarget

DOCUMENTS, WINDOW = 12, 96  # limits of documents and of tokens per document: a move takes less than 200 ms
RULE = counting_rule("specforge")
_MARKS = {"trained": (GREEN, "circle", "solid"), "served": (RED, "square", "dash")}
_BATCH = 8  # documents per forward pass of the target


class LayoutExplorer:
    """Accuracy of one draft on the same rows of D documents under any layout of the saved boundaries."""

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
        """Take tokens [D, N], labels and counts [D, N] by label position, and states [boundaries, D, N-1, H]."""
        self.boundaries, self.depths, self.num_layers = tuple(boundaries), depths, num_layers
        self.slots, self.documents = draft.config.num_slots, len(tokens)
        self._draft, self._tokens, self._lengths = draft, tokens, list(lengths)
        rows = tokens.shape[1] - 1
        # Row t at depth k has its label at position t + 1 + k.
        self._counted = [F.pad(counts[:, 1 + depth :], (0, depth)) for depth in range(depths)]
        self._labels = [labels[:, 1 + k :][counted[:, : rows - k]] for k, counted in enumerate(self._counted)]
        if not all(len(labels) for labels in self._labels):
            problem, expected = "no row counts at some depth", f"documents of more than {depths} counted tokens"
            raise WiringError(problem, code="explorer-no-rows", where="layout explorer", expected=expected)
        wanted = torch.stack(self._counted)
        self._wanted = [wanted[k:].any(0) for k in range(depths)]  # rows needed at this depth or a deeper one
        self._products = SlotProducts(draft, states)
        self._known: dict[Layout, tuple[float, ...]] = {}
        self.accuracy((self.boundaries[0],) * self.slots)  # computes the contributions

    @property
    def rows(self) -> int:
        """Number of rows counted at depth 0."""
        return len(self._labels[0])

    def accuracy(self, layout: Layout) -> tuple[float, ...]:
        """Return the share of correct first choices at each depth under `layout`.

        Raises WiringError for a wrong number of slots and for boundaries without saved states.
        """
        layout = tuple(layout)
        absent = [b for b in layout if b not in self.boundaries]
        if absent or len(layout) != self.slots:
            raise WiringError(
                "there are no states for this layout",
                code="layout-without-states",
                where=layout,
                expected=f"{self.slots} of the boundaries {self.boundaries}",
                found=absent or f"{len(layout)} slots",
                remedy="Pass the target (reference=) to compute every boundary",
            )
        if layout not in self._known:
            self._known[layout] = self._compute(layout)
        return self._known[layout]

    @torch.no_grad()
    def _compute(self, layout: Layout) -> tuple[float, ...]:
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
    """Build the explorer from the first `window` tokens of the first saved documents.

    It offers the saved boundaries, or with `reference` (the target) all of them; it takes fewer documents if they do
    not fit in memory. Raises WiringError if the files do not record their boundaries, and if no row counts.
    """
    draft, head = opened.draft, opened.head.to(opened.draft.fc.weight.device, opened.draft.fc.weight.dtype)
    boundaries = opened.states.boundaries if reference is None else tuple(range(reference.num_layers + 1))
    if boundaries is None:
        problem, remedy = "the stored boundaries are unknown", "Set states.boundaries in the profile"
        raise WiringError(problem, code="boundaries-unknown", where=opened.states.path, remedy=remedy)
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
        for first in range(0, len(tokens), _BATCH):
            seen = reference.forward(tokens[first : first + _BATCH])
            states[:, first : first + _BATCH] = seen.boundaries[:, :, : states.shape[2]].float().cpu()
    lengths = [min(len(sample.tokens), longest) for sample in samples]
    num_layers = opened.target.num_layers
    return LayoutExplorer(draft, tokens, lengths, labels, counts, states, boundaries, depths, num_layers)


def accuracy_by_layout(
    explorer: LayoutExplorer, marks: Mapping[str, Layout], layout: Layout | None = None
) -> go.Figure:
    """Draw accuracy by depth under each marked layout ("trained", "served") and under the chosen `layout`."""
    fig = figure("Accuracy by depth, layout by layout", "depth (TTT step)", "accuracy (share of first choices)")
    chosen = dict(
        marker=dict(symbol="diamond-open", size=14, color=BLUE, line=dict(width=2)), line=dict(color=BLUE, width=3)
    )
    lines = [(name, marked, _MARKS.get(name, (GREY, "x", "dot")), {}) for name, marked in marks.items()]
    lines += [("chosen", layout, (BLUE, "diamond-open", "solid"), chosen)] if layout is not None else []
    for name, one, style, more in lines:
        accuracies = [round(share, 4) for share in explorer.accuracy(one)]
        add_line(fig, range(explorer.depths), accuracies, f"{name} {_tuple(one)}", *style, **more)
    fig.update_yaxes(range=[0, 1])
    fig.update_xaxes(dtick=1)
    return captioned(fig, rows_counted(explorer))


def rows_counted(explorer: LayoutExplorer) -> str:
    """Return the rows, documents, boundaries and counting rule of the accuracies in one sentence."""
    every = len(explorer.boundaries) == explorer.num_layers + 1
    stored = "every boundary" if every else f"boundaries {', '.join(map(str, explorer.boundaries))}"
    return f"{explorer.rows} rows of {explorer.documents} saved documents at depth 0, {stored}; {RULE.describe}"


def named_layout(layout: Layout, num_layers: int) -> str:
    """Return a layout followed by the names of its boundaries."""
    return f"{_tuple(layout)} = " + ", ".join(describe(boundary, num_layers) for boundary in layout)


def _tuple(layout: Layout) -> str:
    return f"({', '.join(map(str, layout))})"
