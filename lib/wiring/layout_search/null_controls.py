"""Test whether the best layout fits at all: a search over thousands of layouts always finds a best one.

The layout that is best on one half of the documents is evaluated on the other half. There it must beat, paired by
document, controls without a true layout: the draft on the states of another document, on states of zeros, with its
slots rotated; and a table of label frequencies. A draft with a corrupted or untrained `fc` loses to the table. Logits
are taken at temperature 1, because the draft itself is judged here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wiring.accuracy.stats import paired_differences
from wiring.layers import Layout
from wiring.layout_search.data import SearchData
from wiring.layout_search.layout_losses import first_step_sums

if TYPE_CHECKING:
    from wiring.model.eagle3 import Eagle3Draft

OTHER, ZEROED, PERMUTED, TABLE = "other_sequence", "zeroed", "permuted", "frequencies"
WORDS = {
    OTHER: "the states of another document",
    ZEROED: "states of zeros",
    PERMUTED: "the same boundaries rotated by one slot",
    TABLE: "a table of label frequencies",
}


@dataclass(frozen=True)
class NullControl:
    """Mean cross-entropy in nats of a control on the documents held out, and by how much the layout beats it there:
    `difference` with its 95 % interval, positive where the layout is better."""

    name: str
    cross_entropy: float
    difference: float
    low: float
    high: float


@torch.no_grad()
def controls(
    draft: Eagle3Draft, layout: Layout, known: SearchData, held_out: SearchData, seed: int = 0
) -> tuple[NullControl, ...]:
    """Compare `layout` with every control on `held_out`; the table of label frequencies comes from `known`."""
    rows = held_out.counted.sum(1).numpy()
    states = held_out.states[list(layout)]  # [n, D, T, H]
    real = _sums(draft, states, held_out)
    found = {
        OTHER: _sums(draft, _of_another(states, held_out.lengths), held_out),
        ZEROED: _sums(draft, torch.zeros_like(states), held_out),
    }
    if len(set(layout)) > 1:
        found[PERMUTED] = _sums(draft, states.roll(-1, 0), held_out)
    found[TABLE] = _table(known, held_out, draft.config.draft_vocab_size)
    bounds = paired_differences(np.stack(list(found.values())), real, rows, seed)
    return tuple(
        NullControl(name, float(sums.sum() / rows.sum()), *map(float, row))
        for (name, sums), row in zip(found.items(), bounds, strict=True)
    )


def verdict(found: tuple[NullControl, ...]) -> tuple[bool, str]:
    """Return whether the layout fits, and the reason in a sentence."""
    lost = [control for control in found if control.low <= 0]
    if not lost:
        least = min(found, key=lambda control: control.difference)
        return True, (
            f"on held-out documents it beats every control; the nearest, {WORDS[least.name]}, by "
            f"{least.difference:.3f} nats ({least.low:.3f} to {least.high:.3f})"
        )
    worst = min(lost, key=lambda control: control.difference)
    return False, (
        f"no layout fits: on held-out documents the best one does not beat {WORDS[worst.name]} "
        f"({worst.difference:.3f} nats, {worst.low:.3f} to {worst.high:.3f})"
    )


def _sums(draft: Eagle3Draft, states: Tensor, data: SearchData) -> np.ndarray:
    """Return summed losses [D] of states [n, D, T, H]."""
    device = draft.fc.weight.device
    outputs = draft.project(states.permute(1, 2, 0, 3).to(device))[None]
    return first_step_sums(draft, outputs, data.tokens.to(device), data.labels.to(device))[0, 0].numpy()


def _of_another(states: Tensor, lengths: Tensor) -> Tensor:
    """Give each document the states [n, D, T, H] of the document before it, repeated where they are shorter."""
    other = torch.arange(len(lengths)).roll(1)
    rows = torch.arange(states.shape[2])[None] % lengths[other, None]  # [D, T]
    return states[:, other[:, None], rows]


def _table(known: SearchData, held_out: SearchData, vocab: int) -> np.ndarray:
    """Return summed losses [D] of label frequencies, with half a row added to each label."""
    labels = known.labels[known.counted]
    shares = torch.bincount(labels, minlength=vocab).double() + 0.5
    loss = -(shares / shares.sum()).log()
    return torch.where(held_out.counted, loss[held_out.labels.clamp(min=0)], 0.0).sum(1).numpy()
