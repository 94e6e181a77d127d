"""Read an EAGLE-3 draft checkpoint in the flat format of SpecForge and SafeAILab; account for every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError
from wiring.files.draft_config import Eagle3Config
from wiring.files.tensors import read_json, read_tensors, tensor_files

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft as stored: config.json as read, and every tensor by its name in the file."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_draft(folder: str | Path) -> DraftCheckpoint:
    """Read config.json and all tensors, and check names, shapes and the vocabulary map.

    Raises WiringError naming file and tensor when one is missing, unknown, of a wrong shape or not finite, when a
    draft id maps outside the target's vocabulary, or when t2d and d2t disagree. An engine drops unknown names and
    leaves missing tensors at their initial values without a word; that is why both are errors here.
    """
    folder = Path(folder)
    config = read_json(folder / "config.json", "the draft's config")
    shape = Eagle3Config.from_dict(config, folder / "config.json")
    tensors = read_tensors(folder)
    files = tensor_files(folder)
    required, known = shape.required_shapes(), shape.optional_shapes() | shape.required_shapes()
    for name in required:
        if name not in tensors:
            raise WiringError(
                f"tensor {name} is missing from the draft",
                where=folder,
                expected=_words(required[name]),
                found="nothing",
            )
    for name, tensor in tensors.items():
        if name not in known:
            raise WiringError(
                f"tensor {name} is unknown to the flat EAGLE-3 format",
                where=files[name],
                expected=", ".join(sorted(known)),
                found=f"{name} {_words(tensor.shape)}",
                remedy="An engine would drop it without a word; the draft may come from another trainer",
            )
        if tuple(tensor.shape) != known[name]:
            raise WiringError(
                f"tensor {name} has the wrong shape for the draft's config",
                where=files[name],
                expected=_words(known[name]),
                found=_words(tensor.shape),
                remedy=_shape_remedy(name, shape),
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise WiringError(f"tensor {name} holds NaN or infinity", where=files[name])
    _check_vocabulary(tensors, shape, files)
    return DraftCheckpoint(folder, config, tensors)


def _check_vocabulary(tensors: dict[str, Tensor], shape: Eagle3Config, files: dict[str, Path]) -> None:
    """d2t holds offsets: target id = draft id + d2t[draft id]; t2d marks the target ids that are reached."""
    import torch

    if "d2t" not in tensors:
        return
    reached = torch.arange(shape.draft_vocab_size) + tensors["d2t"].long()  # [Vd]
    outside = (reached < 0) | (reached >= shape.vocab_size)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise WiringError(
            "tensor d2t maps a draft id outside the target's vocabulary",
            where=files["d2t"],
            expected=f"target ids 0..{shape.vocab_size - 1}",
            found=f"draft id {first} -> {int(reached[first])}",
            remedy="d2t must hold offsets (target id minus draft id), not target ids",
        )
    if "t2d" in tensors:
        marked = torch.zeros(shape.vocab_size, dtype=torch.bool)
        marked[reached] = True
        differing = int((marked != tensors["t2d"].bool()).sum())
        if differing or int(marked.sum()) != shape.draft_vocab_size:
            raise WiringError(
                "the vocabulary maps t2d and d2t disagree",
                where=files["t2d"],
                expected=f"t2d marks the {shape.draft_vocab_size} ids that d2t reaches",
                found=f"{differing} ids differ, d2t reaches {int(marked.sum())} different ids",
            )


def _shape_remedy(name: str, shape: Eagle3Config) -> str:
    if name != "fc.weight":
        return ""
    return f"The config says {shape.num_slots} states of width {shape.target_hidden_size}: check its layer ids"


def _words(shape: Any) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"
