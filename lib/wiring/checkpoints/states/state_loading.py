"""Open one file of training states by its first bytes; nothing is unpickled, and what is damaged is named."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

AGAIN = "Generate the file again, or take it out of the folder"
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"  # torch.save before 1.6: its magic number, pickled
_PICKLE = b"\x80"


def load_torch(path: Path) -> Any:
    """Read what `torch.save` wrote, compressed by gzip or not, to CPU memory.

    Files that are not compressed are mapped, so only what is used is read. Raises WiringError for a file that is
    missing, empty, cut off (inside the gzip too), of another kind, or holds anything but tensors and plain values.
    """
    import torch

    head = _head(path)
    mapped = not head.startswith(_GZIP)
    source: Any = path if mapped else io.BytesIO(_decompressed(path))
    if not mapped:
        head = source.getvalue()[: len(_LEGACY)]
        if not head:
            raise WiringError("the compressed file holds nothing", where=path, remedy=AGAIN)
    if head.startswith(_PICKLE) and head != _LEGACY and len(head) == len(_LEGACY):
        raise _objects(path)
    if not head.startswith(_ZIP) and head != _LEGACY:
        raise WiringError("the file is cut off or is no torch file", where=path, remedy=AGAIN)
    try:
        mapped = mapped and head.startswith(_ZIP)  # torch maps only what it wrote as a zip
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        text = str(error)
        if "nsupported" in text or "GLOBAL" in text or "REDUCE" in text or "BUILD" in text:
            raise _objects(path) from None
        raise WiringError("the file is cut off or is no torch file", where=path, remedy=AGAIN) from None
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].split(". This is an internal")[0]
        raise WiringError(f"the file is cut off or is no torch file: {why}", where=path, remedy=AGAIN) from None


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of one safetensors file. Raises WiringError for a file that is missing, empty or cut off."""
    from safetensors import SafetensorError, safe_open

    _head(path)
    try:
        with safe_open(path, framework="pt") as reader:
            return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WiringError(f"the file is cut off or is no safetensors file: {error}", where=path, remedy=AGAIN) from None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(len(_LEGACY))
    except OSError as error:
        raise WiringError(f"the file cannot be read: {error.strerror}", where=path) from None
    if not head:
        raise WiringError("the file is empty", where=path, remedy=AGAIN)
    return head


def _decompressed(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WiringError(f"the compressed file is cut off or damaged: {error}", where=path, remedy=AGAIN) from None
    except OSError as error:
        raise WiringError(f"the file cannot be read: {error.strerror}", where=path) from None


def _objects(path: Path) -> WiringError:
    return WiringError(
        "the file holds pickled objects, which could run code when opened",
        where=path,
        expected="tensors only",
        remedy="It was not opened",
    )
