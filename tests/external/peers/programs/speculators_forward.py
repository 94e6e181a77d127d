"""speculators 0.9.0 evaluates drafts on the CPU with its own code, from its own files: `speculators_forward.py CASES`.

Its model class writes the draft folder and reads it again, taking norm, head and (where the draft has none) embedding
from the verifier; its dataset, shift and collate functions make the batches; its forward computes and counts. One
document is a batch of its own, without padding: the steps are aligned over the whole batch, so in a padded or packed
one the labels of a document's last rows at steps >= 1 are padding or the next document's. The packed counts show what
becomes of that. Attention
and loss are its eager ones: the fused loss is Triton, which has no CPU, and flex attention is slower there.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch
from datasets import Dataset
from exchange import read_case, run
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig, shift_batch
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.data import ArrowDataset, CollateFn
from transformers import AutoConfig

CPU_ATTENTION = "eager"
CPU_LOSS = resolve_loss_config("kl_div", "eager")


def write_draft(case: Path, settings: dict, tensors: dict) -> Path:
    """The draft as speculators stores it, with the config of `settings` around the layer's config."""
    layer = json.loads((case / "config.json").read_text())
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=AutoConfig.for_model(**layer),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=settings["steps"])],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(str(case / "target")),
        ),
        **settings["speculator"],
    )
    model = Eagle3DraftModel(config)
    missing, unknown = model.load_state_dict(tensors, strict=False)
    if unknown or {name.split(".")[0] for name in missing} - {"verifier_norm", "verifier_lm_head"}:
        raise ValueError(f"missing {missing}, unknown {unknown}")
    model.save_pretrained(case / "draft")
    return case / "draft"


def read_model(folder: Path) -> Eagle3DraftModel:
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = CPU_ATTENTION
    return Eagle3DraftModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def documents(case: Path) -> ArrowDataset:
    """The stored states, with the Arrow table that goes with them."""
    table = json.loads((case / "states.json").read_text())  # input_ids, loss_mask, seq_len: one entry per document
    data = Dataset.from_dict(table)
    data.set_format(type="torch")
    data.save_to_disk(case / "states")
    return ArrowDataset(4096, case / "states", on_missing="raise", hidden_states_dtype=torch.float32)


def collated(data: ArrowDataset, indices: list[int], slots: int, room: int) -> dict:
    hidden_size = data[0]["verifier_last_hidden_states"].shape[-1]
    length = sum(len(data[i]["input_ids"]) - 1 for i in indices)
    collate = CollateFn(length + room, hidden_size, slots, torch.float32, preprocess=shift_batch)
    batch = collate([data[i] for i in indices])
    batch.pop("error_records")
    return batch


def counted(metrics: dict) -> dict[str, int]:
    """The accuracy counts among a forward's metrics."""
    return {name: round(float(value)) for name, value in metrics.items() if "_acc_" in name}


def evaluate(case: Path):
    settings, tensors = read_case(case)
    folder = write_draft(case, settings, tensors)
    data, slots, steps = documents(case), settings["slots"], settings["steps"]
    total, logits = Counter(), {}
    for i in range(len(data)):
        model, made = read_model(folder), []  # a fresh one: dynamic RoPE keeps the base of the longest text so far
        model.lm_head.register_forward_hook(lambda module, inputs, output, made=made: made.append(output))
        _, _, metrics = model(**collated(data, [i], slots, room=0), ttt_steps=steps, loss_config=CPU_LOSS)
        total.update(counted(metrics))
        for step, rows in enumerate(made):
            logits[f"{i}.{step}"] = rows[0, : len(data[i]["input_ids"]) - 1]
    counts = {"draft": str(folder)}
    for kind in ("full", "cond"):
        for name, key in (("correct", "sum"), ("total", "total")):
            counts[f"{kind}_{name}"] = [total[f"{kind}_acc_{k}_{key}"] for k in range(steps)]
    together = collated(data, list(range(len(data))), slots, room=2)
    packed = counted(read_model(folder)(**together, ttt_steps=steps, loss_config=CPU_LOSS)[2])
    counts["packed_correct"] = [packed[f"full_acc_{k}_sum"] for k in range(steps)]
    counts["packed_total"] = [packed[f"full_acc_{k}_total"] for k in range(steps)]
    counts["packed_cond_total"] = [packed[f"cond_acc_{k}_total"] for k in range(steps)]
    return counts, logits


def prepare_timing(case: Path):
    settings, tensors = read_case(case)
    model, data = read_model(write_draft(case, settings, tensors)), documents(case)
    ready = [collated(data, [i], settings["slots"], room=0) for i in range(len(data))]

    def once():
        for batch in ready:
            model(**batch, ttt_steps=settings["steps"], loss_config={})  # no loss: only the counts are compared

    return once


if __name__ == "__main__":
    run(evaluate, prepare_timing)
