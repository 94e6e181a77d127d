"""Train the drafts of tests/diagnosis/injection/material: the tiny target's, each with one fault of its training.

    python tests/diagnosis/injection/make_drafts.py            # those that are missing; --again: all

All are trained on boundaries 0, 3, 31 and record the ids [0, 3, 31] in their configs, so that nothing else is wrong.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from tiny import corpus
from tiny.config import TRAINED_LAYOUT, DraftSizes, TargetSizes
from tiny.draft_train import DraftTraining, train_draft, write_draft
from tiny.export import load_target
from tiny.states import Observed, observe

from wiring.checkpoints.atomic import write_json

MATERIAL = Path(__file__).parent / "material"
TARGET = Path(__file__).parents[4] / "data" / "tiny" / "target"
DOCUMENTS, LENGTH, SEED = 240, 112, 0


@dataclass(frozen=True)
class Recipe:
    """`kind` and `documents` limit the training text; `settings` what is changed of the shipped draft's training."""

    steps: int
    unroll: int = 5
    kind: str | None = None
    documents: int = DOCUMENTS


RECIPES = {
    "short": Recipe(steps=30),  # stopped after a twentieth of the shipped draft's steps
    "one_step": Recipe(steps=300, unroll=1),  # never fed its own states, as it is in serving
    "lists": Recipe(steps=200, kind="lists"),  # half of what is served was never seen
    "few": Recipe(steps=150, documents=16),  # one batch of documents, over and over
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    again = parser.parse_args().again
    torch.set_num_threads(1)
    sizes, draft_sizes = TargetSizes(), DraftSizes()
    target = load_target(TARGET, sizes)
    documents = corpus.draw_many(f"injection drafts {SEED}", DOCUMENTS, LENGTH, corpus.TRAINING)
    seen = observe(target, documents, TRAINED_LAYOUT)
    manifest = MATERIAL / "drafts.json"
    rows = json.loads(manifest.read_text())["drafts"] if manifest.exists() else {}
    for name, recipe in RECIPES.items():
        if name in rows and not again:
            continue
        began, losses = time.process_time(), []
        chosen = [i for i, d in enumerate(documents) if recipe.kind in (None, d.kind)][: recipe.documents]
        settings = DraftTraining(len(chosen), LENGTH, recipe.steps, batch=16, unroll=recipe.unroll)
        draft = train_draft(
            part(seen, chosen),
            target.embedding,
            sizes,
            draft_sizes,
            settings,
            SEED,
            lambda _step, loss, to=losses: to.append(loss),
        )
        write_draft(draft, MATERIAL / name, sizes, draft_sizes)
        config = json.loads((MATERIAL / name / "config.json").read_text())
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(TRAINED_LAYOUT)
        write_json(MATERIAL / name / "config.json", config)
        rows[name] = {
            **asdict(recipe),
            "last_loss": round(sum(losses[-20:]) / 20, 4),
            "processor_seconds": round(time.process_time() - began),
        }
        made_with = {"python": platform.python_version(), "torch": torch.__version__, "length": LENGTH}
        command = "python tests/diagnosis/injection/make_drafts.py --again"
        write_json(manifest, {"command": command, "seed": SEED, "drafts": rows, "made_with": made_with})
        print(name, rows[name], flush=True)


def part(seen: Observed, rows: list[int]) -> Observed:
    """Some of the documents."""
    named = ("tokens", "counted", "states", "last_hidden", "labels")
    return replace(seen, **{name: getattr(seen, name)[rows] for name in named})


if __name__ == "__main__":
    main()
