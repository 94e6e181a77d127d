"""Make the texts and the drafts of tests/unit/diagnosis/injection/material.

    python tests/unit/diagnosis/injection/make_material.py texts      # texts.json: ids only, written by the target
    python tests/unit/diagnosis/injection/make_material.py drafts     # one folder per draft; --again: existing ones too

Texts: "greedy": the shipped prompts, cut to one length, at temperature 0. "warm T": the same, sampled at temperature T.
"random": prompts of random ids. "looping": prompts of one repeated word, which the target continues.
Drafts: the tiny target's, each with one fault of its training. All are trained on boundaries 0, 3, 31 and record the
ids [0, 3, 31] in their configs, so that nothing else is wrong.
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

from wiring.checkpoints.atomic import replacing, write_json
from wiring.model.target_reference import ReferenceTarget

TINY = Path(__file__).parents[4] / "data" / "tiny"
MATERIAL = Path(__file__).parent / "material"
PROMPT = 40  # tokens of every prompt, so that all run as one batch
TEMPERATURES = (1.0, 1.5)
LOOPING = (24, 34, 44, 74, 104, 129, 139, 154)  # words that the target repeats, or answers with a short loop
DOCUMENTS, LENGTH, SEED = 240, 112, 0


@dataclass(frozen=True)
class Recipe:
    """`kind` and `documents` limit the training text; the rest changes the shipped draft's training."""

    steps: int
    unroll: int = 5
    kind: str | None = None
    documents: int = DOCUMENTS


RECIPES = {
    "short": Recipe(steps=30),  # a twentieth of the shipped draft's steps
    "one_step": Recipe(steps=300, unroll=1),  # never fed its own states, as it is in serving
    "lists": Recipe(steps=200, kind="lists"),  # half of what is served was never seen
    "few": Recipe(steps=150, documents=16),  # one batch of documents, repeated
}


def make_texts() -> None:
    generator = torch.Generator().manual_seed(5)
    target = ReferenceTarget.load(TINY / "target")
    prompts = torch.tensor([p["input_ids"][:PROMPT] for p in json.loads((TINY / "prompts.json").read_text())])
    random_ids = torch.randint(4, int(target.head.weight.shape[0]), (8, PROMPT), generator=generator)
    jobs = {
        "greedy": (prompts, 104, 0.0),
        **{f"warm {t}": (prompts[:16], 60, t) for t in TEMPERATURES},
        "random": (random_ids, 40, 0.0),
        "looping": (torch.tensor(LOOPING)[:, None].repeat(1, PROMPT), 60, 0.0),
    }
    texts = {name: decode(target, ids, count, t, generator).tolist() for name, (ids, count, t) in jobs.items()}
    rows = ",\n".join(
        f' "{name}": [\n' + ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in text) + "\n ]"
        for name, text in texts.items()
    )
    with replacing(MATERIAL / "texts.json") as temporary:
        temporary.write_text("{\n" + rows + "\n}\n")


@torch.no_grad()
def decode(target: ReferenceTarget, prompts: torch.Tensor, count: int, temperature: float, generator) -> torch.Tensor:
    """Prompts [B, P] and `count` more tokens each, [B, P + count]."""
    texts, fed, cache = prompts, prompts, None
    for _ in range(count):
        output = target.model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[:, -1]
        if temperature:
            fed = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            fed = logits.argmax(-1, keepdim=True)
        texts = torch.cat([texts, fed], 1)
    return texts


def make_drafts(again: bool) -> None:
    sizes, draft_sizes = TargetSizes(), DraftSizes()
    target = load_target(TINY / "target", sizes)
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
        part = select(seen, chosen)
        draft = train_draft(
            part, target.embedding, sizes, draft_sizes, settings, SEED, lambda _step, loss, to=losses: to.append(loss)
        )
        write_draft(draft, MATERIAL / name, sizes, draft_sizes)
        config = json.loads((MATERIAL / name / "config.json").read_text())
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(TRAINED_LAYOUT)
        write_json(MATERIAL / name / "config.json", config)
        last_loss, seconds = round(sum(losses[-20:]) / 20, 4), round(time.process_time() - began)
        rows[name] = {**asdict(recipe), "last_loss": last_loss, "processor_seconds": seconds}
        made_with = {"python": platform.python_version(), "torch": torch.__version__, "length": LENGTH}
        command = "python tests/unit/diagnosis/injection/make_material.py drafts --again"
        write_json(manifest, {"command": command, "seed": SEED, "drafts": rows, "made_with": made_with})
        print(name, rows[name], flush=True)


def select(seen: Observed, rows: list[int]) -> Observed:
    """Some of the documents."""
    names = ("tokens", "counted", "states", "last_hidden", "labels")
    return replace(seen, **{name: getattr(seen, name)[rows] for name in names})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("texts", "drafts"))
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    make_texts() if given.what == "texts" else make_drafts(given.again)
