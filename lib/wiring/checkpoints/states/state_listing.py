"""List the files of training states in a folder, in order, and read what the folder records about them.

The folder is walked once, and no file of states is opened. `boundaries.json` in the folder (the sidecar) names the
boundary in each stored slot, which no trainer writes down.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from wiring.checkpoints.atomic import write_json
from wiring.checkpoints.config_fields import read_fields
from wiring.checkpoints.file_loading import read_json
from wiring.checkpoints.states.dataset_rows import STATE
from wiring.checkpoints.states.state_sample import Norm
from wiring.errors import WiringError
from wiring.layers import Layout, check_layout

SIDECAR = "boundaries.json"
_SUFFIXES = (".ckpt", ".ckpt.gz", ".pt", ".pt.gz")
# Files that trainers put next to their states: vocabulary maps, token counts, the trainer's own state.
_OTHER_FILES = {"vocab_mapping.pt", "token_freq.pt", "d2t.pt", "t2d.pt", "training_state.pt"}
_ROW = re.compile(r"hs_(\d+)\.safetensors")
_INNER = re.compile(r"rows_\d+-\d+|samples|hidden_states")  # folders that trainers put inside the folder of states
_TORCHSPEC, _MANIFEST = "dataset.json", "manifest.jsonl"


class ContradictoryStates(WiringError):
    """Two statements about one folder that exclude each other; never skipped, because either may be meant."""


class Sidecar(BaseModel):
    """The content of boundaries.json; `norm` is None if it does not state the norm of the last hidden state."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    boundaries: Layout
    norm: Norm | None = None


@dataclass(frozen=True)
class Listing:
    """The files of `path`, and what the folder records.

    `dataset` is the folder of the Arrow rows of current speculators. `ids` are data ids by file and `prenorm` the norm
    flag, both from TorchSpec. `problems` are files that could not be listed.
    """

    path: Path
    files: tuple[Path, ...]
    dataset: Path | None = None
    prenorm: bool | None = None
    ids: dict[Path, str] = field(default_factory=dict)
    problems: tuple[WiringError, ...] = ()


def write_sidecar(folder: str | Path, boundaries: Sequence[int], norm: Norm | None = None) -> Path:
    """Name the stored slots of the training states in `folder`, and the norm of the last hidden state if known."""
    return write_json(Path(folder) / SIDECAR, {"boundaries": list(boundaries)} | ({"norm": norm} if norm else {}))


def find_sidecar(path: Path) -> tuple[Path, Sidecar] | None:
    """Return path and content of the sidecar of a folder of states or of one of its files; None if there is none.

    Raises WiringError if the file is not {"boundaries": [0, 3, 31], "norm": "post" or "pre"}.
    """
    folder = path if path.is_dir() else path.parent
    folders = [folder, folder.parent] if _INNER.fullmatch(folder.name) else [folder]
    place = next((folder / SIDECAR for folder in folders if (folder / SIDECAR).exists()), None)
    if place is None:
        return None
    held = read_fields(Sidecar, read_json(place, "the list of stored boundaries"), place)
    if not held.boundaries or held.norm == "undecided":
        raise WiringError(
            "the list of stored boundaries is empty, or its norm is unknown",
            code="sidecar-invalid",
            where=place,
            expected='{"boundaries": [0, 3, 31], "norm": "post" or "pre"}',
            found=held.model_dump(),
        )
    check_layout(held.boundaries, where=place)
    return place, held


