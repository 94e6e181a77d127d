"""The same draft on the same tokens twice: with the states that the server fed it, and with those it was trained on.

The labels are the target's own choices, the rows are the same, so the difference is the states' alone. Where it is
clear, what the server captures is at fault; where there is none and the server still accepts little, the fault is
behind the states (weights, vocabulary map, positions, the draft's own feedback).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wiring.accuracy import stats as intervals
from wiring.accuracy.counting import CountingRule, counting_rule
from wiring.accuracy.evaluation import RULE, accuracy_by_depth
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.states import StateSample
from wiring.errors import WiringError
from wiring.layers import Layout
from wiring.model.eagle3 import Eagle3Draft


@dataclass(frozen=True)
class ServedText:
    """One text with both sources of states, row t at position t.

    tokens [N] int64; loss_mask [N], 1 where tokens count; served [N, n, H] as `fc` was fed; trained [N, n, H] the
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
    """One depth on `rows` rows of both sources: shares in 0..1 with bounds of 95 % intervals.

    difference = served - trained, its interval from drawing texts (or the rule's batches of them) for both at once.
    """

    depth: int
    rows: int
    trained_correct: int
    served_correct: int
    trained: float
    trained_low: float
    trained_high: float
    served: float
    served_low: float
    served_high: float
    difference: float
    difference_low: float
    difference_high: float


@dataclass(frozen=True)
class ServingAccuracy:
    """Both accuracies by depth; `rule` says in a sentence what counts. Accept lengths are simulated, with the bonus."""

    rule: str
    layout: Layout
    texts: int
    depths: tuple[PairedDepth, ...]
    trained_accept_length: float
    served_accept_length: float


def from_the_start(positions: Tensor, states: Tensor) -> Tensor:
    """States [K, ...] of positions 0..K-1 out of rows [M, ...] at `positions` [M], up to the first one that is missing.

    The draft's attention looks back over all positions, so a row behind a gap cannot be computed as the server did.
    Where a position is given more than once, the last row counts. Raises WiringError when position 0 is missing.
    """
    where = {int(position): row for row, position in enumerate(positions.tolist())}
    rows: list[int] = []
    while len(rows) in where:
        rows.append(where[len(rows)])
    if not rows:
        raise WiringError(
            "the first position's state is missing",
            expected="states of all positions from 0",
            found=f"{len(where)} positions" + (f" from {min(where)}" if where else ""),
            remedy="Flush the server's prefix cache before the capture: cached positions are not computed again",
        )
    return states[rows]


def as_text(
    name: str, tokens: Tensor, loss_mask: Tensor, served: Tensor, trained: Tensor, last_hidden: Tensor
) -> ServedText:
    """A text cut to the positions whose served state is known: `served` [K, n, H], the rest [N, ...] with N >= K."""
    known = len(served)
    if known > len(tokens):
        raise WiringError("more served states than tokens", where=name, expected=f"<= {len(tokens)}", found=known)
    return ServedText(
        name, tokens[:known], loss_mask[:known], served, trained[:known].to(torch.float32), last_hidden[:known]
    )


def serving_accuracy(
    draft: Eagle3Draft,
    texts: Sequence[ServedText],
    layout: Layout,
    depths: int,
    head: TargetHead | Tensor,
    *,
    rule: CountingRule | str = RULE,
    trainer_batch: int = 1,
    seed: int = 0,
) -> ServingAccuracy:
    """Measure draft steps 0..depths-1 on both sources of states by one counting rule.

    `layout` is the trained one, `head` the target's ([V, H] for last hidden states that are normed).
    Raises WiringError for a rule whose rows depend on what was right before ("given"): the two sources would be counted
    on different rows. Otherwise as `wiring.accuracy.evaluation.evaluate`.
    """
    rule = counting_rule(rule) if isinstance(rule, str) else rule
    if rule.condition == "given":
        raise WiringError(
            "this counting rule takes other rows for each source of states",
            where=rule.name,
            expected="a rule that counts each depth by itself, or cumulatively",
            remedy="Choose specforge or speculators-full",
        )
    if not texts:
        raise WiringError("there are no texts to measure on", expected="at least one")
    counts = {
        source: [_counts(draft, text, source, layout, depths, head, rule) for text in texts]
        for source in ("trained", "served")
    }
    total = np.array([[rows for _, rows in text] for text in counts["trained"]])  # [texts, depths]
    correct = {source: np.array([[right for right, _ in text] for text in counts[source]]) for source in counts}
    return _summary(rule, layout, correct["trained"], correct["served"], total, trainer_batch, seed)


