"""Which files of a path are training states, in which order; the folder is walked once and nothing big is opened."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wiring.checkpoints.states.dataset_rows import STATE
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError

SUFFIXES = (".ckpt", ".ckpt.gz", ".pt", ".pt.gz")
# what trainers put beside their states: vocabulary maps, token counts, the trainer's own state
_BESIDE = {"vocab_mapping.pt", "token_freq.pt", "d2t.pt", "t2d.pt", "training_state.pt"}
_ROW = re.compile(r"hs_(\d+)\.safetensors")
_TORCHSPEC, _MANIFEST = "dataset.json", "manifest.jsonl"


@dataclass(frozen=True)
class Listing:
    """The files of `path`. `dataset` is the folder of the Arrow rows that current speculators' files belong to.

    `ids` are the data ids by file and `prenorm` the norm that TorchSpec wrote down; `problems` are files that could
    not even be listed.
    """

    path: Path
    files: tuple[Path, ...]
    dataset: Path | None = None
    prenorm: bool | None = None
    ids: dict[Path, str] = field(default_factory=dict)
    problems: tuple[WiringError, ...] = ()


def list_states(path: str | Path) -> Listing:
    """List a folder of training states, or one file, by number (data_2 before data_10; TorchSpec: as written).

    Raises WiringError when there is nothing, or when two formats lie in one folder.
    """
    path = Path(path)
    if path.is_file():
        return _one(path)
    if not path.exists():
        raise WiringError("the folder of training states does not exist", where=path, remedy="Check the path")
    root = path.parent if _is_root(path.parent) and path.name in ("samples", "hidden_states") else path
    if (root / "dataset_dict.json").exists():
        raise WiringError("several splits of a dataset lie here", where=root, remedy="Name the folder of one split")
    files = sorted(_walk(root), key=lambda file: _natural(str(file.relative_to(root))))
    rows = [file for file in files if _ROW.fullmatch(file.name)]
    others = [file for file in files if not _ROW.fullmatch(file.name)]
    torchspec = _is_torchspec(root)
    if rows and others:
        raise mixed(rows[0], "speculators", others[0], "a file of another trainer")
    if (root / STATE).exists() and (torchspec or others):
        raise mixed(root / STATE, "speculators", root / _TORCHSPEC if torchspec else others[0], "another trainer's")
    if torchspec:
        listing = _manifest(root)
    else:
        listing = Listing(path, tuple(rows or others), _dataset_of(rows[0]) if rows else None)
    if not listing.files and not listing.problems:
        raise WiringError(
            "no training states here",
            where=path,
            expected="rows_*/data_*.ckpt or .ckpt.gz, *.pt, hidden_states/hs_*.safetensors, or manifest.jsonl",
            remedy="A dataset was prepared here, but no hidden states were generated"
            if (root / STATE).exists()
            else "",
        )
    return listing


def state_files(folder: str | Path) -> list[Path]:
    """Every file of training states below `folder`, in order; see `list_states`."""
    return list(list_states(folder).files)


def row_number(file: Path) -> int:
    """The dataset row of hs_{row}.safetensors. Raises WiringError for another name."""
    match = _ROW.fullmatch(file.name)
    if not match:
        raise WiringError(
            "the name does not say which row of the dataset this is", where=file, expected="hs_<row>.safetensors"
        )
    return int(match[1])


def mixed(one: object, one_kind: str, other: object, other_kind: str) -> WiringError:
    """The error for two formats in one folder."""
    return Contradiction(
        f"training states of different kinds lie together: {one} is {one_kind}, {other} is {other_kind}",
        remedy="Give each its own folder, and name one",
    )


class Contradiction(WiringError):
    """Two statements about one folder that cannot both hold: never skipped, for nobody can say which one is meant."""


def _one(path: Path) -> Listing:
    if path.name.endswith(".safetensors"):
        return Listing(path, (path,), _dataset_of(path))
    root = path.parent.parent
    if path.parent.name == "samples" and _is_torchspec(root):
        return Listing(path, (path,), prenorm=_prenorm(root))
    return Listing(path, (path,))


def _is_root(folder: Path) -> bool:
    return (folder / STATE).exists() or _is_torchspec(folder)


def _is_torchspec(folder: Path) -> bool:
    return (folder / _TORCHSPEC).exists() and (folder / _MANIFEST).exists()


def _dataset_of(file: Path) -> Path:
    row_number(file)
    for folder in (file.parent.parent, file.parent):
        if (folder / STATE).exists():
            return folder
    raise WiringError(
        "the dataset that these hidden states belong to is not here, and the loss mask is in it",
        where=file,
        expected=f"{file.parent.parent / STATE}",
        remedy="Put the hidden_states folder into the folder that the data was prepared in",
    )


def _walk(root: Path) -> Iterator[Path]:
    seen = set()  # so that a link back up ends
    for folder, inner, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        inner[:] = [] if real in seen else [name for name in inner if not name.startswith(".")]
        if real in seen:
            continue
        seen.add(real)
        for name in names:
            if name.startswith(".") or name in _BESIDE:
                continue
            if name.endswith(SUFFIXES) or _ROW.fullmatch(name):
                yield Path(folder, name)


def _natural(text: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def _prenorm(root: Path) -> bool | None:
    value = read_json(root / _TORCHSPEC, "TorchSpec's description").get("last_hidden_states_prenorm")
    if value is not None and not isinstance(value, bool):
        raise WiringError(
            "last_hidden_states_prenorm is neither true nor false", where=root / _TORCHSPEC, found=repr(value)
        )
    return value


def _manifest(root: Path) -> Listing:
    """TorchSpec's samples of all splits, in the order in which they were saved."""
    prenorm, manifest = _prenorm(root), root / _MANIFEST
    ids: dict[Path, str] = {}
    problems = []
    for number, line in enumerate(manifest.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            file, data_id = root / entry["file"], str(entry["data_id"])
            inside = file.resolve().is_relative_to(root.resolve())
        except (ValueError, TypeError, KeyError):
            inside = False
        if not inside:
            problems.append(
                WiringError(
                    "this line of the manifest names no sample",
                    where=f"{manifest}, line {number}",
                    expected="split, data_id, and a file in this folder",
                    found=repr(line[:80]),
                )
            )
            continue
        ids[file] = data_id
    return Listing(root, tuple(ids), prenorm=prenorm, ids=ids, problems=tuple(problems))
