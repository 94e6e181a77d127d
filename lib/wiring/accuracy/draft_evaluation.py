"""Open a draft, the target's embedding and head, and saved states, and check that they fit together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from wiring.accuracy.norm_state import NormState, decide_norm
from wiring.accuracy.state_slots import SlotChoice, choose_slots
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.copy_record import MADE_FOR, read_copy_record
from wiring.checkpoints.draft_files import DraftCheckpoint, read_draft
from wiring.checkpoints.states import StateFolder, open_states
from wiring.checkpoints.target_files import TargetConfig, final_norm, read_target_config, read_tensor
from wiring.errors import WiringError
from wiring.layers import Layout, check_layout
from wiring.model.eagle3 import Eagle3Draft


@dataclass(frozen=True)
class DraftEvaluation:
    """The inputs of `evaluate`. `notes` name assumptions; `norm` is the test of the saved last hidden state, if any."""

    draft: Eagle3Draft
    checkpoint: DraftCheckpoint
    target: TargetConfig
    head: TargetHead
    states: StateFolder
    choice: SlotChoice
    norm: NormState | None
    notes: tuple[str, ...]


def open_evaluation(
    draft: str | Path,
    states: str | Path,
    target: str | Path | None = None,
    *,
    layout: Layout | None = None,
    stored: Layout | None = None,
    producer: str = "",
    norm_output: str = "",
    last_hidden: str = "",
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    skip_bad: bool = False,
) -> DraftEvaluation:
    """Open draft, states and target; determine the producer, the layout and the norm state.

    target: a folder with config.json and weights; None: the local folder that the draft's config names. layout, stored:
    boundaries, see `wiring.accuracy.state_slots`. last_hidden: "post" or "pre" overrides the format and the test.
    Raises WiringError for inputs that do not fit together, or are ambiguous.
    """
    if last_hidden not in ("", "post", "pre"):
        raise WiringError(
            "not a norm state",
            code="norm-state-unknown",
            where="--last-hidden",
            expected="post or pre",
            found=last_hidden,
        )
    checkpoint = read_draft(draft, producer=producer, norm_output=norm_output)
    folder = _target_folder(target, checkpoint)
    config = read_target_config(folder)
    check_layout((*(layout or ()), *(stored or ())), config.num_layers)
    embedding = None
    if "embed_tokens.weight" not in checkpoint.tensors:
        embedding = read_tensor(folder, "model.embed_tokens.weight")  # [V, H]
    weight = read_tensor(folder, "lm_head.weight")  # [V, H]
    model = Eagle3Draft.from_checkpoint(checkpoint, embedding, weight, dtype=dtype, device=device)
    shape = checkpoint.shape
    _check_finite(weight, folder, "lm_head.weight")
    reading = {"hidden_size": shape.target_hidden_size, "skip_bad": skip_bad, "vocab_size": config.vocab_size}
    found = open_states(states, stored=stored, **reading)
    if found.boundaries is not None:
        check_layout(found.boundaries, config.num_layers, where=states)
    recorded, why = _recorded(checkpoint, config.num_layers)
    choice = choose_slots(
        asked=layout,
        draft_slots=shape.num_slots,
        stored=found.boundaries,
        stored_slots=found.slots,
        recorded=recorded,
        recorded_why=why,
        recorded_is_default="default" in why,
        where=states,
    )
    if found.boundaries is None:
        found = open_states(states, stored=choice.stored, **reading)
    norm, eps = final_norm(folder)
    if norm is not None:
        _check_finite(norm, folder, "model.norm.weight")
    head = TargetHead(weight, norm, eps, state=last_hidden)
    tested = None
    notes = [
        f"{finding.kind}: {finding.where}: {finding.evidence}"
        for finding in checkpoint.findings
        if finding.severity != "error"
    ]
    first = next(iter(found))
    if first.mask_assumed:
        notes.append(f"loss mask: the files ({first.format}) hold none, so every token counts, prompts included")
    if not last_hidden and first.norm == "undecided":
        tested = decide_norm(found, head.to(device, torch.float32))
        if tested.state == "undecided":
            raise WiringError(
                "neither the format nor a test determines whether the last hidden state is normed",
                code="norm-state-undecided",
                where=states,
                found=tested.evidence,
                remedy="Pass --last-hidden post or --last-hidden pre",
            )
        head = dataclasses.replace(head, state=tested.state)
        notes.append(f"last hidden state: {tested.state}-norm; {tested.evidence}")
    return DraftEvaluation(model, checkpoint, config, head, found, choice, tested, tuple(notes))


def _recorded(checkpoint: DraftCheckpoint, num_layers: int) -> tuple[Layout | None, str]:
    """Return the layout that the draft records, and where; a patched copy has it in its record, not in its ids."""
    copy, slots = read_copy_record(checkpoint.folder), checkpoint.shape.num_slots
    if copy is None or copy.layout is None:
        return checkpoint.layout_hint(num_layers)
    if len(copy.layout) != slots:
        return None, f"{MADE_FOR}, has {len(copy.layout)} boundaries, fc takes {slots} states"
    return copy.layout, MADE_FOR


def _check_finite(weight: torch.Tensor, folder: Path, name: str) -> None:
    if not bool(weight.sum(dtype=torch.float32).isfinite()):  # needs no mask as large as the weight
        raise WiringError(
            f"the target's {name} holds NaN or infinity",
            code="target-not-finite",
            where=folder,
            remedy="Download or export the target again",
        )


def _target_folder(target: str | Path | None, checkpoint: DraftCheckpoint) -> Path:
    if target is not None:
        return Path(target)
    verifier = (checkpoint.config.get("speculators_config") or {}).get("verifier") or {}
    named = verifier.get("name_or_path")
    if named and Path(named).is_dir():
        return Path(named)
    raise WiringError(
        "the target's embedding and lm_head are needed",
        code="target-missing",
        where=checkpoint.folder,
        expected="--target with the folder of the target's config.json and weights",
        found=f"the draft names {named!r}, which is no local folder" if named else "no target",
        remedy="Pass a folder with at least the embedding, final norm and head of the target",
    )
