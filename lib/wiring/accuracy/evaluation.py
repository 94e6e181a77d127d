"""Evaluate the draft alone on saved states: accuracy by depth, by a trainer's counting rule, under each control.

Row t at depth k predicts the label at position j = t+1+k; whether the row counts depends on j alone (see
`wiring.accuracy.counting`). Only counted rows are projected by the draft's head, and only their labels are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wiring.accuracy import stats
from wiring.accuracy.accuracy_report import AccuracyReport, DepthAccuracy, PositionAccuracy
from wiring.accuracy.controls import AS_THEY_ARE, with_controls
from wiring.accuracy.counting import CountingRule, counting_rule
from wiring.accuracy.frequency_baselines import FrequencyTable
from wiring.accuracy.target_head import TargetHead, choices, first_choices
from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from wiring.checkpoints.states import StateSample
    from wiring.model.eagle3 import Eagle3Draft

RULE = "specforge"
BUCKETS = (0, 32, 128, 512, 2048, 8192)  # first token position of each bucket


def accuracy_by_depth(
    draft: Eagle3Draft,
    samples: Iterable[StateSample],
    layout: Layout,
    depths: int,
    head: TargetHead | Tensor,
    control: str = AS_THEY_ARE,
    **settings,
) -> AccuracyReport:
    """Return `evaluate` under one control."""
    return evaluate(draft, samples, layout, depths, head, controls=(control,), **settings)[control]


@torch.no_grad()
def evaluate(
    draft: Eagle3Draft,
    samples: Iterable[StateSample],
    layout: Layout,
    depths: int,
    head: TargetHead | Tensor,
    *,
    controls: Sequence[str] = (AS_THEY_ARE,),
    rule: CountingRule | str = RULE,
    seed: int = 0,
    batch: int = 8,
    trainer_batch: int = 1,
    control_sequences: int | None = None,
    outside_sequences: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, AccuracyReport]:
    """Measure draft steps 0..depths-1 on saved states by a counting rule, once for each control, in one pass.

    `head` is the target's head (a tensor [V, H]: the states are normed already); the draft's device and dtype are used.
    `batch` sequences run together; `trainer_batch` is the batch size of a trainer whose rule averages over batches.
    `control_sequences` limits all controls but "none" to the first sequences; `outside_sequences` limits the share of
    labels outside the draft's vocabulary under a rule that labels inside it, because only that share needs the target's
    whole head. `seed` is that of the bootstrap; `progress` is called with the number of sequences done.

    Raises WiringError for no countable row, a head that does not fit, or a layout that is not stored.
    """
    if depths < 1:
        raise WiringError("accuracy needs at least one depth", code="no-depths", expected=">= 1", found=depths)
    rule = counting_rule(rule) if isinstance(rule, str) else rule
    device, dtype = draft.fc.weight.device, draft.fc.weight.dtype
    head = (head if isinstance(head, TargetHead) else TargetHead(head)).to(device, dtype)
    counted = _Counted(rule, draft.target_ids, head)
    tallies = {control: _Tally(depths, len(head.weight)) for control in controls}
    done = 0
    if getattr(draft, "depends_on_length", False):
        batch = 1  # dynamic RoPE: a row depends on the length of its text, so no text may be padded
    stream = with_controls(samples, layout, controls)
    while group := list(islice(stream, batch)):
        whole = len(group) if outside_sequences is None else outside_sequences - done
        rows = counted.rows([sample for sample, _ in group], draft.config.vocab_size, whole)
        for control, tally in tallies.items():
            take = len(group)
            if control != AS_THEY_ARE and control_sequences is not None:
                take = min(take, max(control_sequences - done, 0))
            if take:
                states = _stacked([states[control] for _, states in group[:take]], rows.tokens.shape[1], device, dtype)
                _run(draft, rows.first(take), states, depths, rule, tally, baselines=control == controls[0])
        done += len(group)
        if progress:
            progress(done)
    if not done:
        raise WiringError(
            "no sequences to evaluate", code="no-sequences", where=f"layout {layout}", expected="at least one"
        )
    baselines = tallies[controls[0]].table.scores()
    return {
        control: tally.report(layout, control, rule, trainer_batch, seed, baselines)
        for control, tally in tallies.items()
    }


@dataclass(frozen=True)
class _Rows:
    """A padded batch, shared by all depths and controls. P = longest sequence, plus one under `padded_end`.

    tokens [B, P]; labels [B, P + 1] target ids by label position j; counts [B, P + 1] whether j counts; masked
    [B, P + 1] the same before out-of-vocabulary labels are left out; valid [B, P + 1] whether the trainer has a row for
    j at all; outside [B, P + 1] whether the label is outside the draft's vocabulary, known where `looked` [B] is set.
    """

    tokens: Tensor
    labels: Tensor
    counts: Tensor
    masked: Tensor
    valid: Tensor
    outside: Tensor
    looked: Tensor

    def first(self, n: int) -> _Rows:
        """Return the first n sequences."""
        if n == len(self.tokens):
            return self
        return _Rows(*(getattr(self, name)[:n] for name in self.__dataclass_fields__))


class _Counted:
    """Prepare batches for a rule: which label positions count, and their labels."""

    def __init__(self, rule: CountingRule, target_ids: Tensor, head: TargetHead):
        self.rule, self.head, self.target_ids = rule, head, target_ids
        self.in_vocabulary = torch.zeros(len(head.weight), dtype=torch.bool, device=head.weight.device)
        self.in_vocabulary[target_ids] = True
        self.inside = head.weight[target_ids] if rule.labels == "draft" else None  # [Vd, H]

    def rows(self, samples: Sequence[StateSample], vocab: int, whole: int) -> _Rows:
        """Pad `samples` on the right and label them; the first `whole` by the target's whole vocabulary too."""
        rule, device = self.rule, self.head.weight.device
        longest = max(len(sample.tokens) for sample in samples) + rule.padded_end
        tokens = torch.zeros(len(samples), longest, dtype=torch.int64, device=device)
        labels = torch.zeros(len(samples), longest + 1, dtype=torch.int64, device=device)
        masked = torch.zeros(len(samples), longest + 1, dtype=torch.bool, device=device)
        valid = torch.zeros_like(masked)
        outside = torch.zeros_like(masked)
        looked = torch.ones(len(samples), dtype=torch.bool, device=device)
        for i, sample in enumerate(samples):
            length = len(sample.tokens)
            _check_tokens(sample, vocab)
            tokens[i, :length] = sample.tokens.to(device)
            mask = torch.ones(length, dtype=torch.bool) if rule.whole_text else sample.loss_mask != 0  # [N]
            end = length + rule.padded_end  # label positions 1..end-1
            valid[i, 1:end] = True
            at = mask.to(device)
            masked[i, 1:end] = at[: end - 1] if rule.mask_at == "before the label" else at[1:end]
            # A rule that depends on earlier depths needs labels between the masked ones too.
            needed = valid[i] if rule.condition != "none" else masked[i]
            where = needed[:length].nonzero()[:, 0]  # positions with a saved last hidden state
            states = self.head.normed(sample, sample.last_hidden[where.cpu()])
            if self.inside is not None:
                labels[i, where] = self.target_ids[choices(states, self.inside)]
                looked[i] = i < whole
            if looked[i]:
                best = choices(states, self.head.weight)
                outside[i, where] = ~self.in_vocabulary[best]
                if self.inside is None:
                    labels[i, where] = best
            if rule.padded_end:  # all logits of a state of zeros are 0: the first id wins
                outside[i, length] = ~self.in_vocabulary[0]
        counts = masked & ~outside if rule.outside == "excluded" else masked
        return _Rows(tokens, labels, counts, masked, valid, outside, looked)