def _counts(
    draft: Eagle3Draft, text: ServedText, source: str, layout: Layout, depths: int, head, rule: CountingRule
) -> list[tuple[int, int]]:
    """(right, rows) of each depth; zeros where the text has no row that counts."""
    if not len(text.tokens) == len(text.loss_mask) == len(text.last_hidden) == len(text.trained) == len(text.served):
        raise WiringError("the parts of a text differ in length", where=text.name, expected=len(text.tokens))
    # Both sources hold the slots in order already; by place, since a layout may name a boundary twice.
    places = tuple(range(len(layout)))
    sample = StateSample(
        source=text.name,
        tokens=text.tokens,
        loss_mask=text.loss_mask,
        states=getattr(text, source),
        boundaries=places,
        last_hidden=text.last_hidden,
    )
    try:
        report = accuracy_by_depth(draft, [sample], places, depths, head, rule=rule)
    except WiringError as error:
        if "no row counts" not in error.problem:
            raise
        return [(0, 0)] * depths
    return [(depth.correct, depth.total) for depth in report.depths]


def _summary(
    rule: CountingRule,
    layout: Layout,
    trained: np.ndarray,
    served: np.ndarray,
    total: np.ndarray,
    batch: int,
    seed: int,
) -> ServingAccuracy:
    pooled = rule.average == "pooled"
    if not total.sum(0).all():
        raise WiringError(
            f"no row counts at depth {int((total.sum(0) == 0).argmax())}",
            where="loss_mask",
            expected="texts with counted tokens, longer than the depths",
            found=f"{len(total)} texts",
        )
    groups = [x if pooled else intervals.batches(x, batch) for x in (trained, served, total)]
    share = intervals.pooled_share if pooled else intervals.mean_share
    shares = [share(right, groups[2]) for right in groups[:2]]
    # The same draws of texts for both, side by side: their difference is paired.
    both = np.concatenate(groups[:2], 1), np.concatenate([groups[2]] * 2, 1)
    depths = total.shape[1]
    low, high = intervals.interval(*both, pooled, seed, lambda s: s)
    gap_low, gap_high = intervals.interval(*both, pooled, seed, lambda s: s[..., depths:] - s[..., :depths])
    if len(groups[2]) == 1:  # nothing is known of the spread: the widest bounds
        low, high = np.zeros(2 * depths), np.ones(2 * depths)
        gap_low, gap_high = -np.ones(depths), np.ones(depths)

    def length(s: np.ndarray) -> float:
        return 1 + float((s if rule.condition == "cumulative" else s.cumprod()).sum())

    return ServingAccuracy(
        rule=rule.describe,
        layout=tuple(layout),
        texts=len(total),
        depths=tuple(
            PairedDepth(
                depth=k,
                rows=int(total[:, k].sum()),
                trained_correct=int(trained[:, k].sum()),
                served_correct=int(served[:, k].sum()),
                trained=float(shares[0][k]),
                trained_low=float(low[k]),
                trained_high=float(high[k]),
                served=float(shares[1][k]),
                served_low=float(low[depths + k]),
                served_high=float(high[depths + k]),
                difference=float(shares[1][k] - shares[0][k]),
                difference_low=float(gap_low[k]),
                difference_high=float(gap_high[k]),
            )
            for k in range(depths)
        ),
        trained_accept_length=length(shares[0]),
        served_accept_length=length(shares[1]),
    )
