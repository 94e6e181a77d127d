"""The draft alone on saved states: accuracy by depth, by the counting rule of the trainer.

Rule "specforge": at row t and depth k the draft is right when its first choice, as a target id, is the target's first
choice over the whole vocabulary at position t+1+k, i.e. argmax of head @ last_hidden[t+1+k]. A label outside the
draft's vocabulary counts as wrong. Depths do not depend on each other. The row counts when loss_mask[t+k] is 1, after
loss_mask[-1] = 0: SpecForge does not shift the mask with the labels, and its loader clears the last entry. So no row
counts that lacks a token x_{t+1+k} or a label. Pooled over all rows of all sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wiring.boundary import Layout
from wiring.errors import WiringError
from wiring.offline.controls import with_control

if TYPE_CHECKING:
    from wiring.files.states import StateSample
    from wiring.models.eagle3 import Eagle3Draft

RULE = "specforge"
RESAMPLES = 2000
_LABEL_ROWS = 2048  # rows of full-vocabulary logits held at once


@dataclass(frozen=True)
class DepthAccuracy:
    """Accuracy of draft step `depth` (0 first). Shares lie in 0..1; `low`, `high` bound a 95 % interval.

    `floor` is the share reached by always proposing the most frequent label of the sample; `out_of_vocabulary` of the
    `total` rows have a label that the draft cannot say.
    """

    depth: int
    correct: int
    total: int
    accuracy: float
    low: float
    high: float
    floor: float
    out_of_vocabulary: int


@dataclass(frozen=True)
class AccuracyReport:
    """Accuracy under one layout and one control, over `sequences` sequences."""

    layout: Layout
    control: str
    rule: str
    sequences: int
    depths: tuple[DepthAccuracy, ...]


@torch.no_grad()
def accuracy_by_depth(
    draft: Eagle3Draft,
    samples: Iterable[StateSample],
    layout: Layout,
    depths: int,
    head: Tensor,
    control: str = "none",
    seed: int = 0,
    batch: int = 8,
    progress: Callable[[int], None] | None = None,
) -> AccuracyReport:
    """Measure draft steps 0..depths-1 on saved states, by the rule of this module.

    `head` [V, H] is the target's lm_head; `control` one of `wiring.offline.controls.CONTROLS`; `seed` draws the
    bootstrap over sequences; `batch` sequences run together, on the draft's device; `progress` is told the number of
    sequences done. Raises WiringError for no countable row, a head that does not fit, or a layout that is not stored.
    """
    if depths < 1:
        raise WiringError("accuracy needs at least one depth", expected=">= 1", found=depths)
    device, vocab = draft.fc.weight.device, draft.config.vocab_size
    head = head.to(device, torch.float32)
    sayable = torch.zeros(len(head), dtype=torch.bool, device=device)
    sayable[draft.target_ids] = True
    correct: list[np.ndarray] = []  # per sequence [depths]
    total: list[np.ndarray] = []
    outside = np.zeros(depths, dtype=np.int64)
    counts = torch.zeros(depths, len(head), dtype=torch.int64, device=device)  # rows per label
    for group in _grouped(with_control(samples, layout, control), batch):
        tokens, states, labels, mask = _padded(group, head, vocab)
        right_now, total_now = [], []
        for k, logits in enumerate(draft.unrolled(tokens, states, depths)):
            rows = max(tokens.shape[1] - 1 - k, 0)  # rows with a token x_{t+1+k} and a label
            label, counted = labels[:, 1 + k :], mask[:, k : k + rows]  # [B, rows]
            right = (draft.to_target_ids(logits[:, :rows].argmax(-1)) == label) & counted
            right_now.append(right.sum(1))
            total_now.append(counted.sum(1))
            outside[k] += int((counted & ~sayable[label]).sum())
            counts[k] += torch.bincount(label[counted], minlength=len(head))
        correct.extend(torch.stack(right_now, 1).cpu().numpy())
        total.extend(torch.stack(total_now, 1).cpu().numpy())
        if progress:
            progress(len(correct))
    if not correct:
        raise WiringError("there are no sequences to measure on", where=f"layout {layout}", expected="at least one")
    c, n = np.stack(correct), np.stack(total)  # [S, depths]
    if not n.sum(0).all():
        raise WiringError(
            f"no row counts at depth {int((n.sum(0) == 0).argmax())}",
            where="loss_mask",
            expected="sequences with counted tokens, longer than the depths",
            found=f"{len(c)} sequences",
        )
    low, high = _bootstrap(c, n, seed)
    most = counts.max(1).values.cpu().numpy()
    return AccuracyReport(
        layout=tuple(layout),
        control=control,
        rule=RULE,
        sequences=len(c),
        depths=tuple(
            DepthAccuracy(
                depth=k,
                correct=int(c[:, k].sum()),
                total=int(n[:, k].sum()),
                accuracy=float(c[:, k].sum() / n[:, k].sum()),
                low=float(low[k]),
                high=float(high[k]),
                floor=float(most[k] / n[:, k].sum()),
                out_of_vocabulary=int(outside[k]),
            )
            for k in range(depths)
        ),
    )


def target_labels(last_hidden: Tensor, head: Tensor) -> Tensor:
    """The target's first choice [N] after each position, from last_hidden [N, H] (normed) and head [V, H]."""
    if last_hidden.shape[-1] != head.shape[-1]:
        raise WiringError(
            "the target's head does not fit the saved last hidden state",
            where="lm_head.weight",
            expected=f"width {last_hidden.shape[-1]}",
            found=f"width {head.shape[-1]}",
        )
    rows = last_hidden.to(head.device, head.dtype)
    return torch.cat([(block @ head.T).argmax(-1) for block in rows.split(_LABEL_ROWS)])


