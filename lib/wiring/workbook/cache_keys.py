"""Cache keys of notebooks: digests over everything that a result depends on, and the done-marker.

A notebook's key covers its code cells and their tags, its parameters, the keys and artefacts of the notebooks before
it, the sources of the package, the input data and the versions of installed packages. The marker `NN.done.json` is
written after the notebook has run and its artefact was found valid.
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

_READ_WHOLE = (
    64 * 2**20
)  # larger files are identified by size and time: hashing a checkpoint of 600 GB would take an hour
_VERSIONS = ("sglang", "torch", "transformers", "numpy")


def digest(value: object) -> str:
    """Return the SHA-256 of the JSON of `value` with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content; above 64 MiB, of its size and modification time."""
    status = path.stat()
    if status.st_size > _READ_WHOLE:
        return digest([status.st_size, status.st_mtime_ns])
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree_digest(folder: Path, suffixes: tuple[str, ...] = ()) -> str:
    """Return the SHA-256 of names and contents of all files under `folder` (with one of `suffixes`, if given)."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and (not suffixes or path.suffix in suffixes)
    ]
    return digest([(path.relative_to(folder).as_posix(), file_digest(path)) for path in files])


def inputs_digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of files and folders, without their names."""
    return digest([tree_digest(path) if path.is_dir() else file_digest(path) for path in paths])


def profile_inputs(profile: Path, run: Path) -> tuple[Path, ...]:
    """Return the profile and every existing file and folder that a text value in it names, relative to it.

    The run folder, its parents and what is in it are left out. Raises WiringError: profile-unreadable.
    """
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    except OSError as error:
        raise WiringError(
            "the profile cannot be read", code="profile-unreadable", where=profile, found=error.strerror
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WiringError(
            "the profile is not YAML", code="profile-unreadable", where=profile, found=str(error).replace("\n", " ")
        ) from error
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
    except (OSError, RuntimeError):  # a name that is too long; a home folder that does not exist
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
    """Return the versions of the packages that a measurement depends on; "" for one that is not installed."""
    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def notebook_key(notebook, parameters: Mapping[str, object], upstream: str, surroundings: object) -> str:
    """Return the key of a notebook (an nbformat node): its code, parameters, `upstream` (step before), surroundings."""
    code = [[cell.source, sorted(cell.metadata.get("tags", []))] for cell in notebook.cells if cell.cell_type == "code"]
    return digest([code, dict(parameters), upstream, surroundings])


@dataclass(frozen=True)
class CacheEntry:
    """Content of `NN.done.json`: the notebook's key, and the files that it left (name to SHA-256)."""

    key: str
    files: dict[str, str]

    @property
    def passes_on(self) -> str:
        """Return what the next notebook's key holds of this one: a new artefact invalidates all later notebooks."""
        return digest([self.key, self.files])


def read_entry(path: Path) -> CacheEntry | None:
    """Return the marker at `path`; None where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return CacheEntry(content["key"], dict(content["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_entry(path: Path, entry: CacheEntry, **more: object) -> None:
    """Write the marker; `more` is for the reader and is not read back."""
    write_json(path, {"key": entry.key, "files": entry.files, **more})


def is_intact(entry: CacheEntry, run: Path) -> bool:
    """Return whether every file of the marker is unchanged."""
    return all((run / name).is_file() and file_digest(run / name) == value for name, value in entry.files.items())
