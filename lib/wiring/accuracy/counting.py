"""Counting rules of trainers as data: which rows count, against which label, and how shares are averaged.

Row t (from 0) at depth (TTT step) k predicts x_{t+2+k}; its label is the target's choice after position j = t+1+k.
A trainer that tests its loss mask at t+k tests it at j-1, one that tests at t+1+k tests it at j: whether a row counts
depends on j alone.

Read from: SpecForge 0.2.0 (algorithms/eagle3/{model,data}.py, eval/evaluator.py), SafeAILab/EAGLE cb7e0841
(eagle/traineagle3/{cnets,main}.py), speculators 0.9.0 (models/eagle3/{data,metrics}.py, models/metrics.py),
Model-Optimizer of 2026 (torch/speculative/plugins/hf_eagle.py, eagle/utils.py), TorchSpec of 2026-04-28
(models/eagle3.py, training/eagle3_trainer.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wiring.errors import WiringError

_MASKED = {"before the label": "state's own token", "the label": "token fed with the state"}


@dataclass(frozen=True)
class CountingRule:
    """The counting rule of one trainer; `describe` states it in words.

    mask_at: the loss mask is tested at j-1 ("before the label") or at j ("the label").
    whole_text: every token counts, whatever mask the file holds.
    padded_end: the row with its label one token past the end counts too, where the mask includes it; token and last
        hidden state there are zeros, so the label is id 0. SpecForge's loader clears the last entry of the mask, which
        leaves that row out; the others have no such row.
    labels: argmax over the whole vocabulary, or over the draft's.
    outside: a label outside the draft's vocabulary is "wrong", "excluded", or "remapped" to the best one inside.
    condition: "none"; "cumulative": right only if all earlier depths were right, over all masked rows; "given": the
        same numerator over the rows that were right so far.
    average: "pooled" over rows, or the mean over the trainer's batches of each batch's share.
    bonus: whether the trainer's simulated accept length includes the bonus token.
    """

    name: str
    mask_at: Literal["before the label", "the label"]
    labels: Literal["full", "draft"]
    outside: Literal["wrong", "excluded", "remapped"]
    condition: Literal["none", "cumulative", "given"] = "none"
    average: Literal["pooled", "batches"] = "pooled"
    whole_text: bool = False
    padded_end: bool = False
    bonus: bool = False

    @property
    def describe(self) -> str:
        """Return the rule in one sentence."""
        mask = "all tokens count" if self.whole_text else f"loss mask tested at the {_MASKED[self.mask_at]}"
        label = {"full": "the whole vocabulary", "draft": "the draft's vocabulary"}[self.labels]
        outside = {
            "wrong": "labels outside the draft's vocabulary are wrong",
            "excluded": "labels outside the draft's vocabulary are left out",
            "remapped": "labels are the best id inside the draft's vocabulary",
        }[self.outside]
        condition = {
            "none": "each depth on its own",
            "cumulative": "right only if every earlier depth was right",
            "given": "among rows that were right at every earlier depth",
        }[self.condition]
        average = {"pooled": "pooled over rows", "batches": "mean over batches"}[self.average]
        return f"{self.name}: {mask}; label = target's argmax over {label}; {outside}; {condition}; {average}"


PRESETS: dict[str, CountingRule] = {
    rule.name: rule
    for rule in (
        CountingRule("specforge", "before the label", "full", "wrong"),
        CountingRule("safeailab", "before the label", "full", "wrong", average="batches", padded_end=True),
        CountingRule("speculators-full", "the label", "draft", "remapped", condition="cumulative"),
        CountingRule("speculators-cond", "the label", "draft", "remapped", condition="given"),
        CountingRule("modelopt", "the label", "draft", "remapped", average="batches", whole_text=True, bonus=True),
        CountingRule("modelopt-answer-only", "the label", "draft", "remapped", average="batches", bonus=True),
        CountingRule("torchspec", "before the label", "full", "excluded", average="batches", padded_end=True),
    )
}


def counting_rule(name: str) -> CountingRule:
    """Return the preset called `name`. Raises WiringError for an unknown name."""
    if name not in PRESETS:
        raise WiringError("unknown counting preset", code="preset-unknown", expected=", ".join(PRESETS), found=name)
    return PRESETS[name]
