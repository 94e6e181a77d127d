"""Which trainer wrote a record, told by its keys, and the record as one StateSample.

The key names are data (`FORMATS`); how the states are packed is one of three ways: side by side in one wide tensor
(most), a list with one tensor per state (speculators v1), or stacked with the last hidden state at the end (current
speculators, see `wiring.checkpoints.states.dataset_rows`). Read from SpecForge 0.2.0, speculators 0.9.0 (and what it says of v0
and v1), ModelOpt a2fbac7b, TensorRT-LLM 3e906a0e, TorchSpec 6f21829 and its offline dataset, version 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.states.state_fields import mask_row, matrix, stack, token_row, unpacked_mask
from wiring.checkpoints.states.state_sample import Norm, StateSample
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

FP8_SCALES = "hidden_states_scales"  # hs-connectors 0.9.0: one float32 per token [N, 1, 1] beside float8 states


@dataclass(frozen=True)
class Format:
    """The keys of one format. `states` and `last` list the names in use, the first present one is read.

    An empty `mask` means that the format has none; `mask_optional`, that every token counts without one.
    """

    name: str
    title: str
    states: tuple[str, ...]
    last: tuple[str, ...]
    norm: Norm
    mask: str = "loss_mask"
    mask_optional: bool = False
    tokens: str = "input_ids"

    def keys(self) -> tuple[str, ...]:
        """What a record must hold, in words."""
        mask = () if self.mask_optional else (self.mask,)
        either = [" or ".join(names) for names in (self.states, self.last) if names]
        return (self.tokens, *mask, *dict.fromkeys(either))


SPECFORGE = Format("specforge", "SpecForge offline", ("aux_hidden_state",), ("hidden_state",), "post")
NORMALISED = Format("specforge-normalised", "SpecForge normalised", ("hidden_state",), ("target",), "post")
V0 = Format("speculators-v0", "speculators v0", ("hidden_state",), ("target",), "post")
V1 = Format("speculators-v1", "speculators v1", ("hidden_states",), (), "pre")
SPECULATORS = Format(
    "speculators", "speculators", ("hidden_states",), (), "pre", tokens="token_ids", mask_optional=True
)
MODELOPT = Format(
    "modelopt",
    "ModelOpt",
    ("aux_hidden_states", "hidden_state_features"),  # the second in files that TensorRT-LLM wrote for it
    ("hidden_states",),
    "undecided",  # unless flagged: its Hugging Face dump is normed, its vLLM dump is not, and neither says so
    mask_optional=True,
)
TENSORRT = Format(
    "tensorrt-llm",
    "TensorRT-LLM raw",
    ("aux_hidden_states", "hidden_state_features"),
    ("hidden_state",),
    "undecided",
    mask="",
    mask_optional=True,
)
TORCHSPEC = Format(
    "torchspec",
    "TorchSpec",
    ("hidden_states",),
    ("last_hidden_states", "target"),
    "undecided",
    mask="packed_loss_mask",
)
FORMATS = (SPECFORGE, NORMALISED, V0, V1, SPECULATORS, MODELOPT, TENSORRT, TORCHSPEC)


def detect(record: Any, path: Path) -> tuple[Format, dict[str, Any]]:
    """The format of what was loaded from `path`, and its record. Raises WiringError when no trainer writes such."""
    if isinstance(record, list | tuple):
        return TENSORRT, _only(record, path)
    if not isinstance(record, dict):
        raise WiringError("not training states", where=path, expected="a dict", found=type(record).__name__)
    found = _by_keys(record)
    if found is None:
        nearest = max(FORMATS, key=lambda f: len(_present(f, record)) - len(_missing(f, record)))
        raise WiringError(
            "no known trainer saves such training states",
            where=path,
            expected=f"{', '.join(nearest.keys())} (the nearest: {nearest.title})",
            found=", ".join(map(str, record)) or "an empty dict",
            remedy=f"{_missing(nearest, record)[0]} is missing" if _missing(nearest, record) else "",
        )
    return found, record


def to_sample(record: Any, path: Path, hidden_size: int, prenorm: bool | None = None) -> StateSample:
    """A loaded record of any format but current speculators as a sample without boundaries.

    `prenorm` is what the folder says of TorchSpec's last hidden states. Raises WiringError naming the file and the
    field for whatever is missing or does not fit.
    """
    form, record = detect(record, path)
    missing = _missing(form, record)
    if missing:
        raise WiringError(
            f"{missing[0]} is missing from this {form.title} sample",
            where=path,
            expected=", ".join(form.keys()),
            found=", ".join(map(str, record)) or "nothing",
        )
    if form is SPECULATORS:
        raise WiringError(
            "this file belongs to a dataset folder, which holds its loss mask",
            where=path,
            expected="<dataset>/hidden_states/hs_<row>.safetensors beside <dataset>/state.json",
        )
    tokens = token_row(record[form.tokens], form.tokens, path)
    mask = _mask(form, record, tokens, path)
    if form is V1:
        states, last = _listed(record["hidden_states"], len(tokens), hidden_size, path)
    else:
        states, last = _side_by_side(form, record, len(tokens), hidden_size, path)
    if form is TENSORRT and states.shape[1] > 1 and bool((states[:, -1] == last).all()):
        states = states[:, :-1]  # captured with id -1 among the ids: the last hidden state once more, no boundary
    assumed = form is not TORCHSPEC and form.mask not in record
    norm = _norm(form, record, prenorm)
    return StateSample(str(path), tokens, mask, states, None, last, norm, form.name, mask_assumed=assumed)


def stacked_sample(record: dict[str, Any], tokens: Tensor, mask: Tensor, path: Path, hidden_size: int) -> StateSample:
    """A record of current speculators, hidden_states [N, n+1, H] whose last slot is boundary L.

    `tokens` and `mask` [N] are the dataset's row. Raises WiringError when the record's tokens differ from it.
    """
    for key in ("token_ids", "hidden_states"):
        if key not in record:
            raise WiringError(
                f"{key} is missing from this {SPECULATORS.title} sample",
                where=path,
                expected="token_ids, hidden_states",
                found=", ".join(record) or "nothing",
            )
    held = token_row(record["token_ids"], "token_ids", path)
    if len(held) != len(tokens) or bool((held != tokens).any()):
        shared = min(len(held), len(tokens))
        unequal = (held[:shared] != tokens[:shared]).nonzero()
        place = int(unequal[0]) if len(unequal) else shared
        raise WiringError(
            f"token_ids differ from the dataset's row, first at token {place}",
            where=path,
            expected=f"{len(tokens)} tokens, {tokens[place : place + 4].tolist()} there",
            found=f"{len(held)} tokens, {held[place : place + 4].tolist()} there",
            remedy="The states belong to another version of the dataset",
        )
    value = record["hidden_states"]
    if FP8_SCALES in record:
        scales = record[FP8_SCALES]
        if tuple(scales.shape) != (len(value), 1, 1):
            raise WiringError(
                f"{FP8_SCALES} has the wrong shape",
                where=path,
                expected=f"[{len(value)}, 1, 1]",
                found=list(scales.shape),
            )
        value = value.bfloat16() * scales.bfloat16()  # as hs-connectors 0.9.0 restores them
    every = stack(value, "hidden_states", len(tokens), path)  # [N, n+1, H]
    if every.shape[2] != hidden_size or every.shape[1] < 2:
        raise WiringError(
            "hidden_states has the wrong shape",
            where=path,
            expected=f"[{len(tokens)}, 2 or more, {hidden_size}]",
            found=list(every.shape),
            remedy="Compare with the target's hidden size",
        )
    return StateSample(str(path), tokens, mask, every[:, :-1], None, every[:, -1], "pre", SPECULATORS.name)


def _by_keys(record: dict[str, Any]) -> Format | None:
    import torch

    states = record.get("hidden_states")
    if "aux_hidden_state" in record:
        return SPECFORGE
    if "packed_loss_mask" in record:
        return TORCHSPEC
    if "aux_hidden_states" in record or ("hidden_state_features" in record and "hidden_states" in record):
        return MODELOPT
    if isinstance(states, list | tuple):
        return V1
    if isinstance(states, torch.Tensor) and states.dim() == 3 and "token_ids" in record:
        return SPECULATORS
    if "hidden_state" in record and "target" in record:
        aux = record["hidden_state"]  # both are read alike; only the trainer's own record has a batch of one
        batched = "attention_mask" in record or (isinstance(aux, torch.Tensor) and aux.dim() == 3)
        return NORMALISED if batched else V0
    return None


def _only(record: list[Any] | tuple[Any, ...], path: Path) -> dict[str, Any]:
    """The one sequence of TensorRT-LLM's list."""
    if len(record) != 1 or not isinstance(record[0], dict):
        raise WiringError(
            "not one sequence as TensorRT-LLM saves it",
            where=path,
            expected="a list of one dict (write_interval 1)",
            found=f"a list of {len(record)}" if len(record) != 1 else f"a list of one {type(record[0]).__name__}",
        )
    return record[0]


