"""What is kept beside the patched package: the original bytes, the record of the patch, the journal, and the lock.

All of it lies in `sglang/.wiring-patch/`, inside the package. There it goes where the package goes: into a container
layer, a copied environment, another user's account. A folder of the user's own (platformdirs) would lose the originals
on each of these ways, and would need a guess which record belongs to which copy. Whoever cannot write there cannot
patch either. No name in it can be imported, and git is told to ignore it.

The protocol is a redo journal. Every new content is on the disk, synced, before the journal names it; the journal is
synced before the first file is replaced; each file is replaced in one step. A journal that is found was therefore
decided upon, and what it says is done to its end. Without a journal nothing was replaced.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wiring.checkpoints.atomic import replacing
from wiring.errors import WiringError
from wiring.patch.source.sglang_tree import SglangTree

FOLDER = ".wiring-patch"
RECORD, JOURNAL, LOCK, CONTENTS = "record.json", "journal.json", "lock", "contents"
WAIT_SECONDS = 5.0


def sha256(data: bytes) -> str:
    """The name under which a content is kept."""
    return hashlib.sha256(data).hexdigest()


def content_of(path: Path) -> bytes | None:
    """A file's bytes, None where it is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class State:
    """The folder of one tree. Reading needs no lock; everything that writes is called under `locked`."""

    def __init__(self, tree: SglangTree):
        self.tree = tree
        self.folder = tree.package / FOLDER

    def record(self) -> dict[str, Any] | None:
        """What stands applied, None for nothing."""
        return self._read(RECORD)

    def journal(self) -> dict[str, Any] | None:
        """What was begun and not ended, None for nothing."""
        return self._read(JOURNAL)

    def left_over(self) -> bool:
        """Whether a killed call left something: a journal, or or what no record needs."""
        if not self.folder.is_dir():
            return False
        record = self.record()
        if record is None or self.journal() is not None:
            return True
        try:
            there = {path.name for path in (self.folder / CONTENTS).iterdir()}
        except FileNotFoundError:  # another process is just removing it
            return True
        return there != _needed(record) or any(self.folder.glob(".*.tmp"))

    def keep(self, data: bytes) -> str:
        """Store a content durably; return its name."""
        name = sha256(data)
        path = self.folder / CONTENTS / name
        if content_of(path) != data:
            write_durably(path, data)
        return name

    def content(self, name: str) -> bytes:
        """A kept content. Raises WiringError where it is gone or spoilt."""
        path = self.folder / CONTENTS / name
        data = content_of(path)
        if data is None or sha256(data) != name:
            raise WiringError(
                "a kept original is gone or changed",
                where=path,
                expected=f"SHA-256 {name}",
                found="no file" if data is None else sha256(data),
                remedy="Reinstall this release of SGLang",
            )
        return data

    def begin(self, journal: dict[str, Any]) -> None:
        """Decide: from here on the change is finished, whatever happens to this process."""
        write_durably(self.folder / JOURNAL, _json(journal))

    def end(self, record: dict[str, Any] | None) -> None:
        """Put the record in its final state, and then forget the journal."""
        if record is None:
            (self.folder / RECORD).unlink(missing_ok=True)
        else:
            write_durably(self.folder / RECORD, _json(record))
        sync_folder(self.folder)
        (self.folder / JOURNAL).unlink(missing_ok=True)
        sync_folder(self.folder)

    def tidy(self) -> None:
        """Remove what no record needs: contents, temporary files of a killed process, and without a record the folder.

        The last thing under the lock, which goes with the folder.
        """
        record = self.record()
        if self.journal() is not None:
            return
        if record is None:
            # The lock goes last: who waits for it looks again whether the file that it holds is still the one there.
            shutil.rmtree(self.folder / CONTENTS, ignore_errors=True)
            for path in sorted(self.folder.iterdir(), key=lambda path: path.name == LOCK):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # somebody came for the lock in this moment
                self.folder.rmdir()
            return
        for left in self.folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)
        for path in (self.folder / CONTENTS).iterdir():
            if path.name not in _needed(record):
                path.unlink(missing_ok=True)

    @contextmanager
    def locked(self, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Hold the tree's lock. Raises WiringError where another process keeps it longer than `wait_seconds`."""
        deadline = time.monotonic() + wait_seconds
        while True:
            handle = self._open_lock()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_the_lock(handle):
                    break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
                    os.close(handle)
                    raise WiringError(
                        "another process is patching this SGLang",
                        where=self.tree.package,
                        found=f"process {owner}" if owner else "a lock",
                        remedy="Wait until it has ended, and call again",
                    ) from None
                time.sleep(0.02)
            os.close(handle)
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(handle)

    def _open_lock(self) -> int:
        while True:
            try:
                self.folder.mkdir(exist_ok=True)
                ignore = self.folder / ".gitignore"
                if not ignore.exists():
                    ignore.write_text("*\n", encoding="utf-8")
                return os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except (FileNotFoundError, FileExistsError) as error:  # the owner of the lock just removed the folder
                not_a_folder = os.path.lexists(self.folder) and not self.folder.is_dir()
                if not_a_folder or not self.tree.package.is_dir():
                    raise read_only(self.tree.package, error) from error
            except OSError as error:
                raise read_only(self.tree.package, error) from error

    def _is_the_lock(self, handle: int) -> bool:
        try:
            there = os.stat(self.folder / LOCK)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(handle))

    def _read(self, name: str) -> dict[str, Any] | None:
        data = content_of(self.folder / name)
        if data is None:
            return None
        try:
            return json.loads(data)
        except ValueError as error:
            raise WiringError(
                "this file of the patch is spoilt",
                where=self.folder / name,
                found=str(error),
                remedy="Reinstall this release of SGLang and remove the folder",
            ) from None


