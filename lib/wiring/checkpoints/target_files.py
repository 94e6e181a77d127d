"""Read a target's config.json and single tensors of its weights, without loading the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints import tensor_files as stored
from wiring.checkpoints.config_fields import check_fields, required_size
from wiring.checkpoints.file_loading import read_json
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"


@dataclass(frozen=True)
class TargetConfig:
    """The shape of the target by its config; `raw` is the whole file."""

    folder: Path
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    raw: dict[str, Any]

    @property
    def text(self) -> dict[str, Any]:
        """The part of the config that describes the language model."""
        nested = self.raw.get("text_config")
        return nested if isinstance(nested, dict) else self.raw


def read_target_config(folder: str | Path) -> TargetConfig:
    """Read config.json of a Hugging Face model folder; sizes may be nested in `text_config`.

    Raises WiringError if the file is missing or unreadable, names no architecture, or lacks a size.
    """
    path, raw = Path(folder) / "config.json", _read(folder)
    check_fields(raw, path)
    if not raw.get("architectures"):
        raise WiringError(
            "the target's config names no architecture",
            code="target-architecture-missing",
            where=path,
            expected="architectures: [name]",
            remedy="Take the config.json of the target itself",
        )
    text = _language_model(raw)
    layers, hidden, vocab = (
        required_size(text, name, path, raw.get(name)) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    return TargetConfig(Path(folder), raw["architectures"][0], layers, hidden, vocab, raw)


def read_tensor(folder: str | Path, name: str) -> Tensor:
    """Read one tensor as stored: "model.embed_tokens.weight" or "lm_head.weight" [V, H], "model.norm.weight" [H].

    A model inside a wrapper ("language_model.model...") is found by the plain name, and a head that is tied to the
    embedding is read from it. Raises WiringError if the tensor is missing or the safetensors are damaged.
    """
    return stored.read_tensor(folder, _stored_name(folder, name))


def read_rows(folder: str | Path, name: str, rows: Sequence[int]) -> Tensor:
    """Read rows [n, H] of "model.embed_tokens.weight" or "lm_head.weight" as stored, and nothing else of it.

    Names are found and errors raised as in `read_tensor`.
    """
    return stored.read_rows(folder, _stored_name(folder, name), rows)


def final_norm(folder: str | Path) -> tuple[Tensor | None, float]:
    """Return weight [H] and epsilon of the target's final RMS norm; None if the folder does not hold the weight.

    Gemma stores the weight minus one (transformers 5.19, models/gemma/modeling_gemma.py); it is returned with it.
    """
    text = _language_model(_read(folder))
    eps = float(text.get("rms_norm_eps", text.get("norm_eps", 1e-6)))
    names = stored.tensor_names(folder)
    if NORM not in names and sum(full.endswith(f".{NORM}") for full in names) != 1:
        return None, eps
    weight = read_tensor(folder, NORM)
    return (weight.float() + 1 if "gemma" in str(text.get("model_type", "")) else weight), eps


def _stored_name(folder: str | Path, name: str) -> str:
    names = stored.tensor_names(folder)
    if name in names:
        return name
    wrapped = [full for full in names if full.endswith(f".{name}")]
    if len(wrapped) == 1:
        return wrapped[0]
    raw = _read(folder) if name == HEAD else {}
    if _language_model(raw).get("tie_word_embeddings", raw.get("tie_word_embeddings", False)):
        return _stored_name(folder, EMBEDDING)
    return name


def _read(folder: str | Path) -> dict[str, Any]:
    return read_json(Path(folder) / "config.json", "the target's config")


def _language_model(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model."""
    nested = raw.get("text_config")
    return nested if isinstance(nested, dict) else raw
