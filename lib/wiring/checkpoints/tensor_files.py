"""Read the tensors of a model folder: one file, or shards with an index. Nothing is ever unpickled.

Models come as safetensors. Drafts may also come as torch files (`pytorch_model.bin`, SpecForge's `training_state.pt`),
which are opened for tensors and plain values only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_SINGLE = "pytorch_model.bin"
TRAINING_STATE = "training_state.pt"  # SpecForge, `training/checkpoint.py`
_PICKLED = (TORCH_SINGLE, TORCH_INDEX, TRAINING_STATE)
_DRAFT_OF_STATE = "draft_state_dict"


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object. Raises WiringError naming the file when it is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WiringError(f"{what} is missing", where=path, remedy="Check the path") from None
    except (OSError, ValueError, RecursionError) as error:  # of 5000 digits, or of a thousand levels, too
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
    return _listed(folder / INDEX, "the safetensors index")


def tensor_files(folder: str | Path) -> dict[str, Path]:
    """As `tensor_names`, with every shard opened. Raises WiringError when index and shards disagree."""
    listed = tensor_names(folder)
    _check_index(listed, {shard: set(_names(shard)) for shard in sorted(set(listed.values()))})
    return listed


def has_weights(folder: str | Path, *, pickled: bool = False) -> bool:
    """Whether a model folder holds safetensors (or their index); with `pickled`, torch files count too."""
    names = (SINGLE, INDEX, *_PICKLED) if pickled else (SINGLE, INDEX)
    return any((Path(folder) / name).exists() for name in names)


def refuse_broken_link(folder: Path) -> None:
    """Raise WiringError where a folder's weights are a link to a file that is gone."""
    for link in (folder / name for name in (SINGLE, INDEX, *_PICKLED)):
        if link.is_symlink() and not link.exists():
            raise WiringError(
                "the weights are a broken link",
                where=link,
                expected="a file",
                found=f"a link to {link.readlink()}",
                remedy="Download or copy the model again: the file is gone, as in a cache that was cleared",
            )


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Path]]:
    """Read all tensors of a draft to CPU memory, as stored, and the file that holds each.

    `path` is a folder or SpecForge's training_state.pt itself. A folder's safetensors are taken before its
    pytorch_model.bin, and that before a training_state.pt. Raises WiringError when there is none of them, when a file
    is damaged or holds pickled objects, and when index and shards disagree.
    """
    path = Path(path)
    if path.is_file():
        return _torch_checkpoint({path: _draft_state(path)})
    if not path.is_dir() or (path / INDEX).exists() or (path / SINGLE).exists():
        return read_tensors(path), tensor_files(path)
    if (path / TORCH_INDEX).exists():
        listed = _listed(path / TORCH_INDEX, "the index of the torch files")
        shards = {shard: _torch_file(shard) for shard in sorted(set(listed.values()))}
        _check_index(listed, {shard: set(held) for shard, held in shards.items()})
        return _torch_checkpoint(shards)
    if (path / TORCH_SINGLE).exists():
        return _torch_checkpoint({path / TORCH_SINGLE: _torch_file(path / TORCH_SINGLE)})
    if (path / TRAINING_STATE).exists():
        return _torch_checkpoint({path / TRAINING_STATE: _draft_state(path / TRAINING_STATE)})
    refuse_broken_link(path)
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{TRAINING_STATE}"))
    raise WiringError(
        "no weights here",
        where=path,
        expected=", ".join((SINGLE, INDEX, TORCH_SINGLE, TORCH_INDEX, TRAINING_STATE)),
        found=f"training checkpoints {', '.join(inside[:4])}" if inside else "",
        remedy="Name one of the checkpoints" if inside else "Check the path",
    )


def _listed(index: Path, what: str) -> dict[str, Path]:
    listed = read_json(index, what).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(shard, str) for shard in listed.values()):
        raise WiringError(f"{what} has no weight_map", where=index)
    return {name: index.parent / shard for name, shard in listed.items()}


def _check_index(listed: dict[str, Path], held: dict[Path, set[str]]) -> None:
    for name, shard in listed.items():
        if name not in held[shard]:
            raise WiringError(f"the index promises tensor {name}, but the shard lacks it", where=shard)
    for shard, names in held.items():
        if extra := sorted(names - listed.keys()):
            raise WiringError(f"the shard holds tensor {extra[0]}, which the index does not list", where=shard)


def _torch_checkpoint(shards: dict[Path, dict[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Path]]:
    tensors = {name: tensor for held in shards.values() for name, tensor in held.items()}
    return tensors, {name: file for file, held in shards.items() for name in held}


def _draft_state(file: Path) -> dict[str, Tensor]:
    """The draft's tensors of a SpecForge training checkpoint, or of a torch file that holds nothing else."""
    state = _load_torch(file)
    if isinstance(state, dict) and _DRAFT_OF_STATE in state:
        state = state[_DRAFT_OF_STATE]
    elif file.name == TRAINING_STATE:
        raise WiringError(
            "the training checkpoint holds no draft",
            where=file,
            expected=_DRAFT_OF_STATE,
            found=", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__,
        )
    return _only_tensors(state, file)


def _torch_file(file: Path) -> dict[str, Tensor]:
    return _only_tensors(_load_torch(file), file)


def _only_tensors(state: Any, file: Path) -> dict[str, Tensor]:
    import torch

    odd = [n for n, t in state.items() if not isinstance(t, torch.Tensor)] if isinstance(state, dict) else ["the file"]
    if odd:
        raise WiringError(
            "not a state dict of tensors", where=file, expected="tensors by name", found=f"{odd[0]} is none"
        )
    return {str(name): tensor.detach().clone() for name, tensor in state.items()}  # not a view of the mapped file


def _first_byte(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(1)


def _load_torch(file: Path) -> Any:
    import pickle
    import warnings
    import zipfile

    import torch

    try:
        mapped = zipfile.is_zipfile(file)  # an optimizer's state beside the draft then stays on disk
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about a pickle's protocol: what is refused is told below
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise WiringError("a torch file is missing", where=file, remedy="Copy it again") from None
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and _first_byte(file) != b"\x80":  # a pickle's first byte
            raise WiringError("the file is cut off or is no torch file", where=file, remedy="Copy it again") from None
        raise WiringError(
            "the file holds pickled objects, which could run code when opened, so it was not opened",
            where=file,
            expected="tensors and plain values only",
            remedy="Export it to safetensors with its trainer, where it is trusted (SpecForge: "
            "python -m specforge.export.to_hf)",
        ) from None
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError, OSError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise WiringError(
            f"the file is cut off or is no torch file{f': {why}' if why else ''}",
            where=file,
            remedy="Copy it again",
        ) from None


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


def read_rows(folder: str | Path, name: str, rows: Sequence[int]) -> Tensor:
    """Read single rows [n, ...] of a tensor, without the rest of it. Raises WiringError as `read_tensor` does."""
    import torch

    file = tensor_names(folder).get(name)
    if file is None:
        raise WiringError(f"tensor {name} is missing", where=folder)
    with _open(file) as reader:
        if name not in set(reader.keys()):
            raise WiringError(f"the index promises tensor {name}, but the shard lacks it", where=file)
        part = reader.get_slice(name)
        return torch.cat([part[row : row + 1] for row in rows])


def _single(folder: Path) -> Path:
    if (folder / SINGLE).exists():
        return folder / SINGLE
    refuse_broken_link(folder)
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