class _Tally:
    """Counts of one control, per sequence and depth."""

    def __init__(self, depths: int, vocab: int):
        self.correct: list[np.ndarray] = []  # per sequence [depths]
        self.total: list[np.ndarray] = []
        self.outside = np.zeros((2, depths), dtype=np.int64)  # labels outside the vocabulary, labels examined
        self.labels = np.zeros((depths, vocab), dtype=np.int64)  # rows per label
        self.buckets = np.zeros((2, depths, len(BUCKETS)), dtype=np.int64)
        self.table = FrequencyTable(vocab)

    def report(
        self, layout: Layout, control: str, rule: CountingRule, trainer_batch: int, seed: int, baselines: tuple
    ) -> AccuracyReport:
        """Return the report. Raises WiringError when a depth has no counted row."""
        correct, total = np.stack(self.correct), np.stack(self.total)  # [S, depths]
        rows = total.sum(0)
        # Under "given" there may be no right row left at deeper depths: 0 of 0 is a valid result.
        wanted = rows[:1] if rule.condition == "given" else rows
        if not wanted.all():
            raise WiringError(
                f"no row counts at depth {int((rows == 0).argmax())}",
                code="no-counted-rows",
                where="loss_mask",
                expected="sequences with counted tokens, longer than the depths",
                found=f"{len(total)} sequences",
            )
        pooled = rule.average == "pooled"
        c, n = (correct, total) if pooled else (stats.batch_sums(x, trainer_batch) for x in (correct, total))
        share = np.nan_to_num(stats.pooled_share(c, n) if pooled else stats.mean_share(c, n))
        low, high = stats.share_interval(c, n, pooled, seed)

        def length(shares: np.ndarray) -> np.ndarray:
            shares = np.nan_to_num(shares)
            return (shares if rule.condition == "cumulative" else shares.cumprod(-1)).sum(-1)

        length_low, length_high = stats.share_interval(c, n, pooled, seed, length)
        one = len(c) == 1  # the spread is unknown: the widest bounds
        most = self.labels.max(1)
        return AccuracyReport(
            layout=tuple(layout),
            control=control,
            rule=rule.name,
            sequences=len(correct),
            depths=tuple(
                DepthAccuracy(
                    depth=k,
                    correct=int(correct[:, k].sum()),
                    total=int(rows[k]),
                    accuracy=float(share[k]),
                    low=0.0 if one or not rows[k] else float(low[k]),
                    high=1.0 if one or not rows[k] else float(high[k]),
                    floor=float(most[k] / max(rows[k], 1)),
                    out_of_vocabulary=int(self.outside[0, k]),
                    out_of_vocabulary_of=int(self.outside[1, k]),
                )
                for k in range(len(rows))
            ),
            positions=self._positions(),
            accept_length=float(length(share)),
            accept_length_low=0.0 if one else float(length_low),
            accept_length_high=float(len(rows)) if one else float(length_high),
            unigram=baselines[0],
            bigram=baselines[1],
        )

    def _positions(self) -> tuple[PositionAccuracy, ...]:
        correct, total = self.buckets
        last = [first - 1 for first in BUCKETS[1:]] + [None]
        return tuple(
            PositionAccuracy(k, BUCKETS[i], last[i], int(correct[k, i]), int(total[k, i]))
            for k in range(len(total))
            for i in range(len(BUCKETS))
            if total[k, i]
        )


