"""Functions that check and return single fields of a record; each error names file and field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

AGAIN = "Generate the file again, or take it out of the folder"
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def invalid_field(name: str, path: Path, expected: object, found: object) -> WiringError:
    """Return the error for a field with another content than its format has."""
    return WiringError(
        f"{name} has another content than its format has",
        code="state-field-invalid",
        where=path,
        expected=expected,
        found=found,
        remedy=AGAIN,
    )


def token_row(value: Any, name: str, path: Path) -> Tensor:
    """Return token ids [N] int64 from whole numbers [N] or [1, N]. Raises WiringError for no ids and negative ids."""
    tokens = _whole_numbers(value, name, path)
    if len(tokens) == 0 or int(tokens.min()) < 0:
        raise invalid_field(name, path, "one or more token ids from 0", int(tokens.min()) if len(tokens) else "no ids")
    return tokens


def mask_row(value: Any, name: str, length: int, path: Path) -> Tensor:
    """Return a loss mask [N] int64 of zeros and ones. Raises WiringError for another length or other numbers."""
    mask = _whole_numbers(value, name, path)
    _check_length(len(mask), name, length, path)
    odd = mask[(mask != 0) & (mask != 1)]
    if len(odd):
        raise invalid_field(name, path, "0 or 1", int(odd[0]))
    return mask


def unpacked_mask(value: Any, name: str, length: int, path: Path) -> Tensor:
    """Return a loss mask [N] int64 from run lengths such as "2,3,2": zeros first, then ones, and so on.

    TorchSpec 6f21829 (torchspec/data/utils.py); the first run may have length 0. Raises WiringError for other content
    and for runs that do not add up to N.
    """
    import torch

    try:
        runs = [int(part) for part in value.split(",")] if value else []
    except (AttributeError, ValueError):
        runs = []
    if not runs or min(runs) < 0:
        raise invalid_field(name, path, 'run lengths such as "2,3,2"', repr(value))
    _check_length(sum(runs), name, length, path)
    return torch.arange(len(runs)).remainder(2).repeat_interleave(torch.tensor(runs))  # [N]


def matrix(value: Any, name: str, length: int, path: Path, width: int | None = None) -> Tensor:
    """Return a finite float tensor [N, W] from [N, W] or [1, N, W], in its own type.

    Raises WiringError for another type or shape, another width than `width`, NaN and infinity.
    """
    tensor = _float_tensor(value, name, path)
    tensor = tensor[0] if tensor.dim() == 3 and tensor.shape[0] == 1 else tensor
    if tensor.dim() != 2 or tensor.shape[0] != length or tensor.shape[1] != (width or tensor.shape[1]):
        raise invalid_field(name, path, f"shape [{length}, {width or 'width'}]", list(value.shape))
    return _finite(tensor, name, path)


def stack(value: Any, name: str, length: int, width: int, path: Path) -> Tensor:
    """Return a finite float tensor [N, 2 or more, width] in its own type. Raises WiringError as `matrix` does."""
    tensor = _float_tensor(value, name, path)
    if tensor.dim() != 3 or (tensor.shape[0], tensor.shape[2]) != (length, width) or tensor.shape[1] < 2:
        raise invalid_field(name, path, f"shape [{length}, 2 or more, {width}]", list(tensor.shape))
    return _finite(tensor, name, path)


def _float_tensor(value: Any, name: str, path: Path) -> Tensor:
    import torch

    found = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
    if found not in _FLOATS:
        raise invalid_field(name, path, f"a tensor of type {', '.join(_FLOATS)}", found)
    return value.detach()


def _check_length(found: int, name: str, length: int, path: Path) -> None:
    if found != length:
        raise invalid_field(name, path, f"{length} entries, one per token", found)


def _finite(value: Tensor, name: str, path: Path) -> Tensor:
    low, high = value.aminmax()  # one pass without a copy; NaN is returned as both
    if bool(low.isfinite()) and bool(high.isfinite()):
        return value
    bad = ~value.flatten(1).isfinite().all(-1)  # [N]
    found = f"NaN or infinity in {int(bad.sum())} of {len(bad)} rows, first at token {int(bad.nonzero()[0])}"
    raise invalid_field(name, path, "finite numbers", found)


def _whole_numbers(value: Any, name: str, path: Path) -> Tensor:
    import torch

    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        value = torch.tensor(value, dtype=torch.int64)
    if not isinstance(value, torch.Tensor):
        raise invalid_field(name, path, "whole numbers [N]", type(value).__name__)
    row = value[0] if value.dim() == 2 and value.shape[0] == 1 else value
    if row.is_floating_point() or row.is_complex() or row.dim() != 1:
        raise invalid_field(name, path, "whole numbers [N]", f"{list(value.shape)} {value.dtype}")
    return row.long()
