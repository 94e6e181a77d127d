"""Make the pair in stages: target, saved states and prompts, draft. A stage reads what earlier ones wrote."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tiny import corpus
from tiny.config import STAGES, STORED_BOUNDARIES, TRAINED_LAYOUT, DraftSizes, TargetSizes
from tiny.draft_train import DraftTraining, coverage, frequent_ids, train_draft, write_draft
from tiny.export import load_target, write_target
from tiny.measure import BEYOND, broken_bounds, folder_bytes, is_varied, measure_draft, text_rows
from tiny.progress import Progress
from tiny.prompts import Prompt, varied_prompts, write_prompts
from tiny.states import observe, write_states
from tiny.target_model import StackedTarget
from tiny.target_train import TargetTraining, accuracy_by_kind, train_target
from wiring.checkpoints.atomic import write_json
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.states import open_states
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Draft

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Plan:
    """Everything that decides what is made, but for the seed."""

    target: TargetSizes = field(default_factory=TargetSizes)
    draft: DraftSizes = field(default_factory=DraftSizes)
    target_training: TargetTraining = field(default_factory=TargetTraining)
    draft_training: DraftTraining = field(default_factory=DraftTraining)
    draft_seeds: int = 1  # drafts trained from the pair's seed and those after it; the first ships, all are measured
    state_documents: int = 64
    state_length: int = 160  # tokens
    prompts: int = 24
    generated: int = 96  # tokens per prompt that the text is judged by


SMOKE = Plan(
    target_training=TargetTraining(
        short_steps=2, short_batch=2, short_length=48, long_steps=1, long_batch=1, long_length=64, compiled=False
    ),
    draft_training=DraftTraining(documents=8, length=96, steps=3, batch=4, unroll=2),
    state_documents=2,
    state_length=64,
    prompts=2,
    generated=8,
)


def make(out: Path, seed: int, stages: Sequence[str] = STAGES, plan: Plan = Plan()) -> dict[str, Any]:
    """Run `stages` in `out` and return the manifest, which is also written.

    Raises WiringError when `out` holds anything but a tiny pair, or a stage lacks what an earlier one writes.
    """
    manifest = _earlier(out) | {"seed": seed}
    if "target" in stages:
        manifest["target"] = _make_target(out, seed, plan)
    if not (out / "target" / "model.safetensors").exists():
        raise WiringError("there is no target yet", where=out / "target", remedy="Make the target first, or everything")
    target = load_target(out / "target", plan.target)
    prompts, texts = varied_prompts(target, seed, plan.prompts, plan.generated + BEYOND, is_varied)
    if "states" in stages:
        write_states(target, out / "states", seed, plan.state_documents, plan.state_length)
        write_prompts(prompts, out / "prompts.json")
    if "draft" in stages:
        manifest |= _make_drafts(out, seed, plan, target, prompts, texts)
    manifest["made_with"] = {"python": platform.python_version(), "torch": torch.__version__, "plan": asdict(plan)}
    manifest["bytes"] = {name: folder_bytes(out / name) for name in STAGES if (out / name).exists()}
    if "drafts" in manifest:
        manifest["bounds_missed"] = broken_bounds(manifest)
    write_json(out / MANIFEST, manifest)
    return manifest


def _earlier(out: Path) -> dict[str, Any]:
    """The manifest of an earlier run in `out`, or nothing; another program's folder is refused."""
    if (out / MANIFEST).exists():
        return read_json(out / MANIFEST, "the manifest")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WiringError("this is not a folder of a tiny pair", where=out, remedy="Name a new or an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / MANIFEST, {})  # so that an interrupted run can be taken up
    return {}


def _make_target(out: Path, seed: int, plan: Plan) -> dict[str, Any]:
    started = time.monotonic()
    with Progress("training the target", plan.target_training.steps) as progress:
        target = train_target(plan.target, plan.target_training, seed, progress.reach)
    write_target(target, out / "target")
    served = load_target(out / "target", plan.target)
    return {
        "parameters": sum(parameter.numel() for parameter in target.parameters()),
        "held_out_accuracy": {
            kind: round(share, 4)
            for kind, share in accuracy_by_kind(served, seed, plan.target_training.long_length).items()
        },
        "seconds": round(time.monotonic() - started),
    }


def _make_drafts(
    out: Path, seed: int, plan: Plan, target: StackedTarget, prompts: list[Prompt], texts: list[list[int]]
) -> dict[str, Any]:
    """Train the drafts and measure each as it reads back from its file; the first ships."""
    settings = plan.draft_training
    if not (out / "states").exists():
        raise WiringError("there are no saved states yet", where=out / "states", remedy="Make the states first")
    samples = list(open_states(out / "states", hidden_size=plan.target.hidden, stored=STORED_BOUNDARIES))
    documents = corpus.draw_many(f"draft {seed}", settings.documents, settings.length, corpus.TRAINING)
    with Progress("running the target for the draft", settings.documents) as progress:
        seen = observe(target, documents, TRAINED_LAYOUT, progress.reach)
    rows = []
    for draft_seed in range(seed, seed + plan.draft_seeds):
        with Progress(f"training the draft of seed {draft_seed}", settings.steps) as progress:
            draft = train_draft(seen, target.embedding, plan.target, plan.draft, settings, draft_seed, progress.reach)
            seconds = round(progress.seconds)
        with TemporaryDirectory() as elsewhere:
            folder = out / "draft" if draft_seed == seed else Path(elsewhere)
            write_draft(draft, folder, plan.target, plan.draft)
            stored = Eagle3Draft.from_checkpoint(read_draft(folder), target.embedding)
        row = measure_draft(stored, target, samples, prompts, texts)
        rows.append({"seed": draft_seed, "seconds": seconds, **row})
    covered = coverage(seen, frequent_ids(seen, plan.draft.vocab))
    return {"vocabulary_covers": round(covered, 4), "drafts": rows, "text": text_rows(texts)}
