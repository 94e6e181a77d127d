"""Train the target on freshly drawn documents; measure it on held-out ones."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiny import corpus
from tiny.config import TargetSizes
from tiny.muon import StackedMuon
from tiny.target_model import MATRICES, StackedTarget


@dataclass(frozen=True)
class TargetTraining:
    """Settings of one training run of the target."""

    short_steps: int = 900  # most of what there is to learn shows in the first hundred tokens, at half the price
    short_batch: int = 10  # documents
    short_length: int = 96  # tokens per document
    long_steps: int = 150  # then the distances that a prompt and its continuation span
    long_batch: int = 8
    long_length: int = 192
    muon_lr: float = 0.012
    adam_lr: float = 3e-3
    warm_up: int = 40  # steps
    decay: float = 0.7  # share of the steps over which the learning rate falls to zero
    compiled: bool = True  # where there is a C++ compiler; without, it takes about a fifth more time

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.short_steps + self.long_steps


def rate(step: int, steps: int, warm_up: int, decay: float) -> float:
    """Learning-rate factor at `step`: up over `warm_up` steps, level, then down over the last `decay` of the steps."""
    return max(0.01, min(1.0, (step + 1) / warm_up, (steps - step) / (decay * steps)))


def as_batch(documents: list[corpus.Document]) -> tuple[Tensor, Tensor]:
    """Token ids [B, N] and which of them follow from those before, bool [B, N]; documents of one length."""
    tokens = torch.tensor([document.ids for document in documents])
    starts = torch.tensor([document.start for document in documents])
    return tokens, torch.arange(tokens.shape[1]) >= starts[:, None]


@torch.no_grad()
def accuracy_by_kind(target: StackedTarget, seed: int, length: int, documents: int = 32) -> dict[str, float]:
    """Share of the predictable tokens of held-out documents that the target's argmax gets right, per kind."""
    right: dict[str, list[Tensor]] = {kind: [] for kind in corpus.KINDS}
    for document in corpus.draw_many(f"evaluation {seed}", documents, length, "evaluation"):
        tokens, predictable = as_batch([document])
        guesses = target(tokens[:, :-1])[0].argmax(-1)
        right[document.kind].append((guesses == tokens[:, 1:])[predictable[:, 1:]])
    return {kind: float(torch.cat(hits).float().mean()) for kind, hits in right.items()}


def train_target(
    sizes: TargetSizes,
    settings: TargetTraining,
    seed: int,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> StackedTarget:
    """Train a fresh target from `seed`; `report` is called after every step with its number (from 1) and loss."""
    target = StackedTarget(sizes, seed)
    if settings.compiled and shutil.which("g++"):
        target.compile()
    matrices = [parameter for name, parameter in target.named_parameters() if name in MATRICES]
    others = [parameter for name, parameter in target.named_parameters() if name not in MATRICES]
    optimizers = (
        StackedMuon(matrices, settings.muon_lr),
        torch.optim.AdamW(others, settings.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    )
    peaks = (settings.muon_lr, settings.adam_lr)
    rng = random.Random(f"target {seed}")
    for step in range(settings.steps):
        long = step >= settings.short_steps
        batch, length = (
            (settings.long_batch, settings.long_length) if long else (settings.short_batch, settings.short_length)
        )
        documents = [corpus.draw(rng, length + 1, corpus.TRAINING) for _ in range(batch)]
        tokens, predictable = as_batch(documents)
        logits = target(tokens[:, :-1])[0]
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        weights = predictable[:, 1:].flatten().float()
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        factor = rate(step, settings.steps, settings.warm_up, settings.decay)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report(step + 1, float(loss.detach()))
    target.dense_layer = StackedTarget(sizes, seed).dense_layer
    return target.eval()
