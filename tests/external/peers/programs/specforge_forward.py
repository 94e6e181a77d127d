"""SpecForge 0.2.0 evaluates drafts on the CPU with its own code, from its own files: `specforge_forward.py CASES`.

Its checkpoint manager writes training_state.pt, its exporters write the draft folder, its model loader reads it; its
offline reader, normaliser and collator make the batches, its strategy and model compute, and its evaluator sums up.
Two things are not its own. The loss: its kernel is Triton, which has no CPU; the loss does not touch the counts, so a
torch expression stands in (none while timing). And torch.compile is off (TORCHDYNAMO_DISABLE), since compiling
costs minutes on a CPU and changes no operation.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from exchange import read_case, run
from specforge.algorithms.eagle3 import model as eagle3
from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer
from specforge.eval.evaluator import Evaluator
from specforge.export.to_hf import export_to_hf
from specforge.export.to_sglang import export_to_sglang
from specforge.modeling.auto import AutoDraftModel
from specforge.modeling.target.target_head import TargetHead
from specforge.runtime.contracts import TrainBatch
from specforge.runtime.data_plane.feature_store import load_feature_file
from specforge.training.checkpoint import CheckpointManager
from specforge.training.model_loading import load_draft_config_source, warm_start_draft_model
from specforge.training.strategies.base import Eagle3TrainStrategy

MAX_LENGTH = 4096


class TorchLoss:
    """Cross entropy of the draft with the target over the draft's vocabulary, masked, mean over all rows."""

    @staticmethod
    def apply(logits, target, mask):
        return -(mask * target * logits.float().log_softmax(-1)).sum(-1).mean()


class NoLoss:
    @staticmethod
    def apply(logits, target, mask):
        return logits.new_zeros(())


def write_draft(case: Path, settings: dict, tensors: dict) -> Path:
    """The draft as SpecForge stores it: a checkpoint and, by `storage`, an export of it; the folder to be read."""
    state = {"draft_state_dict": tensors, "strategy": "eagle3", "global_step": 1, "epoch": 0, "run_id": "run"}
    checkpoint = CheckpointManager(str(case / "run"), "run").save(state, 1)
    config, folder = str(case / "config.json"), str(case / "draft")
    if settings["storage"] == "sglang":
        export_to_sglang(checkpoint, config, folder)
    else:
        source = None if "embed_tokens.weight" in tensors else str(case / "target")
        export_to_hf(checkpoint, config, folder, embedding_source=source)
    if settings["storage"] == "checkpoint":  # the reader is given this one, with the config that it was trained by
        shutil.copyfile(case / "config.json", Path(checkpoint) / "config.json")
        return Path(checkpoint)
    return Path(folder)


def read_model(case: Path, settings: dict, folder: Path) -> eagle3.OnlineEagle3Model:
    """The training model around the stored draft, in float32, built and warm-started as the trainer does it."""
    config = load_draft_config_source(str(folder))
    draft = AutoDraftModel.from_config(config, torch_dtype=torch.float32, attention_backend="sdpa")
    report = warm_start_draft_model(
        draft, str(folder), draft_config=config, strategy="eagle3", allow_missing_embedding=True
    )
    if not report.loaded_embedding:
        draft.load_embedding(str(case / "target"))
    return eagle3.OnlineEagle3Model(draft, length=settings["steps"], attention_backend="sdpa").eval()


def batches(case: Path, settings: dict) -> list[TrainBatch]:
    """The stored states in batches of `batch` sequences, in the order of their numbers."""
    normalize, collate = build_offline_normalizer(MAX_LENGTH), build_offline_collator()
    files = sorted((case / "states").rglob("data_*"), key=lambda file: int(file.name.split(".")[0].split("_")[1]))
    samples = [normalize(load_feature_file(str(file))) for file in files]
    size = settings["batch"]
    return [
        TrainBatch([], "eagle3", collate(samples[i : i + size]), {"target_repr": "hidden_state"})
        for i in range(0, len(samples), size)
    ]


def prepare(case: Path):
    """Strategy, batches and settings of a case whose draft is written."""
    settings, tensors = read_case(case)
    folder = write_draft(case, settings, tensors)
    head = TargetHead(str(case / "target"))
    head.load_weights(str(case / "target"))
    strategy = Eagle3TrainStrategy(read_model(case, settings, folder), target_head=head.eval())
    return strategy, batches(case, settings), settings, folder


def evaluate(case: Path):
    eagle3.LogSoftmaxLoss = TorchLoss
    strategy, rounds, settings, folder = prepare(case)
    draft, made = strategy.eagle3_model.draft_model, []
    compute = draft.compute_logits
    draft.compute_logits = lambda hidden: made.append(compute(hidden)) or made[-1]
    counts = torch.zeros(2, settings["steps"], dtype=torch.int64)
    logits: dict[str, torch.Tensor] = {}

    def forward(batch):
        made.clear()
        out = strategy.forward_loss(batch)
        counts[0] += torch.stack(out.metrics["acc_corrects"]).long()
        counts[1] += torch.stack(out.metrics["acc_denoms"]).round().long()
        done = len(logits) // settings["steps"]
        for step, rows in enumerate(made):
            for i, of_sequence in enumerate(rows):
                length = int(batch.tensors["attention_mask"][i].sum())
                logits[f"{done + i}.{step}"] = of_sequence[:length]
        return out

    summary = Evaluator().run(forward, rounds)
    return {
        "draft": str(folder),
        "correct": counts[0].tolist(),
        "total": counts[1].tolist(),
        "accuracy": summary["eval/per_position_acc"],
        "accept_length": summary["eval/simulated_acc_len"],
    }, logits


def prepare_timing(case: Path):
    eagle3.LogSoftmaxLoss = NoLoss
    strategy, rounds, _, _ = prepare(case)
    return lambda: Evaluator().run(strategy.forward_loss, rounds)


if __name__ == "__main__":
    run(evaluate, prepare_timing)
