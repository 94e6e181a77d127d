"""What the pair must be, and what it is: accuracy under three conditions, the text, accept length, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiny.config import REQUESTED_IDS, TRAINED_LAYOUT
from tiny.prompts import Prompt
from tiny.target_model import StackedTarget
from wiring.accuracy.evaluation import AccuracyReport, accuracy_by_depth
from wiring.accuracy.replay import replay, summarize
from wiring.bench.arm_results import unique_share
from wiring.checkpoints.states import StateSample
from wiring.layers import Layout
from wiring.model.eagle3 import Eagle3Draft

STEPS = 5  # draft steps of a round
# Tokens generated beyond the judged text: with these, every round that starts in the judged text ends in known text.
BEYOND = STEPS + 1
SERVED_LAYOUT: Layout = REQUESTED_IDS


@dataclass(frozen=True)
class Bounds:
    """What ships must hold; shares lie in 0..1, sizes are in bytes."""

    trained_low: float = 0.70
    trained_high: float = 0.82  # not saturated, so that a small fault can still be seen
    served_high: float = 0.15
    zeroed_high: float = 0.30
    bigrams_low: float = 0.50
    fourgrams_low: float = 0.85
    pair_bytes_high: int = 24_000_000
    states_bytes_high: int = 10_000_000


def accuracy_rows(draft: Eagle3Draft, samples: Sequence[StateSample], head: Tensor) -> dict[str, AccuracyReport]:
    """Accuracy by depth as trained, as served, and with all states zeroed; the rule is accuracy_by_depth's."""
    conditions = {
        "trained": (TRAINED_LAYOUT, "none"),
        "served": (SERVED_LAYOUT, "none"),
        "zeroed": (TRAINED_LAYOUT, "zeroed"),
    }
    return {
        name: accuracy_by_depth(draft, samples, layout, STEPS, head, control)
        for name, (layout, control) in conditions.items()
    }


def is_varied(text: Sequence[int], bounds: Bounds = Bounds()) -> bool:
    """Whether a text, without its last BEYOND ids, keeps the bounds on repetition."""
    judged = text[:-BEYOND]
    return unique_share(judged, 2) >= bounds.bigrams_low and unique_share(judged, 4) >= bounds.fourgrams_low


@torch.no_grad()
def accept_length(
    draft: Eagle3Draft, target: StackedTarget, prompts: Sequence[Prompt], texts: Sequence[Sequence[int]], layout: Layout
) -> float:
    """Accept length (bonus included) of STEPS greedy draft steps on the target's own text, pooled over the prompts."""
    rounds: list[int] = []
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = torch.tensor(prompt.ids + list(text))
        captured = target(tokens[None], layout)[2]
        states = torch.stack([captured[b][0] for b in layout], 1)  # [N, n, H]
        rounds += replay(draft, states, tokens, len(prompt.ids), layout, STEPS, len(tokens) - BEYOND).rounds
    return summarize(rounds, STEPS).accept_length


def measure_draft(
    draft: Eagle3Draft,
    target: StackedTarget,
    samples: Sequence[StateSample],
    prompts: Sequence[Prompt],
    texts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """One row of the manifest: the draft against the bounds. The last BEYOND ids of each of `texts` are not judged."""
    reports = accuracy_rows(draft, samples, target.head)
    row: dict[str, Any] = {
        name: [round(depth.accuracy, 4) for depth in report.depths] for name, report in reports.items()
    }
    first = reports["trained"].depths[0]
    row["trained_interval"] = [round(first.low, 4), round(first.high, 4)]
    row["outside_draft_vocabulary"] = round(first.out_of_vocabulary / first.total, 4)
    row["accept_length_trained"] = round(accept_length(draft, target, prompts, texts, TRAINED_LAYOUT), 3)
    row["accept_length_served"] = round(accept_length(draft, target, prompts, texts, SERVED_LAYOUT), 3)
    return row


def text_rows(texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """The least varied of the texts, by bigrams and by 4-grams, without their last BEYOND ids."""
    return {
        "least_unique_bigrams": round(min(unique_share(text[:-BEYOND], 2) for text in texts), 4),
        "least_unique_4grams": round(min(unique_share(text[:-BEYOND], 4) for text in texts), 4),
    }


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def broken_bounds(manifest: dict[str, Any], bounds: Bounds = Bounds()) -> list[str]:
    """Which bounds a manifest misses, one sentence each; an empty list when it keeps all."""
    problems = []
    for row in manifest["drafts"]:
        name = f"the draft of seed {row['seed']}"
        trained, served, zeroed = (row[key][0] for key in ("trained", "served", "zeroed"))
        if not bounds.trained_low <= trained <= bounds.trained_high:
            problems.append(
                f"{name} is right {trained:.3f} as trained, not {bounds.trained_low}..{bounds.trained_high}"
            )
        if served > bounds.served_high:
            problems.append(f"{name} is right {served:.3f} as served, above {bounds.served_high}")
        if zeroed > bounds.zeroed_high:
            problems.append(f"{name} is right {zeroed:.3f} without states, above {bounds.zeroed_high}")
    text, size = manifest["text"], manifest["bytes"]
    if text["least_unique_bigrams"] < bounds.bigrams_low:
        problems.append(f"a text has {text['least_unique_bigrams']:.2f} unique bigrams, under {bounds.bigrams_low}")
    if text["least_unique_4grams"] < bounds.fourgrams_low:
        problems.append(f"a text has {text['least_unique_4grams']:.2f} unique 4-grams, under {bounds.fourgrams_low}")
    if size["target"] + size["draft"] > bounds.pair_bytes_high:
        problems.append(f"target and draft are {size['target'] + size['draft']} bytes, above {bounds.pair_bytes_high}")
    if size["states"] > bounds.states_bytes_high:
        problems.append(f"the states are {size['states']} bytes, above {bounds.states_bytes_high}")
    return problems
