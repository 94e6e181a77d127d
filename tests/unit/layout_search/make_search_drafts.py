"""Train the small drafts of tests/offline/search_drafts: the tiny target's, on other layouts than the shipped one.

    python tests/offline/make_search_drafts.py            # those that are missing; --again: all

Each records the same ids [3, 31, 59] in its config as the shipped draft does, whatever it was trained on.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from tiny import corpus
from tiny.config import DraftSizes, TargetSizes
from tiny.draft_train import DraftTraining, train_draft, write_draft
from tiny.export import load_target
from tiny.states import observe

from wiring.checkpoints.atomic import write_json

FOLDER = Path(__file__).parent / "search_drafts"
TARGET = Path(__file__).parents[3] / "data" / "tiny" / "target"
LAYOUTS = {"repeated": (3, 31, 3), "last": (2, 20, 61), "reordered": (31, 0, 3)}
SEED = 0
SETTINGS = DraftTraining(documents=800, length=112, steps=500, batch=16, unroll=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--steps", type=int, default=SETTINGS.steps)
    again, steps = (found := parser.parse_args()).again, found.steps
    torch.set_num_threads(1)
    sizes, draft_sizes = TargetSizes(), DraftSizes()
    settings = replace(SETTINGS, steps=steps)
    target = load_target(TARGET, sizes)
    documents = corpus.draw_many(f"search drafts {SEED}", settings.documents, settings.length, corpus.TRAINING)
    every = tuple(sorted({boundary for layout in LAYOUTS.values() for boundary in layout}))
    seen = observe(target, documents, every)
    manifest = FOLDER / "manifest.json"
    rows = json.loads(manifest.read_text())["drafts"] if manifest.exists() else {}
    for name, layout in LAYOUTS.items():
        if name in rows and not again:
            continue
        began = time.process_time()
        chosen = replace(seen, boundaries=layout, states=seen.states[:, :, [every.index(b) for b in layout]])
        losses: list[float] = []
        draft = train_draft(
            chosen, target.embedding, sizes, draft_sizes, settings, SEED, lambda _step, loss, to=losses: to.append(loss)
        )
        write_draft(draft, FOLDER / name, sizes, draft_sizes)
        rows[name] = {
            "layout": list(layout),
            "last_loss": round(sum(losses[-20:]) / 20, 4),
            "processor_seconds": round(time.process_time() - began),
        }
        made_with = {"python": platform.python_version(), "torch": torch.__version__, "settings": asdict(settings)}
        command = "python tests/offline/make_search_drafts.py --again"
        write_json(manifest, {"command": command, "seed": SEED, "drafts": rows, "made_with": made_with})
        print(name, rows[name], flush=True)


if __name__ == "__main__":
    main()