def list_states(path: str | Path) -> Listing:
    """List a folder of training states, or one file, by number (data_2 before data_10; TorchSpec: in saved order).

    Raises WiringError if there is nothing, or if files of two formats are in one folder.
    """
    path = Path(path)
    if path.is_file():
        return _one_file(path)
    if not path.exists():
        raise WiringError(
            "the folder of training states does not exist",
            code="states-folder-missing",
            where=path,
            remedy="Check the path",
        )
    parent_is_root = (path.parent / STATE).exists() or _is_torchspec(path.parent)
    root = path.parent if parent_is_root and path.name in ("samples", "hidden_states") else path
    if (root / "dataset_dict.json").exists():
        raise WiringError(
            "the folder holds several splits of a dataset",
            code="states-several-splits",
            where=root,
            remedy="Name the folder of one split",
        )
    files = sorted(_walk(root), key=lambda file: _natural(str(file.relative_to(root))))
    rows = [file for file in files if _ROW.fullmatch(file.name)]
    others = [file for file in files if not _ROW.fullmatch(file.name)]
    torchspec, prepared = _is_torchspec(root), (root / STATE).exists()
    if (rows or prepared) and (others or torchspec):
        other = others[0] if others else root / _TORCHSPEC
        raise mixed(rows[0] if rows else root / STATE, "speculators", other, "from another trainer")
    if torchspec:
        listing = _manifest(root)
    else:
        listing = Listing(path, tuple(rows or others), _dataset_of(rows[0]) if rows else None)
    if not listing.files and not listing.problems:
        raise WiringError(
            "no training states here",
            code="states-missing",
            where=path,
            expected="rows_*/data_*.ckpt or .ckpt.gz, *.pt, hidden_states/hs_*.safetensors, or manifest.jsonl",
            found="a prepared dataset without hidden states" if prepared else "",
            remedy="Generate the hidden states" if prepared else "Check the path",
        )
    return listing


def row_number(file: Path) -> int:
    """Return the dataset row of hs_{row}.safetensors. Raises WiringError for another name."""
    match = _ROW.fullmatch(file.name)
    if not match:
        raise WiringError(
            "the name does not contain the row of the dataset",
            code="states-name-without-row",
            where=file,
            expected="hs_<row>.safetensors",
        )
    return int(match[1])


def mixed(one: object, one_format: str, other: object, other_format: str) -> ContradictoryStates:
    """Return the error for two formats in one folder."""
    return ContradictoryStates(
        "one folder holds training states of different formats",
        code="states-formats-mixed",
        where=other,
        expected=f"{one_format} as {one}",
        found=other_format,
        remedy="Give each its own folder, and name one",
    )


def _one_file(path: Path) -> Listing:
    if path.name.endswith(".safetensors"):
        return Listing(path, (path,), _dataset_of(path))
    root = path.parent.parent
    torchspec = path.parent.name == "samples" and _is_torchspec(root)
    return Listing(path, (path,), prenorm=_prenorm(root) if torchspec else None)


def _is_torchspec(folder: Path) -> bool:
    return (folder / _TORCHSPEC).exists() and (folder / _MANIFEST).exists()


def _dataset_of(file: Path) -> Path:
    row_number(file)
    for folder in (file.parent.parent, file.parent):
        if (folder / STATE).exists():
            return folder
    raise WiringError(
        "the dataset of these hidden states, which holds the loss mask, is missing",
        code="states-dataset-missing",
        where=file,
        expected=f"{file.parent.parent / STATE}",
        remedy="Move the hidden_states folder into the folder of the prepared data",
    )


def _walk(root: Path) -> Iterator[Path]:
    seen = set()  # ends at a link to a parent
    for folder, inner, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        inner[:] = [] if real in seen else [name for name in inner if not name.startswith(".")]
        for name in names if real not in seen else ():
            if not name.startswith(".") and name not in _OTHER_FILES:
                if name.endswith(_SUFFIXES) or _ROW.fullmatch(name):
                    yield Path(folder, name)
        seen.add(real)


def _natural(text: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def _prenorm(root: Path) -> bool | None:
    value = read_json(root / _TORCHSPEC, "TorchSpec's description").get("last_hidden_states_prenorm")
    if value not in (None, True, False):
        raise WiringError(
            "last_hidden_states_prenorm is neither true nor false",
            code="states-prenorm-invalid",
            where=root / _TORCHSPEC,
            found=repr(value),
        )
    return value


def _manifest(root: Path) -> Listing:
    """List TorchSpec's samples of all splits, in the order in which they were saved."""
    ids: dict[Path, str] = {}
    problems = []
    lines = (root / _MANIFEST).read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            file, data_id = root / entry["file"], str(entry["data_id"])
            inside = file.resolve().is_relative_to(root.resolve())
        except (ValueError, TypeError, KeyError):
            inside = False
        if inside:
            ids[file] = data_id
            continue
        problem = WiringError(
            "this line of the manifest names no sample",
            code="manifest-line-invalid",
            where=f"{root / _MANIFEST}, line {number}",
            expected="split, data_id, and a file in this folder",
            found=repr(line[:80]),
        )
        problems.append(problem)
    return Listing(root, tuple(ids), prenorm=_prenorm(root), ids=ids, problems=tuple(problems))
