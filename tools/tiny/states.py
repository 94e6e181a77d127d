"""What the target computes on given documents: for training the draft, and as the saved training states."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tiny import corpus
from tiny.config import STORED_BOUNDARIES
from tiny.target_model import StackedTarget
from tiny.target_train import as_batch
from wiring.checkpoints.states import write_sidecar, write_state
from wiring.layers import Layout

GROUP = 2000  # files per rows_* folder, as SpecForge groups them
BATCH = 24  # documents per forward pass


@dataclass(frozen=True)
class Observed:
    """The target on D documents of N tokens.

    tokens [D, N]; counted [D, N] bool, the tokens that follow from those before; states [D, N, n, H] not normed, one
    slot per boundary of `boundaries`; last_hidden [D, N, H] after the final norm; labels [D, N], the target's first
    choice for the next token.
    """

    tokens: Tensor
    counted: Tensor
    boundaries: Layout
    states: Tensor
    last_hidden: Tensor
    labels: Tensor


@torch.no_grad()
def observe(
    target: StackedTarget,
    documents: list[corpus.Document],
    boundaries: Layout,
    report: Callable[[int], None] = lambda done: None,
) -> Observed:
    """Run the target over documents of one length; `report` is told how many are done."""
    tokens, counted = as_batch(documents)
    states, last_hidden, labels = [], [], []
    for batch in tokens.split(BATCH):
        logits, last, captured = target(batch, boundaries)
        states.append(torch.stack([captured[b] for b in boundaries], 2))  # [B, N, n, H]
        last_hidden.append(last)
        labels.append(logits.argmax(-1))
        report(sum(map(len, labels)))
    return Observed(tokens, counted, boundaries, torch.cat(states), torch.cat(last_hidden), torch.cat(labels))


def write_states(target: StackedTarget, folder: Path, seed: int, count: int, length: int) -> None:
    """Save `count` held-out documents of `length` tokens in SpecForge's offline format, with STORED_BOUNDARIES.

    Floats are bfloat16; loss_mask is 1 where the token follows from those before it. `boundaries.json` names the slots.
    What `folder` held is replaced.
    """
    documents = corpus.draw_many(f"states {seed}", count, length, "states")
    seen = observe(target, documents, STORED_BOUNDARIES)
    fresh = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    for index in range(count):
        first = index // GROUP * GROUP
        write_state(
            fresh / f"rows_{first}-{first + GROUP}" / f"data_{index}.ckpt",
            seen.tokens[index].clone(),  # a view would take the tokens of all documents into the file
            seen.counted[index].long(),
            seen.states[index].bfloat16(),
            seen.last_hidden[index].bfloat16(),
        )
    write_sidecar(fresh, STORED_BOUNDARIES, "post")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
