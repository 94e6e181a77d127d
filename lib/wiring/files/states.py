"""Training states on disk: SpecForge's offline files, read one at a time.

Layout of a folder: `rows_{first}-{last}/data_{i}.ckpt` or `.ckpt.gz`, each a `torch.save` of a dict with input_ids [N]
int64, loss_mask [N] int64, aux_hidden_state [1, N, n*H] (n states side by side) and hidden_state [1, N, H] (the last
hidden state after the final norm). A file does not say which boundaries it holds: the reader has to be told.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.boundary import Layout
from wiring.errors import WiringError
from wiring.files.atomic import replacing

if TYPE_CHECKING:
    from torch import Tensor

_KEYS = ("input_ids", "loss_mask", "aux_hidden_state", "hidden_state")
_TO_READER = "Say which boundaries the file holds, slot by slot"
_AGAIN = "Generate the file again, or take it out of the folder"


@dataclass(frozen=True)
class StateSample:
    """One sequence with the target's states. N tokens, n stored slots of width H; padding may trail.

    tokens [N] int64; loss_mask [N] int64, 1 where the trainer counts; states [N, n, H] not normed; boundaries[i] is
    the boundary in slot i; last_hidden [N, H] after the final norm; source is the file.
    """

    source: str
    tokens: Tensor
    loss_mask: Tensor
    states: Tensor
    boundaries: tuple[int, ...]
    last_hidden: Tensor

    def select(self, layout: Layout) -> Tensor:
        """The states of `layout` [N, len(layout), H]. Raises WiringError when a boundary is not stored."""
        missing = [b for b in layout if b not in self.boundaries]
        if missing:
            raise WiringError(
                f"boundary {missing[0]} is not among the stored states",
                where=self.source,
                expected=f"the layout {tuple(layout)}",
                found=f"stored boundaries {self.boundaries}",
            )
        return self.states[:, [self.boundaries.index(b) for b in layout]]


def state_files(folder: str | Path) -> list[Path]:
    """Every .ckpt and .ckpt.gz below `folder`, by number (data_2 before data_10). Raises WiringError for none."""
    folder = Path(folder)
    if not folder.exists():
        raise WiringError("the folder of training states does not exist", where=folder, remedy="Check the path")
    found = [p for p in folder.rglob("*") if p.name.endswith((".ckpt", ".ckpt.gz")) and not p.name.startswith(".")]
    if not found:
        raise WiringError("no training states here", where=folder, expected="rows_*/data_*.ckpt or .ckpt.gz")
    return sorted(found, key=lambda p: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", str(p))])


def iter_states(folder: str | Path, boundaries: Sequence[int], hidden_size: int) -> Iterator[StateSample]:
    """Stream the samples of `folder` in the order of their numbers, one in memory at a time.

    `boundaries` names what each stored slot holds, `hidden_size` is the target's width. Raises WiringError at once for
    an empty or missing folder, and naming the file when one is truncated, empty, of another width, not finite, or
    holds pickled objects.
    """
    files = state_files(folder)
    return (read_state(path, boundaries, hidden_size) for path in files)


def read_state(path: str | Path, boundaries: Sequence[int], hidden_size: int) -> StateSample:
    """Read one file; see `iter_states`."""
    path = Path(path)
    raw = _load(path)
    if not isinstance(raw, dict) or any(key not in raw for key in _KEYS):
        raise WiringError(
            "not a SpecForge offline sample",
            where=path,
            expected=", ".join(_KEYS),
            found=", ".join(map(str, raw)) if isinstance(raw, dict) else type(raw).__name__,
        )
    tokens, mask = _vector(raw["input_ids"], "input_ids", path), _vector(raw["loss_mask"], "loss_mask", path)
    length, slots = len(tokens), len(boundaries)
    if length == 0:
        raise WiringError("the sample is empty: it has no tokens", where=path, remedy=_AGAIN)
    if len(mask) != length:
        raise WiringError(
            "loss_mask and input_ids differ in length", where=path, expected=length, found=len(mask), remedy=_AGAIN
        )
    states = _matrix(raw["aux_hidden_state"], "aux_hidden_state", (length, slots * hidden_size), path)
    last = _matrix(raw["hidden_state"], "hidden_state", (length, hidden_size), path)
    return StateSample(str(path), tokens, mask, states.reshape(length, slots, hidden_size), tuple(boundaries), last)


def write_state(path: str | Path, tokens: Tensor, loss_mask: Tensor, states: Tensor, last_hidden: Tensor) -> Path:
    """Write a sample of tokens [N], loss_mask [N], states [N, n, H] and last_hidden [N, H], whole or not at all.

    Compressed when `path` ends in .gz; floats keep their type. The same sample gives the same bytes.
    """
    import torch

    record = {
        "input_ids": tokens.to("cpu", torch.int64).clone(),  # a view would take its whole batch into the file
        "loss_mask": loss_mask.to("cpu", torch.int64).clone(),
        "aux_hidden_state": states.detach().cpu().flatten(1)[None].clone(),
        "hidden_state": last_hidden.detach().cpu()[None].clone(),
    }
    buffer = io.BytesIO()  # through memory: torch.save writes its file's own name into the archive
    torch.save(record, buffer)
    content = buffer.getvalue()
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content)
    return Path(path)


def _load(path: Path) -> Any:
    import torch

    try:
        content = path.read_bytes()
        if path.name.endswith(".gz"):
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WiringError(f"the compressed file is cut off or damaged: {error}", where=path, remedy=_AGAIN) from None
    except OSError as error:
        raise WiringError(f"the file cannot be read: {error.strerror}", where=path) from None
    if not content:
        raise WiringError("the file is empty", where=path, remedy=_AGAIN)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Weights only" not in str(error) and "weights_only" not in str(error):
            raise WiringError("the file is cut off or is no torch file", where=path, remedy=_AGAIN) from None
        raise WiringError(
            "the file holds pickled objects, which could run code when opened",
            where=path,
            expected="tensors only",
            remedy="It was not opened",
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise WiringError(
            f"the file is cut off or is no torch file: {str(error).splitlines()[0]}", where=path, remedy=_AGAIN
        ) from None


def _vector(value: Any, name: str, path: Path) -> Tensor:
    import torch

    if isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape[0] == 1:
        value = value[0]
    whole = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    if not whole or value.dim() != 1:
        found = f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise WiringError(f"{name} is not a row of whole numbers", where=path, expected="[N] int64", found=found)
    return value.long()


def _matrix(value: Any, name: str, shape: tuple[int, int], path: Path) -> Tensor:
    """A float tensor [N, width] from [1, N, width]."""
    import torch

    if isinstance(value, torch.Tensor) and value.dim() == 3 and value.shape[0] == 1:
        value = value[0]
    found = f"[1, {', '.join(map(str, value.shape))}]" if isinstance(value, torch.Tensor) else type(value).__name__
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or tuple(value.shape) != shape:
        raise WiringError(
            f"{name} has the wrong shape",
            where=path,
            expected=f"[1, {shape[0]}, {shape[1]}]",
            found=found,
            remedy=_TO_READER if name == "aux_hidden_state" else "Compare with the target's hidden size",
        )
    finite = value.isfinite().all(-1)  # [N]
    if not bool(finite.all()):
        raise WiringError(
            f"{name} holds NaN or infinity",
            where=path,
            expected="finite numbers",
            found=f"{int((~finite).sum())} of {shape[0]} rows, first at token {int((~finite).nonzero()[0])}",
            remedy=_AGAIN,
        )
    return value
