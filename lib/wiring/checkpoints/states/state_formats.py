"""Detect which trainer wrote a record, and turn the record into a StateSample.

`FORMATS` is a table of key names. States are packed in one of three ways: concatenated in one wide tensor (most), a
list with one tensor per state (speculators v1), or stacked with the last hidden state at the end (current speculators,
see `wiring.checkpoints.states.dataset_rows`). Read from SpecForge 0.2.0, speculators 0.9.0 (and its readers of v0 and
v1), ModelOpt a2fbac7b, TensorRT-LLM 3e906a0e, TorchSpec 6f21829 and its offline dataset, version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.states.state_fields import invalid_field, mask_row, matrix, stack, token_row, unpacked_mask
from wiring.checkpoints.states.state_sample import Norm, StateSample
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

FP8_SCALES = "hidden_states_scales"  # hs-connectors 0.9.0: one float32 per token [N, 1, 1] for float8 states
_AUX = ("aux_hidden_states", "hidden_state_features")  # ModelOpt and TensorRT-LLM; the second name is the older one


def _dims(value: object) -> int:
    """Return the number of dimensions of a tensor; 0 for anything else."""
    return getattr(value, "ndim", 0)


@dataclass(frozen=True)
class Format:
    """The keys of one format.

    `states` and `last` list names of which the first present one is read. `detect` decides whether a record has this
    format; the first format in `FORMATS` applies. An empty `mask` is a format without one; with `mask_optional` every
    token counts if it is absent.
    """

    name: str
    title: str
    detect: Callable[[Mapping[str, Any]], bool]
    states: tuple[str, ...]
    last: tuple[str, ...]
    norm: Norm
    mask: str = "loss_mask"
    mask_optional: bool = False
    tokens: str = "input_ids"

    def missing(self, record: Mapping[str, Any]) -> list[str]:
        """Return the required keys that a record lacks; alternatives are joined by "or"."""
        return [key for key in self.keys() if not any(name in record for name in key.split(" or "))]

    def keys(self) -> tuple[str, ...]:
        """Return the required keys; alternatives are joined by "or"."""
        mask = () if self.mask_optional else (self.mask,)
        return (self.tokens, *mask, *dict.fromkeys(" or ".join(names) for names in (self.states, self.last) if names))


SPECFORGE = Format(
    "specforge",
    "SpecForge offline",
    lambda record: "aux_hidden_state" in record,
    ("aux_hidden_state",),
    ("hidden_state",),
    "post",
)
TORCHSPEC = Format(
    "torchspec",
    "TorchSpec",
    lambda record: "packed_loss_mask" in record,
    ("hidden_states",),
    ("last_hidden_states", "target"),
    "undecided",
    mask="packed_loss_mask",
)
MODELOPT = Format(
    "modelopt",
    "ModelOpt",
    lambda record: _AUX[0] in record or (_AUX[1] in record and "hidden_states" in record),
    _AUX,
    ("hidden_states",),
    "undecided",  # without a flag: its Hugging Face dump is normed, its vLLM dump is not, and neither records it
    mask_optional=True,
)
V1 = Format(
    "speculators-v1",
    "speculators v1",
    lambda record: isinstance(record.get("hidden_states"), list | tuple),
    ("hidden_states",),
    (),
    "pre",
)
SPECULATORS = Format(
    "speculators",
    "speculators",
    lambda record: _dims(record.get("hidden_states")) == 3 and "token_ids" in record,
    ("hidden_states",),
    (),
    "pre",
    tokens="token_ids",
    mask_optional=True,
)
NORMALIZED = Format(  # the trainer's own record of SpecForge, in a batch of one; otherwise read as V0 is
    "specforge-normalised",
    "SpecForge normalized",
    lambda record: V0.detect(record) and ("attention_mask" in record or _dims(record["hidden_state"]) == 3),
    ("hidden_state",),
    ("target",),
    "post",
)
V0 = Format(
    "speculators-v0",
    "speculators v0",
    lambda record: "hidden_state" in record and "target" in record,
    ("hidden_state",),
    ("target",),
    "post",
)
TENSORRT = Format(
    "tensorrt-llm",
    "TensorRT-LLM raw",
    lambda record: False,  # saved as a list, see `_detect`
    _AUX,
    ("hidden_state",),
    "undecided",
    mask="",
    mask_optional=True,
)
FORMATS = (SPECFORGE, TORCHSPEC, MODELOPT, V1, SPECULATORS, NORMALIZED, V0, TENSORRT)


def to_sample(record: Any, path: Path, hidden_size: int, prenorm: bool | None = None) -> StateSample:
    """Return a loaded record of any format but current speculators as a sample without boundaries.

    `prenorm` is what TorchSpec's folder records about the last hidden states. Raises WiringError naming file and field
    for whatever is missing or invalid.
    """
    form, record = _detect(record, path)
    _require(form, record, path)
    if form is SPECULATORS:
        raise WiringError(
            "this file belongs to a dataset folder, which holds its loss mask",
            code="states-without-dataset",
            where=path,
            expected="<dataset>/hidden_states/hs_<row>.safetensors and <dataset>/state.json",
        )
    tokens = token_row(record[form.tokens], form.tokens, path)
    states, last = (_listed if form is V1 else _concatenated)(form, record, len(tokens), hidden_size, path)
    if form is TENSORRT and states.shape[1] > 1 and bool((states[:, -1] == last).all()):
        states = states[:, :-1]  # captured with id -1 among the ids: the last hidden state again, not a boundary
    if form is MODELOPT:
        prenorm = record.get("hidden_states_prenorm")
    decided = form in (MODELOPT, TORCHSPEC) and prenorm is not None
    norm: Norm = ("pre" if prenorm else "post") if decided else form.norm
    mask, assumed = _mask(form, record, len(tokens), path)
    return StateSample(str(path), tokens, mask, states, None, last, norm, form.name, mask_assumed=assumed)


def stacked_sample(record: dict[str, Any], tokens: Tensor, mask: Tensor, path: Path, hidden_size: int) -> StateSample:
    """Return a record of current speculators, hidden_states [N, n+1, H] with boundary L in the last slot, as a sample.

    `tokens` and `mask` [N] are the dataset's row. Raises WiringError if the record's tokens differ from it.
    """
    _require(SPECULATORS, record, path)
    held = token_row(record["token_ids"], "token_ids", path)
    if held.tolist() != tokens.tolist():
        shared = min(len(held), len(tokens))
        unequal = (held[:shared] != tokens[:shared]).nonzero()
        place = int(unequal[0]) if len(unequal) else shared
        raise WiringError(
            f"token_ids differ from the dataset's row, first at token {place}",
            code="states-of-another-row",
            where=path,
            expected=f"{len(tokens)} tokens, {tokens[place : place + 4].tolist()} there",
            found=f"{len(held)} tokens, {held[place : place + 4].tolist()} there",
            remedy="The states belong to another version of the dataset",
        )
    value = record["hidden_states"]
    if FP8_SCALES in record:
        scales = record[FP8_SCALES]
        if tuple(scales.shape) != (len(value), 1, 1):
            raise invalid_field(FP8_SCALES, path, f"shape [{len(value)}, 1, 1]", list(scales.shape))
        value = value.bfloat16() * scales.bfloat16()  # as hs-connectors 0.9.0 restores them
    every = stack(value, "hidden_states", len(tokens), hidden_size, path)  # [N, n+1, H]
    return StateSample(str(path), tokens, mask, every[:, :-1], None, every[:, -1], "pre", SPECULATORS.name)


def _detect(record: Any, path: Path) -> tuple[Format, dict[str, Any]]:
    """Return the format of a loaded file and its record. Raises WiringError if no trainer writes it."""
    if isinstance(record, list | tuple) and len(record) == 1 and isinstance(record[0], dict):
        return TENSORRT, record[0]
    if not isinstance(record, dict):
        raise WiringError(
            "not training states",
            code="states-not-a-record",
            where=path,
            expected="a dict, or TensorRT-LLM's list of one dict (write_interval 1)",
            found=f"a list of {len(record)}" if isinstance(record, list | tuple) else type(record).__name__,
        )
    found = next((form for form in FORMATS if form.detect(record)), None)
    if found is None:
        nearest = min(FORMATS, key=lambda form: 2 * len(form.missing(record)) - len(form.keys()))
        raise WiringError(
            "no known trainer saves such training states",
            code="states-format-unknown",
            where=path,
            expected=f"{', '.join(nearest.keys())} (the nearest: {nearest.title})",
            found=", ".join(map(str, record)) or "an empty dict",
        )
    return found, record


def _require(form: Format, record: Mapping[str, Any], path: Path) -> None:
    if missing := form.missing(record):
        raise WiringError(
            f"{missing[0]} is missing from this {form.title} sample",
            code="state-field-missing",
            where=path,
            expected=", ".join(form.keys()),
            found=", ".join(map(str, record)),
        )


def _mask(form: Format, record: Mapping[str, Any], length: int, path: Path) -> tuple[Tensor, bool]:
    """Return the loss mask [N], and whether it is assumed."""
    import torch

    if form is TORCHSPEC:
        return unpacked_mask(record[form.mask], form.mask, length, path), False
    if form.mask in record:
        return mask_row(record[form.mask], form.mask, length, path), False
    return torch.ones(length, dtype=torch.int64), True


def _concatenated(
    form: Format, record: Mapping[str, Any], length: int, hidden_size: int, path: Path
) -> tuple[Tensor, Tensor]:
    """Return states [N, n, H] from one tensor [N, n*H], and the last hidden state [N, H]."""
    name = next(name for name in form.states if name in record)
    wide = matrix(record[name], name, length, path)  # [N, n*H]
    if wide.shape[1] == 0 or wide.shape[1] % hidden_size:
        raise invalid_field(name, path, f"a width that is a multiple of the hidden size {hidden_size}", wide.shape[1])
    last = next(name for name in form.last if name in record)
    return wide.unflatten(1, (-1, hidden_size)), matrix(record[last], last, length, path, hidden_size)


def _listed(
    form: Format, record: Mapping[str, Any], length: int, hidden_size: int, path: Path
) -> tuple[Tensor, Tensor]:
    """Return states [N, n, H] and the last hidden state [N, H] from a list of n+1 tensors [N, H]."""
    import torch

    value = record[form.states[0]]
    if len(value) < 2:
        raise invalid_field(form.states[0], path, "a list of 2 or more tensors", f"a list of {len(value)}")
    parts = [matrix(part, f"hidden_states[{i}]", length, path, hidden_size) for i, part in enumerate(value)]
    return torch.stack(parts[:-1], 1), parts[-1]
