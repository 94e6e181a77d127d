"""Read safetensors folders: one file, or shards with an index. Nothing is ever unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "training_state.pt")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object. Raises WiringError naming the file when it is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WiringError(f"{what} is missing", where=path, remedy="Check the path") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WiringError(f"{what} cannot be read as JSON: {error}", where=path) from None
    if not isinstance(value, dict):
        raise WiringError(f"{what} is not a JSON object", where=path, expected="an object", found=type(value).__name__)
    return value


def tensor_names(folder: str | Path) -> dict[str, Path]:
    """Map every tensor's name to the file that should hold it, from the index alone where there is one.

    Raises WiringError when the folder has no safetensors or its index is not one.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise WiringError("the model folder does not exist", where=folder, remedy="Check the path")
    if not (folder / INDEX).exists():
        return dict.fromkeys(_names(_single(folder)), folder / SINGLE)
    listed = read_json(folder / INDEX, "the safetensors index").get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(shard, str) for shard in listed.values()):
        raise WiringError("the safetensors index has no weight_map", where=folder / INDEX)
    return {name: folder / shard for name, shard in listed.items()}


def tensor_files(folder: str | Path) -> dict[str, Path]:
    """As `tensor_names`, with every shard opened. Raises WiringError when index and shards disagree."""
    listed = tensor_names(folder)
    held = {shard: set(_names(shard)) for shard in sorted(set(listed.values()))}
    for name, shard in listed.items():
        if name not in held[shard]:
            raise WiringError(f"the index promises tensor {name}, but the shard lacks it", where=shard)
    for shard, names in held.items():
        if extra := sorted(names - listed.keys()):
            raise WiringError(f"the shard holds tensor {extra[0]}, which the index does not list", where=shard)
    return listed


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Read all tensors of a folder to CPU memory, as stored."""
    files = tensor_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        with _open(file) as reader:
            tensors.update({name: reader.get_tensor(name) for name in reader.keys()})  # noqa: SIM118
    return tensors


def read_tensor(folder: str | Path, name: str) -> Tensor:
    """Read one tensor by name. Raises WiringError when the folder does not hold it."""
    files = tensor_names(folder)
    if name not in files:
        example = f" such as {min(files)}" if files else ""
        raise WiringError(f"tensor {name} is missing", where=folder, found=f"{len(files)} tensors{example}")
    with _open(files[name]) as reader:
        if name not in set(reader.keys()):
            raise WiringError(f"the index promises tensor {name}, but the shard lacks it", where=files[name])
        return reader.get_tensor(name)


def _single(folder: Path) -> Path:
    if (folder / SINGLE).exists():
        return folder / SINGLE
    pickled = [name for name in _PICKLED if (folder / name).exists()]
    remedy = f"Convert {pickled[0]} to safetensors: pickled weights are not opened" if pickled else "Check the path"
    raise WiringError("no safetensors here", where=folder, expected=f"{SINGLE} or {INDEX}", remedy=remedy)


def _names(file: Path) -> list[str]:
    with _open(file) as reader:
        return list(reader.keys())


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise WiringError("a safetensors shard is missing", where=file) from None
    except (SafetensorError, OSError) as error:
        raise WiringError(f"not a whole safetensors file: {error}", where=file, remedy="Copy it again") from None
