"""Open JSON, torch and safetensors files; damaged files are refused by name, and nothing is unpickled."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError

if TYPE_CHECKING:
    from safetensors import safe_open

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"  # torch.save before 1.6: its magic number, pickled
_PICKLE = b"\x80"
_OBJECTS = ("nsupported", "GLOBAL", "REDUCE", "BUILD")  # in torch's message about anything but tensors and plain values


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object. Raises WiringError naming the file if it is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WiringError(f"{what} is missing", code="json-missing", where=path, remedy="Check the path") from None
    except (OSError, ValueError, RecursionError) as error:  # also for 5000 digits and for a thousand levels
        raise WiringError(
            f"{what} cannot be read as JSON: {error}", code="json-unreadable", where=path, remedy="Copy it again"
        ) from None
    if not isinstance(value, dict):
        raise WiringError(
            f"{what} is not a JSON object",
            code="json-not-an-object",
            where=path,
            expected="an object",
            found=type(value).__name__,
        )
    return value


def load_torch(path: Path, remedy: str = "Copy it again") -> Any:
    """Read what `torch.save` wrote, compressed by gzip or not, to CPU memory.

    Zip files are mapped, so that unused tensors stay on disk. Raises WiringError if the file is missing, empty, cut off
    (also inside the gzip), of another type, or holds anything but tensors and plain values.
    """
    import torch

    head = _first_bytes(path, remedy)
    source: Any = path
    if head.startswith(_GZIP):
        try:
            source = io.BytesIO(gzip.decompress(path.read_bytes()))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(path, error, remedy) from None
        head = source.getvalue()[: len(_LEGACY)]
    if head.startswith(_PICKLE) and head != _LEGACY and len(head) == len(_LEGACY):
        raise _objects(path)
    if not head.startswith(_ZIP) and head != _LEGACY:
        raise _damaged(path, "not written by torch.save", remedy)
    try:
        mapped = source is path and head.startswith(_ZIP)
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        if any(word in str(error) for word in _OBJECTS):
            raise _objects(path) from None
        raise _damaged(path, "its content is not readable", remedy) from None
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0].split(". This is an internal")[0]
        raise _damaged(path, text, remedy) from None


def open_safetensors(path: Path, remedy: str = "Copy it again") -> safe_open:
    """Open a safetensors file. Raises WiringError if it is missing, empty, cut off or of another type."""
    from safetensors import SafetensorError, safe_open

    _first_bytes(path, remedy)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error, remedy) from None


def _first_bytes(path: Path, remedy: str) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(len(_LEGACY))
    except FileNotFoundError:
        raise WiringError("the file is missing", code="file-missing", where=path, remedy=remedy) from None
    except OSError as error:
        raise WiringError(
            f"the file cannot be read: {error.strerror}", code="file-unreadable", where=path, remedy=remedy
        ) from None
    if not head:
        raise WiringError("the file is empty", code="file-empty", where=path, remedy=remedy)
    return head


def _damaged(path: Path, why: object, remedy: str) -> WiringError:
    return WiringError(
        f"the file is cut off or has another format: {why}", code="file-damaged", where=path, remedy=remedy
    )


def _objects(path: Path) -> WiringError:
    return WiringError(
        "the file holds pickled objects, which could run code when opened, so it was not opened",
        code="file-holds-objects",
        where=path,
        expected="tensors and plain values only",
        remedy="If you trust it, export it to safetensors with its trainer "
        "(SpecForge: python -m specforge.export.to_hf)",
    )
