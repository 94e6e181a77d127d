"""Read a target's config.json and single tensors of its weights, without loading the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints import tensor_files as stored
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"


@dataclass(frozen=True)
class TargetConfig:
    """What the target's config says about its shape; `raw` is the whole file."""

    folder: Path
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    raw: dict[str, Any]


def read_target_config(folder: str | Path) -> TargetConfig:
    """Read config.json of a Hugging Face model folder; sizes may be nested in `text_config`.

    Raises WiringError when the file is missing or unreadable, names no architecture, or lacks a size.
    """
    path = Path(folder) / "config.json"
    raw = read_json(path, "the target's config")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise WiringError("the target's config names no architecture", where=path, expected="architectures: [name]")
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else {}

    def size(name: str) -> int:
        value = text.get(name, raw.get(name))
        if value is None:
            raise WiringError(f"the target's {name} is missing", where=path, expected="a whole number above 0")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise WiringError(
                f"the target's {name} is not a size", where=path, expected="a whole number above 0", found=repr(value)
            )
        return value

    return TargetConfig(
        folder=Path(folder),
        architecture=str(architectures[0]),
        num_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        vocab_size=size("vocab_size"),
        raw=raw,
    )


def read_tensor(folder: str | Path, name: str) -> Tensor:
    """Read one tensor as stored: "model.embed_tokens.weight" or "lm_head.weight" [V, H], "model.norm.weight" [H].

    A model inside a wrapper ("language_model.model...") answers to the plain name, and a head that is tied to the
    embedding is read from it. Raises WiringError when the tensor is missing or the safetensors are damaged.
    """
    return stored.read_tensor(folder, _stored_name(folder, name))


def read_rows(folder: str | Path, name: str, rows: Sequence[int]) -> Tensor:
    """Read rows [n, H] of "model.embed_tokens.weight" or "lm_head.weight" as stored, and nothing else of it.

    Names are found and errors raised as in `read_tensor`.
    """
    return stored.read_rows(folder, _stored_name(folder, name), rows)


def _stored_name(folder: str | Path, name: str) -> str:
    names = stored.tensor_names(folder)
    if name not in names:
        wrapped = [full for full in names if full.endswith(f".{name}")]
        if len(wrapped) == 1:
            return wrapped[0]
        if name == HEAD and _tied(folder):
            return _stored_name(folder, EMBEDDING)
    return name


def final_norm(folder: str | Path) -> tuple[Tensor | None, float]:
    """Weight [H] and epsilon of the target's final RMS norm; None where the folder does not hold the weight.

    Gemma stores the weight minus one (transformers 5.19, models/gemma/modeling_gemma.py); it comes back whole.
    """
    raw = read_json(Path(folder) / "config.json", "the target's config")
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else raw
    eps = text.get("rms_norm_eps", text.get("norm_eps", 1e-6))
    names = stored.tensor_names(folder)
    if NORM not in names and sum(full.endswith(f".{NORM}") for full in names) != 1:
        return None, float(eps)
    weight = read_tensor(folder, NORM)
    return (weight.float() + 1 if "gemma" in str(text.get("model_type", "")) else weight), float(eps)


def _tied(folder: str | Path) -> bool:
    raw = read_json(Path(folder) / "config.json", "the target's config")
    return bool((raw.get("text_config") or {}).get("tie_word_embeddings", raw.get("tie_word_embeddings", False)))
