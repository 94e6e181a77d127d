"""Train the draft as EAGLE-3 does: teacher-forced unrolling over its own states, on boundaries 0, 3, 31.

The draft's vocabulary is the most frequent part of the target's choices. It covers about 80 % of them on this corpus,
and so sets the draft's accuracy: the rest is counted as wrong however long the draft is trained.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tiny.config import DraftSizes, TargetSizes, draft_config
from tiny.states import Observed
from tiny.target_train import rate
from wiring.checkpoints.atomic import replacing, write_json
from wiring.model.eagle3 import Eagle3Config, Eagle3Draft

OUTSIDE = -100  # label of what the draft's vocabulary lacks, ignored by the loss


@dataclass(frozen=True)
class DraftTraining:
    """Settings of one training run of the draft."""

    documents: int = 1500
    length: int = 160  # tokens per document
    steps: int = 550
    batch: int = 16  # documents
    unroll: int = 5  # draft steps per row
    step_decay: float = 0.8  # weight of a draft step's loss relative to the step before it
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.02
    warm_up: int = 40  # steps
    decay: float = 0.6  # share of the steps over which the learning rate falls to zero


def frequent_ids(seen: Observed, count: int) -> Tensor:
    """The `count` ids that the target chooses most often where it counts, ascending [count]."""
    chosen = torch.bincount(seen.labels[counted_labels(seen)])
    return chosen.argsort(descending=True, stable=True)[:count].sort().values


def counted_labels(seen: Observed) -> Tensor:
    """Which labels count, bool [D, N]: the label at n is for token n+1, so the mask moves by one."""
    return torch.cat([seen.counted[:, 1:], torch.ones_like(seen.counted[:, :1])], 1)


def coverage(seen: Observed, target_ids: Tensor) -> float:
    """Share of the counted labels that are among `target_ids`."""
    return float(torch.isin(seen.labels[counted_labels(seen)], target_ids).float().mean())


def train_draft(
    seen: Observed,
    embedding: Tensor,
    target: TargetSizes,
    sizes: DraftSizes,
    settings: DraftTraining,
    seed: int,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> Eagle3Draft:
    """Train a fresh draft from `seed` on the observed states; `report` is told each step's number (from 1) and loss."""
    ids = frequent_ids(seen, sizes.vocab)
    draft = Eagle3Draft.fresh(Eagle3Config.from_dict(draft_config(target, sizes)), embedding, seed, ids)
    draft_ids = torch.full((target.vocab,), OUTSIDE)
    draft_ids[ids] = torch.arange(sizes.vocab)
    labels = torch.where(counted_labels(seen), draft_ids[seen.labels], OUTSIDE)  # [D, N]
    # The slots' spreads differ a hundredfold. Left so, fc would start blind to the embedding's slot and stay so.
    spread = seen.states.std(dim=(0, 1, 3))  # [n]
    states = seen.states / spread[:, None]

    matrices = [p for name, p in draft.named_parameters() if p.dim() == 2 and name != "lm_head.weight"]
    others = [p for name, p in draft.named_parameters() if p.dim() != 2 or name == "lm_head.weight"]
    optimizers = (
        torch.optim.Muon(matrices, lr=settings.muon_lr, weight_decay=settings.weight_decay),
        torch.optim.AdamW(others, lr=settings.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    )
    peaks = (settings.muon_lr, settings.adam_lr)
    rng = random.Random(f"draft {seed}")
    for step in range(settings.steps):
        picked = torch.tensor(rng.sample(range(len(seen.tokens)), settings.batch))
        loss = unrolled_loss(draft, seen.tokens[picked], states[picked], labels[picked], settings)
        loss.backward()
        factor = rate(step, settings.steps, settings.warm_up, settings.decay)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report(step + 1, float(loss.detach()))
    with torch.no_grad():  # what the states were divided by goes into fc, which then takes them as they are
        draft.fc.weight.div_(spread.repeat_interleave(target.hidden))
    return draft.eval().requires_grad_(False)


def unrolled_loss(
    draft: Eagle3Draft, tokens: Tensor, states: Tensor, labels: Tensor, settings: DraftTraining
) -> Tensor:
    """Cross-entropy of every draft step, weighted; row t of step k is held against labels[t+1+k]. labels [B, N]."""
    loss = torch.zeros(())
    for k, logits in enumerate(draft.unrolled(tokens, states, settings.unroll)):
        wanted = labels[:, 1 + k :]  # [B, N-1-k]
        step_loss = F.cross_entropy(logits[:, : wanted.shape[1]].flatten(0, 1), wanted.flatten(), ignore_index=OUTSIDE)
        loss = loss + settings.step_decay**k * step_loss
    return loss


def write_draft(draft: Eagle3Draft, folder: Path, target: TargetSizes, sizes: DraftSizes) -> None:
    """Write config.json and model.safetensors (bfloat16, flat EAGLE-3 format) to `folder`."""
    with replacing(folder / "model.safetensors") as temporary:
        save_file(draft.checkpoint_tensors(), temporary, metadata={"format": "pt"})
    write_json(folder / "config.json", draft_config(target, sizes))
