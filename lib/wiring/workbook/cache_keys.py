"""When a notebook need not run again: keys over everything its result depends on, and the done-marker.

A notebook's key covers its code cells and their tags, its parameters, what stands upstream (key and
artefacts), the sources of the package, the input data and the versions of what is installed. The
marker `NN.done.json` is written only after the notebook ran and its artefact was found valid.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from wiring.checkpoints.atomic import write_json
from wiring.errors import WiringError

_READ_WHOLE = 64 * 2**20  # a larger file is known by size and time: hashing a checkpoint of 600 GB would take an hour
_VERSIONS = ("sglang", "torch", "transformers", "numpy")


def digest(value: object) -> str:
    """sha256 over the JSON of `value` with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's content; for one above 64 MiB, of its size and modification time."""
    status = path.stat()
    if status.st_size > _READ_WHOLE:
        return digest([status.st_size, status.st_mtime_ns])
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree_digest(folder: Path, suffixes: tuple[str, ...] = ()) -> str:
    """sha256 over relative names and contents of all files under `folder` (with one of `suffixes`, if given)."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and (not suffixes or path.suffix in suffixes)
    ]
    return digest([(path.relative_to(folder).as_posix(), file_digest(path)) for path in files])


def inputs_digest(paths: Iterable[Path]) -> str:
    """sha256 over the contents of files and folders, whatever they are called."""
    return digest([tree_digest(path) if path.is_dir() else file_digest(path) for path in paths])


def profile_inputs(profile: Path, run: Path) -> tuple[Path, ...]:
    """The profile itself and every file and folder that a text value in it names, relative to it.

    The run folder, and whatever holds it or lies in it, is output and left out.
    """
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    except OSError as error:
        raise WiringError("the profile cannot be read", where=profile, found=error.strerror) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WiringError("the profile is not YAML", where=profile, found=str(error).replace("\n", " ")) from error
    run = run.resolve()
    found = {profile.resolve()}
    for text in _texts(content):
        path = _named(profile.parent, text)
        if path is not None and path != run and path not in run.parents and run not in path.parents:
            found.add(path)
    return tuple(sorted(found))


def _named(folder: Path, text: str) -> Path | None:
    if not text.strip(" ./") or "\0" in text:
        return None
    try:
        path = (folder / Path(text).expanduser()).resolve()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # longer than a name can be; a home folder that does not exist
        return None


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def installed_versions() -> dict[str, str]:
    """The versions of the packages that a measurement depends on; "" for one that is not installed."""
    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def notebook_key(notebook, parameters: Mapping[str, object], upstream: str, surroundings: object) -> str:
    """The key of a notebook (an nbformat node) under these parameters, behind `upstream`, in these surroundings."""
    code = [[cell.source, sorted(cell.metadata.get("tags", []))] for cell in notebook.cells if cell.cell_type == "code"]
    return digest([code, dict(parameters), upstream, surroundings])


@dataclass(frozen=True)
class Done:
    """What `NN.done.json` says: under `key` the notebook ended and left `files` (name to sha256)."""

    key: str
    files: dict[str, str]

    @property
    def passes_on(self) -> str:
        """What the next notebook's key holds of this one: a new artefact makes everything behind it new."""
        return digest([self.key, self.files])


def read_done(path: Path) -> Done | None:
    """The marker at `path`, or None where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Done(content["key"], dict(content["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_done(path: Path, done: Done, **more: object) -> None:
    """Write the marker whole; `more` is for the reader and not read back."""
    write_json(path, {"key": done.key, "files": done.files, **more})


def still_stands(done: Done, run: Path) -> bool:
    """Whether every file that the marker names is there as it was left."""
    return all((run / name).is_file() and file_digest(run / name) == value for name, value in done.files.items())
