"""Checks of single fields: rows of token ids, loss masks, float matrices. Each error names file and field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.states.state_loading import AGAIN
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def token_row(value: Any, name: str, path: Path) -> Tensor:
    """Token ids [N] int64 from whole numbers [N] or [1, N]. Raises WiringError for none, others, or negative ids."""
    tokens = _whole_numbers(value, name, path)
    if len(tokens) == 0:
        raise WiringError("the sample is empty: it has no tokens", where=path, remedy=AGAIN)
    if int(tokens.min()) < 0:
        raise WiringError(
            f"{name} holds a negative token id",
            where=path,
            expected="ids from 0",
            found=int(tokens.min()),
            remedy=AGAIN,
        )
    return tokens


def mask_row(value: Any, name: str, length: int, path: Path) -> Tensor:
    """A loss mask [N] int64 of zeros and ones. Raises WiringError for another length or other numbers."""
    mask = _whole_numbers(value, name, path)
    check_length(len(mask), name, length, path)
    if bool(((mask != 0) & (mask != 1)).any()):
        odd = mask[(mask != 0) & (mask != 1)]
        raise WiringError(f"{name} is not made of 0 and 1", where=path, expected="0 or 1", found=int(odd[0]))
    return mask


def unpacked_mask(value: Any, name: str, length: int, path: Path) -> Tensor:
    """A loss mask [N] int64 from run lengths written as "2,3,2": zeros first, then ones, and so on.

    TorchSpec 6f21829 (torchspec/data/utils.py); the first run may be 0 long. Raises WiringError for anything else,
    and when the runs do not add up to N.
    """
    import torch

    try:
        runs = [int(part) for part in value.split(",")] if value else []
    except (AttributeError, ValueError):
        runs = [-1]
    if not runs or min(runs) < 0:
        raise WiringError(
            f"{name} does not say which tokens count",
            where=path,
            expected='run lengths such as "2,3,2"',
            found=repr(value),
        )
    check_length(sum(runs), name, length, path)
    return torch.arange(len(runs)).remainder(2).repeat_interleave(torch.tensor(runs))  # [N]


def matrix(value: Any, name: str, length: int, path: Path) -> Tensor:
    """A finite float tensor [N, W] from [N, W] or [1, N, W], in its own type.

    Raises WiringError for no tensor, another type, a batch, another length than N, NaN or infinity.
    """
    tensor = float_tensor(value, name, path)
    if tensor.dim() == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2:
        raise WiringError(
            f"{name} has the wrong shape", where=path, expected=f"[{length}, width]", found=list(value.shape)
        )
    check_length(len(tensor), name, length, path)
    return finite(tensor, name, path)


def stack(value: Any, name: str, length: int, path: Path) -> Tensor:
    """A finite float tensor [N, k, H] in its own type. Raises WiringError as `matrix` does."""
    tensor = float_tensor(value, name, path)
    if tensor.dim() != 3:
        raise WiringError(
            f"{name} has the wrong shape", where=path, expected=f"[{length}, states, width]", found=list(tensor.shape)
        )
    check_length(len(tensor), name, length, path)
    return finite(tensor, name, path)


def float_tensor(value: Any, name: str, path: Path) -> Tensor:
    """`value`, if it is a float tensor that is computed with as it is; raises WiringError otherwise."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise WiringError(f"{name} is no tensor", where=path, expected="a float tensor", found=type(value).__name__)
    if value.dtype not in [getattr(torch, kind) for kind in _FLOATS]:
        raise WiringError(
            f"{name} has the wrong type",
            where=path,
            expected=", ".join(_FLOATS),
            found=str(value.dtype).removeprefix("torch."),
        )
    return value.detach()


def check_length(found: int, name: str, length: int, path: Path) -> None:
    """Raise WiringError unless the field has one entry per token."""
    if found != length:
        raise WiringError(
            f"{name} and the tokens differ in length", where=path, expected=length, found=found, remedy=AGAIN
        )


def finite(value: Tensor, name: str, path: Path) -> Tensor:
    """`value` [N, ...] itself; raises WiringError naming the first bad token when it holds NaN or infinity."""
    low, high = value.aminmax()  # one pass and no copy; NaN wins both
    if bool(low.isfinite()) and bool(high.isfinite()):
        return value
    bad = ~value.flatten(1).isfinite().all(-1)  # [N]
    raise WiringError(
        f"{name} holds NaN or infinity",
        where=path,
        expected="finite numbers",
        found=f"{int(bad.sum())} of {len(bad)} rows, first at token {int(bad.nonzero()[0])}",
        remedy=AGAIN,
    )


def _whole_numbers(value: Any, name: str, path: Path) -> Tensor:
    import torch

    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        value = torch.tensor(value, dtype=torch.int64)
    if isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape[0] == 1:
        value = value[0]
    whole = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    if not whole or value.dim() != 1:
        found = f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise WiringError(f"{name} is not a row of whole numbers", where=path, expected="[N] int64", found=found)
    return value.long()