def _grouped(pairs: Iterable[tuple[StateSample, Tensor]], size: int) -> Iterator[list[tuple[StateSample, Tensor]]]:
    group: list[tuple[StateSample, Tensor]] = []
    for pair in pairs:
        group.append(pair)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _padded(group: list[tuple[StateSample, Tensor]], head: Tensor, vocab: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pad on the right to tokens [B, N], states [B, N, n, H], labels [B, N], mask [B, N] bool, on head's device."""
    longest = max(len(sample.tokens) for sample, _ in group)
    first = group[0][1]
    tokens = torch.zeros(len(group), longest, dtype=torch.int64, device=head.device)
    labels, mask = tokens.clone(), torch.zeros_like(tokens, dtype=torch.bool)
    states = torch.zeros(len(group), longest, *first.shape[1:], device=head.device)
    for i, (sample, chosen) in enumerate(group):
        length = len(sample.tokens)
        if int(sample.tokens.min()) < 0 or int(sample.tokens.max()) >= vocab:
            raise WiringError(
                "a token id is outside the draft's vocabulary of target ids",
                where=sample.source,
                expected=f"0..{vocab - 1}",
                found=f"{int(sample.tokens.min())}..{int(sample.tokens.max())}",
            )
        tokens[i, :length] = sample.tokens.to(head.device)
        states[i, :length] = chosen.to(head.device, torch.float32)
        labels[i, :length] = target_labels(sample.last_hidden, head)
        mask[i, : length - 1] = sample.loss_mask[:-1].to(head.device) != 0
    return tokens, states, labels, mask


def _bootstrap(correct: np.ndarray, total: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile interval [depths] of pooled accuracy, drawing whole sequences again with replacement.

    Tokens of a sequence are not independent, so rows are not drawn. One sequence tells nothing about the spread
    between sequences: the interval is then 0..1.
    """
    if len(correct) == 1:
        return np.zeros(correct.shape[1]), np.ones(correct.shape[1])
    drawn = np.random.default_rng(seed).multinomial(len(correct), [1 / len(correct)] * len(correct), RESAMPLES)
    rows = drawn @ total  # [R, depths]
    share = np.divide(drawn @ correct, rows, out=np.full(rows.shape, np.nan), where=rows > 0)
    return np.nanquantile(share, 0.025, axis=0), np.nanquantile(share, 0.975, axis=0)
