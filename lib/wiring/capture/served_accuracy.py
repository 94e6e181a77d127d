"""Measure a draft's accuracy on the states that a server fed it and on the states that it was trained on.

Labels and rows are the same for both, so the difference comes from the states alone. If it is clear, the server
captures the wrong states; if there is none and the server still accepts little, the fault is after the states
(weights, vocabulary map, positions, the draft's own recurrence).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wiring.accuracy import stats
from wiring.accuracy.counting import counting_rule
from wiring.accuracy.evaluation import RULE, accuracy_by_depth
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.states import StateSample
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Draft


@dataclass(frozen=True)
class ServedText:
    """One text with both sources of states, row t at position t.

    tokens [N] int64; loss_mask [N], 1 for tokens that count; served [N, n, H] as fed to `fc`; trained [N, n, H] the
    reference's states in the trained layout; last_hidden [N, H] the reference's, after the final norm.
    """

    name: str
    tokens: Tensor
    loss_mask: Tensor
    served: Tensor
    trained: Tensor
    last_hidden: Tensor


@dataclass(frozen=True)
class PairedDepth:
    """Accuracy at one depth on the trained and on the served states of the same `rows`, as shares in 0..1.

    difference_low, difference_high: 95 % interval of served - trained, from resampling texts for both at once.
    """

    depth: int
    rows: int
    trained: float
    served: float
    difference_low: float
    difference_high: float


@dataclass(frozen=True)
class ServingAccuracy:
    """Both accuracies by depth; `rule` describes which rows count."""

    rule: str
    depths: tuple[PairedDepth, ...]


def from_the_start(positions: Tensor, states: Tensor) -> Tensor:
    """Return states [K, ...] of positions 0..K-1 out of rows [M, ...] at `positions` [M], up to the first gap.

    The draft attends to all earlier positions, so a row after a gap cannot be computed as the server did. The last row
    of a repeated position counts. Raises WiringError if position 0 is missing.
    """
    where = {int(position): row for row, position in enumerate(positions.tolist())}
    rows: list[int] = []
    while len(rows) in where:
        rows.append(where[len(rows)])
    if not rows:
        raise WiringError(
            "the first position's state is missing",
            code="first-position-missing",
            expected="states of all positions from 0",
            found=f"{len(where)} positions" + (f" from {min(where)}" if where else ""),
            remedy="Flush the server's prefix cache before the capture: cached positions are not computed again",
        )
    return states[rows]


def serving_accuracy(
    draft: Eagle3Draft, texts: Sequence[ServedText], depths: int, head: TargetHead | Tensor, *, seed: int = 0
) -> ServingAccuracy:
    """Measure draft steps 0..depths-1 on both sources of states by the counting rule `RULE`.

    `head` is the target's ([V, H] for normed last hidden states). Raises WiringError if no row counts at a depth.
    """
    trained = [_counts(draft, text, text.trained, depths, head) for text in texts]
    served = [_counts(draft, text, text.served, depths, head) for text in texts]
    total = np.array([rows for _, rows in trained]).reshape(-1, depths)  # [texts, depths]
    rows = total.sum(0)
    if not rows.all():
        raise WiringError(
            f"no row counts at depth {int((rows == 0).argmax())}",
            code="no-counted-rows",
            where="loss_mask",
            expected="texts with counted tokens, longer than the depths",
            found=f"{len(total)} texts",
        )
    # The same draws of texts for both sources, so their difference is paired.
    both = np.concatenate([np.array([right for right, _ in source]) for source in (trained, served)], 1)
    totals = np.concatenate([total, total], 1)
    shares = stats.pooled_share(both, totals)
    low, high = stats.share_interval(both, totals, True, seed, lambda s: s[..., depths:] - s[..., :depths])
    if len(texts) == 1:  # the spread between texts is unknown: the widest bounds
        low, high = -np.ones(depths), np.ones(depths)
    return ServingAccuracy(
        counting_rule(RULE).describe,
        tuple(
            PairedDepth(k, int(rows[k]), float(shares[k]), float(shares[depths + k]), float(low[k]), float(high[k]))
            for k in range(depths)
        ),
    )


def _counts(
    draft: Eagle3Draft, text: ServedText, states: Tensor, depths: int, head: TargetHead | Tensor
) -> tuple[list[int], list[int]]:
    """Return (correct, rows) by depth; zeros if no row of the text counts."""
    slots = tuple(range(states.shape[1]))  # labels of the slots, which are in order; a layout may repeat a boundary
    sample = StateSample(
        source=text.name,
        tokens=text.tokens,
        loss_mask=text.loss_mask,
        states=states.to(torch.float32),
        boundaries=slots,
        last_hidden=text.last_hidden,
    )
    try:
        report = accuracy_by_depth(draft, [sample], slots, depths, head, rule=RULE)
    except WiringError as error:
        if error.code != "no-counted-rows":
            raise
        return [0] * depths, [0] * depths
    return [depth.correct for depth in report.depths], [depth.total for depth in report.depths]