def read_only(path: Path, error: OSError | None = None) -> WiringError:
    """The refusal for a package that this user cannot write."""
    return WiringError(
        "this SGLang cannot be written, so nothing was changed",
        where=path,
        expected="a folder that this user may write",
        found=error.strerror if error is not None and error.strerror else "read-only",
        remedy="Patch a copy and put it first on the server's PYTHONPATH, or call as the folder's owner",
    )


def write_durably(path: Path, data: bytes) -> None:
    """Write a whole file under a temporary name, sync it, replace, and sync the folder."""
    with replacing(path) as temporary:
        _write_synced(temporary, data)
    sync_folder(path.parent)


def replace_source(path: Path, data: bytes) -> None:
    """Replace a module: mode and owner stay, and no byte code of the old text can pass for that of the new one.

    A `.pyc` names its source by size and whole second of the modification time, so the new file's second is never
    that of the old one; files under `__pycache__` are removed too, since some are never compared (PEP 552).
    """
    old = path.stat()
    with replacing(path) as temporary:
        _write_synced(temporary, data)
        new = temporary.stat()
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            with suppress(PermissionError):  # only root may give a file away; the folder's owner may still patch
                os.chown(temporary, old.st_uid, old.st_gid)
        os.chmod(temporary, old.st_mode & 0o7777)
        if int(new.st_mtime) == int(old.st_mtime):
            later = new.st_mtime_ns + 1_000_000_000
            os.utime(temporary, ns=(later, later))
    sync_folder(path.parent)
    drop_byte_code(path)


def drop_byte_code(path: Path) -> None:
    """Remove the byte code of a module, of every Python and optimisation level."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink(missing_ok=True)


def drop_temporaries(path: Path) -> None:
    """Remove what a killed process left beside a file; only under the lock, where no other process writes."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _needed(record: dict[str, Any]) -> set[str]:
    """The contents that a record names."""
    return {name for file in record["files"] for name in (file["before"], file["after"])}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
