"""The workbook's reading of what a peer wrote, and the comparisons that both peers have in common."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from planted_texts import Text
from torch import Tensor

from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.target_files import EMBEDDING, read_tensor
from wiring.model.eagle3 import Eagle3Draft

TOLERANCE = 1e-4  # of the largest logit of a row


def read_ours(folder: Path, target: Path) -> tuple[Eagle3Draft, str]:
    """The draft in float32 on the target's embedding (used where the draft has none), and its producer's name."""
    checkpoint = read_draft(folder)
    embedding = None if "embed_tokens.weight" in checkpoint.tensors else read_tensor(target, EMBEDDING)
    return Eagle3Draft.from_checkpoint(checkpoint, embedding), checkpoint.producer


def worst_error(draft: Eagle3Draft, texts: list[Text], logits: dict[str, Tensor], steps: int) -> list[float]:
    """Largest difference of our logits from a peer's at each step, in units of the row's largest logit.

    Of every row that has a token and a label, which is more than the rows that a mask counts.
    """
    worst = [0.0] * steps
    for i, text in enumerate(texts):
        with torch.no_grad():
            ours = list(draft.unrolled(text.tokens[None], text.states[None], steps))
        for step in range(steps):
            rows = len(text.tokens) - 1 - step
            if rows < 1:
                continue
            theirs = logits[f"{i}.{step}"][:rows]
            error = (ours[step][0, :rows] - theirs).abs().amax(-1) / theirs.abs().amax(-1)
            assert torch.isfinite(error).all()
            worst[step] = max(worst[step], float(error.max()))
    return worst


def with_other_config(draft: Path, changes: dict, where: Path) -> Path:
    """A copy of a draft folder with values of its config changed (None removes one), also inside nested objects."""
    shutil.copytree(draft, where)

    def change(values: dict, changes: dict) -> None:
        for name, value in changes.items():
            if value is None:
                values.pop(name, None)
            elif isinstance(value, dict) and isinstance(values.get(name), dict) and not name.startswith("rope"):
                change(values[name], value)
            else:
                values[name] = value

    config = json.loads((where / "config.json").read_text())
    change(config, changes)
    (where / "config.json").write_text(json.dumps(config))
    return where