def _missing(form: Format, record: dict[str, Any]) -> list[str]:
    needed = [(form.tokens,), form.states, form.last, () if form.mask_optional else (form.mask,)]
    return [" or ".join(names) for names in needed if names and not any(name in record for name in names)]


def _present(form: Format, record: dict[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys((form.tokens, form.mask, *form.states, *form.last)) if name in record]


def _mask(form: Format, record: dict[str, Any], tokens: Tensor, path: Path) -> Tensor:
    import torch

    if form is TORCHSPEC:
        return unpacked_mask(record[form.mask], form.mask, len(tokens), path)
    if form.mask and form.mask in record:
        return mask_row(record[form.mask], form.mask, len(tokens), path)
    return torch.ones(len(tokens), dtype=torch.int64)


def _norm(form: Format, record: dict[str, Any], prenorm: bool | None) -> Norm:
    if form is MODELOPT:
        prenorm = record.get("hidden_states_prenorm")
    elif form is not TORCHSPEC:
        return form.norm
    return form.norm if prenorm is None else "pre" if prenorm else "post"


def _side_by_side(
    form: Format, record: dict[str, Any], length: int, hidden_size: int, path: Path
) -> tuple[Tensor, Tensor]:
    """States [N, n, H] from one tensor [N, n*H], and the last hidden state [N, H]."""
    name = next(name for name in form.states if name in record)
    wide = matrix(record[name], name, length, path)  # [N, n*H]
    if wide.shape[1] == 0 or wide.shape[1] % hidden_size:
        raise WiringError(
            f"{name} is no whole number of states wide",
            where=path,
            expected=f"a multiple of the hidden size {hidden_size}",
            found=wide.shape[1],
            remedy="Compare with the target's hidden size",
        )
    last_name = next(name for name in form.last if name in record)
    last = _last(matrix(record[last_name], last_name, length, path), last_name, hidden_size, path)
    return wide.unflatten(1, (-1, hidden_size)), last


def _listed(value: Any, length: int, hidden_size: int, path: Path) -> tuple[Tensor, Tensor]:
    """States [N, n, H] and the last hidden state [N, H] from a list of n+1 tensors [N, H]."""
    import torch

    if not isinstance(value, list | tuple) or len(value) < 2:
        raise WiringError("hidden_states holds no states", where=path, expected="a list of 2 or more tensors")
    names = [f"hidden_states[{i}]" for i in range(len(value))]
    parts = [
        _last(matrix(part, name, length, path), name, hidden_size, path)
        for part, name in zip(value, names, strict=True)
    ]
    return torch.stack(parts[:-1], 1), parts[-1]


def _last(value: Tensor, name: str, hidden_size: int, path: Path) -> Tensor:
    if value.shape[1] != hidden_size:
        raise WiringError(
            f"{name} has the wrong shape",
            where=path,
            expected=f"[{len(value)}, {hidden_size}]",
            found=list(value.shape),
            remedy="Compare with the target's hidden size",
        )
    return value
