"""Read the tensors of a model folder: one file, or shards with an index. Nothing is unpickled.

Models are stored as safetensors. Drafts may also be stored as torch files (`pytorch_model.bin`, SpecForge's
`training_state.pt`), of which only tensors and plain values are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.file_loading import load_torch, open_safetensors, read_json
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


def tensor_names(folder: str | Path) -> dict[str, Path]:
    """Map every tensor's name to its file, from the index alone if there is one.

    Raises WiringError if the folder has no safetensors or the index is invalid.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise WiringError(
            "the model folder does not exist", code="model-folder-missing", where=folder, remedy="Check the path"
        )
    if (folder / INDEX).exists():
        return _listed(folder / INDEX)
    if (folder / SINGLE).exists():
        return dict.fromkeys(_names(folder / SINGLE), folder / SINGLE)
    refuse_broken_link(folder)
    pickled = [name for name in _PICKLED if (folder / name).exists()]
    raise WiringError(
        "no safetensors here",
        code="safetensors-missing",
        where=folder,
        expected=f"{SINGLE} or {INDEX}",
        found=", ".join(pickled),
        remedy="Convert pickled weights to safetensors: they are not opened" if pickled else "Check the path",
    )


def has_weights(folder: str | Path, *, pickled: bool = False) -> bool:
    """Return whether a model folder holds safetensors (or their index); with `pickled`, torch files count too."""
    names = (SINGLE, INDEX, *_PICKLED) if pickled else (SINGLE, INDEX)
    return any((Path(folder) / name).exists() for name in names)


def refuse_broken_link(folder: Path) -> None:
    """Raise WiringError if a folder's weights are a link to a file that does not exist."""
    for link in (folder / name for name in (SINGLE, INDEX, *_PICKLED)):
        if link.is_symlink() and not link.exists():
            raise WiringError(
                "the weights are a broken link",
                code="weights-broken-link",
                where=link,
                expected="a file",
                found=f"a link to {link.readlink()}",
                remedy="Download or copy the model again",
            )


def read_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Path]]:
    """Read all tensors of a draft to CPU memory, as stored, and the file that holds each.

    `path` is a folder or SpecForge's training_state.pt itself. A folder's safetensors precede its pytorch_model.bin,
    and that precedes a training_state.pt. Raises WiringError if there is none of them, if a file is damaged or holds
    pickled objects, and if index and shards disagree.
    """
    path = Path(path)
    state = path if path.is_file() else path / TRAINING_STATE
    if not path.is_file() and (not path.is_dir() or has_weights(path)):
        listed = tensor_names(path)
        shards = {file: _read_all(file) for file in sorted(set(listed.values()))}
        _check_index(listed, shards)
    elif not path.is_file() and (path / TORCH_INDEX).exists():
        listed = _listed(path / TORCH_INDEX)
        shards = {file: _only_tensors(load_torch(file), file) for file in sorted(set(listed.values()))}
        _check_index(listed, shards)
    elif not path.is_file() and (path / TORCH_SINGLE).exists():
        shards = {path / TORCH_SINGLE: _only_tensors(load_torch(path / TORCH_SINGLE), path / TORCH_SINGLE)}
    elif state.exists():
        shards = {state: _draft_state(state)}
    else:
        raise _no_weights(path)
    tensors = {name: tensor for held in shards.values() for name, tensor in held.items()}
    return tensors, {name: file for file, held in shards.items() for name in held}


def read_tensor(folder: str | Path, name: str) -> Tensor:
    """Read one tensor as stored. Raises WiringError if the folder does not hold it."""
    with open_safetensors(_holder(folder, name)) as reader:
        return reader.get_tensor(name)


def read_rows(folder: str | Path, name: str, rows: Sequence[int]) -> Tensor:
    """Read rows [n, ...] of a tensor, without the rest of it. Raises WiringError as `read_tensor` does."""
    import torch

    with open_safetensors(_holder(folder, name)) as reader:
        part = reader.get_slice(name)
        return torch.cat([part[row : row + 1] for row in rows])


def _holder(folder: str | Path, name: str) -> Path:
    """Return the file that holds a tensor."""
    files = tensor_names(folder)
    if name not in files:
        example = f" such as {min(files)}" if files else ""
        raise WiringError(
            f"tensor {name} is missing",
            code="tensor-missing",
            where=folder,
            found=f"{len(files)} tensors{example}",
            remedy="Take a complete checkpoint of the model",
        )
    if name not in _names(files[name]):
        raise _not_in_shard(name, files[name])
    return files[name]


def _names(file: Path) -> list[str]:
    with open_safetensors(file) as reader:
        return list(reader.keys())


def _read_all(file: Path) -> dict[str, Tensor]:
    with open_safetensors(file) as reader:
        return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118


def _listed(index: Path) -> dict[str, Path]:
    listed = read_json(index, "the index of the weights").get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(shard, str) for shard in listed.values()):
        raise WiringError(
            "the index of the weights has no weight_map",
            code="index-without-weight-map",
            where=index,
            remedy="Copy it again",
        )
    return {name: index.parent / shard for name, shard in listed.items()}


def _check_index(listed: dict[str, Path], held: dict[Path, dict[str, Tensor]]) -> None:
    for name, shard in listed.items():
        if name not in held[shard]:
            raise _not_in_shard(name, shard)
    for shard, names in held.items():
        if extra := sorted(names.keys() - listed.keys()):
            raise WiringError(
                f"the shard holds tensor {extra[0]}, which the index does not list",
                code="tensor-not-in-index",
                where=shard,
                remedy="Copy index and shards again",
            )


def _not_in_shard(name: str, shard: Path) -> WiringError:
    return WiringError(
        f"the index lists tensor {name}, but the shard lacks it",
        code="tensor-not-in-shard",
        where=shard,
        remedy="Copy index and shards again",
    )


def _draft_state(file: Path) -> dict[str, Tensor]:
    """Read the draft's tensors of a SpecForge training checkpoint, or of a torch file that holds nothing else."""
    state = load_torch(file)
    if isinstance(state, dict) and _DRAFT_OF_STATE in state:
        state = state[_DRAFT_OF_STATE]
    elif file.name == TRAINING_STATE:
        raise WiringError(
            "the training checkpoint holds no draft",
            code="training-state-without-draft",
            where=file,
            expected=_DRAFT_OF_STATE,
            found=", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__,
        )
    return _only_tensors(state, file)


def _only_tensors(state: Any, file: Path) -> dict[str, Tensor]:
    import torch

    odd = [n for n, t in state.items() if not isinstance(t, torch.Tensor)] if isinstance(state, dict) else ["the file"]
    if odd:
        raise WiringError(
            "not a state dict of tensors",
            code="not-a-state-dict",
            where=file,
            expected="tensors by name",
            found=f"{odd[0]} is not a tensor",
        )
    return {str(name): tensor.detach().clone() for name, tensor in state.items()}  # not a view of the mapped file


def _no_weights(path: Path) -> WiringError:
    refuse_broken_link(path)
    inside = sorted(entry.parent.name for entry in path.glob(f"*/{TRAINING_STATE}"))
    return WiringError(
        "no weights here",
        code="weights-missing",
        where=path,
        expected=", ".join((SINGLE, INDEX, *_PICKLED)),
        found=f"training checkpoints {', '.join(inside[:4])}" if inside else "",
        remedy="Name one of the checkpoints" if inside else "Check the path",
    )