def _run(
    draft: Eagle3Draft, rows: _Rows, states: Tensor, depths: int, rule: CountingRule, tally: _Tally, baselines: bool
) -> None:
    """Unroll one padded batch [B, P] and add its counts."""
    before = rows.masked[:, 1:-1].clone()  # [B, T], T = P - 1: right at every depth so far
    length = before.shape[1]
    wanted = [_columns(rows.counts, 1 + k, length) for k in range(depths)]  # by depth: rows that count there
    for k in range(depths - 2, -1, -1):
        wanted[k] = wanted[k] | wanted[k + 1]  # or deeper

    def keep(k: int) -> Tensor:
        return wanted[k] if rule.condition == "none" else before & _columns(rows.valid, 1 + k, length)

    correct, total = [], []
    for k, hidden in enumerate(draft.hidden_steps(rows.tokens, states, depths, keep=keep)):
        reach = max(hidden.shape[1] - k, 0)  # rows with a label position within the batch
        label, counts = rows.labels[:, 1 + k : 1 + k + reach], rows.counts[:, 1 + k : 1 + k + reach]  # [B, reach]
        valid, so_far = rows.valid[:, 1 + k : 1 + k + reach], before[:, :reach]
        needed = valid & so_far if rule.condition != "none" else counts
        right = torch.zeros_like(counts)
        right[needed] = _proposed(draft, hidden[:, :reach][needed]) == label[needed]
        if rule.condition != "none":
            rows_now = counts if rule.condition == "cumulative" else valid & so_far
            right &= so_far
            before = torch.cat([torch.where(valid, right, so_far), before[:, reach:]], 1)
            right = right & counts
        else:
            rows_now = counts
        correct.append(right.sum(1))
        total.append(rows_now.sum(1))
        masked = rows.masked[:, 1 + k : 1 + k + reach] & rows.looked[:, None]
        tally.outside[:, k] += [int((masked & rows.outside[:, 1 + k : 1 + k + reach]).sum()), int(masked.sum())]
        tally.labels[k] += torch.bincount(label[counts], minlength=tally.labels.shape[1]).cpu().numpy()
        for i, first in enumerate(BUCKETS):
            if first < reach:
                part = slice(first, BUCKETS[i + 1] if i + 1 < len(BUCKETS) else None)
                tally.buckets[:, k, i] += [int(right[:, part].sum()), int(rows_now[:, part].sum())]
        if k == 0 and baselines:
            labels = label if rule.labels == "draft" else label.masked_fill(rows.outside[:, 1 : 1 + reach], -1)
            for i in range(len(label)):
                fed = rows.tokens[i, 1 : 1 + reach][counts[i]]  # a row at the padded end is fed id 0
                tally.table.add(len(tally.correct) + i, fed.cpu().numpy(), labels[i][counts[i]].cpu().numpy())
    tally.correct.extend(torch.stack(correct, 1).cpu().numpy())
    tally.total.extend(torch.stack(total, 1).cpu().numpy())


def _columns(marks: Tensor, start: int, width: int) -> Tensor:
    """marks[:, start : start + width], False beyond its end: [B, width]."""
    part = marks[:, start : start + width]
    return torch.nn.functional.pad(part, (0, width - part.shape[1]))


def _proposed(draft: Eagle3Draft, hidden: Tensor) -> Tensor:
    """Return the draft's argmax as target ids [M] for the states [M, H] before its head."""
    return draft.to_target_ids(first_choices(hidden, len(draft.target_ids), draft.logits))


def _check_tokens(sample: StateSample, vocab: int) -> None:
    if int(sample.tokens.min()) < 0 or int(sample.tokens.max()) >= vocab:
        raise WiringError(
            "a token id is outside the draft's vocabulary of target ids",
            code="token-outside-vocabulary",
            where=sample.source,
            expected=f"0..{vocab - 1}",
            found=f"{int(sample.tokens.min())}..{int(sample.tokens.max())}",
        )


def _stacked(states: list[Tensor], length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return states [N, n, H], padded on the right with zeros, as [B, P, n, H]."""
    stacked = torch.zeros(len(states), length, *states[0].shape[1:], device=device, dtype=dtype)
    for i, one in enumerate(states):
        stacked[i, : len(one)] = one.to(device, dtype)
    return stacked
