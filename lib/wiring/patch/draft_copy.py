"""Preview, apply and undo a cure on a copy of the draft: the reader's own files are never written."""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from wiring.checkpoints.atomic import write_json
from wiring.checkpoints.copy_record import MARKER, CopyRecord
from wiring.errors import WiringError
from wiring.layers import Layout
from wiring.patch.fix_kinds import with_ids

_LOOKS = 5  # at a folder that another process may be exchanging
_UNDO = "Name the folder of a cured copy"


class DraftChange(Protocol):
    """What a cure asks of the draft: its ids, under which form, and what the server's environment needs."""

    @property
    def form(self) -> str: ...

    @property
    def ids(self) -> tuple[int, ...]: ...

    @property
    def environment(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class PatchedDraft:
    """A cured copy of a draft: its folder, the folder it came from, and the environment its server needs."""

    folder: Path
    source: Path
    environment: dict[str, str]


def preview(draft: Path, cure: DraftChange) -> str:
    """The change to the draft's config.json as a unified diff, and the environment; nothing is written."""
    before = (draft / "config.json").read_text(encoding="utf-8")
    config = json.loads(before)
    diff = difflib.unified_diff(
        _pretty(config),
        _pretty(with_ids(config, cure.ids)),
        "config.json (as it is)",
        f"config.json ({cure.form})",
        "",
        "",
    )
    lines = [line.rstrip() for line in diff]
    if cure.environment:
        lines += ["", "environment of the server process:"]
        lines += [f"+ {name}={value}" for name, value in sorted(cure.environment.items())]
    return "\n".join(lines)


def apply(draft: Path, cure: DraftChange, folder: Path, layout: Layout) -> PatchedDraft:
    """Make a cured copy of `draft` at `folder`: tensors by link, config.json written anew.

    `layout` are the boundaries that the draft was trained on; the copy records them, for its config cannot.

    Raises WiringError when `folder` exists and is not a copy that this function made, lies inside `draft`, or cannot be
    written. Killed at any point it leaves the old copy, the new one or none, and the next call removes the rest.
    """
    check_goal(draft, folder)
    draft, folder = draft.resolve(), folder.resolve()
    building = _beside(folder, "new")
    try:
        _sweep(folder)
        building.mkdir(parents=True)
        for entry in sorted(draft.iterdir()):
            if entry.name not in ("config.json", MARKER):
                (building / entry.name).symlink_to(entry.resolve())
        config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
        write_json(building / "config.json", with_ids(config, cure.ids))
        record = CopyRecord(
            source=str(draft),
            source_config_sha256=config_digest(draft),
            form=str(cure.form),
            ids=cure.ids,
            layout=layout,
            environment=dict(cure.environment),
        )
        write_json(building / MARKER, record.model_dump(mode="json"))
        _put(building, folder)
    except OSError as error:
        raise WiringError("the cured copy cannot be written", where=folder, found=error.strerror or error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return PatchedDraft(folder=folder, source=draft, environment=dict(cure.environment))


def check_goal(draft: Path, folder: Path) -> None:
    """Raise WiringError where `apply` makes no copy of `draft`: in the draft itself, and over a folder of others."""
    draft, goal = draft.resolve(), folder.resolve()
    if draft == goal or draft in goal.parents:
        raise WiringError("a cured copy cannot lie in the draft itself", where=folder, remedy="Choose another folder")
    _check_ours(folder)


def undo(folder: Path) -> None:
    """Remove a cured copy. Raises WiringError when `folder` is not one, and then touches nothing."""
    if not _check_ours(folder, _UNDO):
        raise _not_ours(folder, _UNDO)
    folder = folder.resolve()
    try:
        _sweep(folder)
        _remove(folder)
    except OSError as error:
        raise WiringError("the cured copy cannot be removed", where=folder, found=error.strerror or error) from error


def _put(building: Path, folder: Path) -> None:
    """Put a new copy in the place of an old one, or of none; another process may be doing the same."""
    while True:
        if _check_ours(folder):
            _remove(folder)
        try:
            os.rename(building, folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _remove(folder: Path) -> None:
    leaving = _beside(folder, "old")
    with suppress(FileNotFoundError):  # another process was faster
        os.rename(folder, leaving)  # at once: a copy that is half removed would be nobody's
        shutil.rmtree(leaving)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{os.getpid()}.{what}.tmp")


def _sweep(folder: Path) -> None:
    """Remove what killed processes left beside the copy."""
    for left in folder.parent.glob(f".{folder.name}.*.tmp"):
        process = left.name.removeprefix(f".{folder.name}.").split(".")[0]
        if process.isdecimal() and (int(process) == os.getpid() or not psutil.pid_exists(int(process))):
            shutil.rmtree(left, ignore_errors=True)


def _check_ours(folder: Path, remedy: str = "Choose a folder that does not exist yet") -> bool:
    """Whether a cured copy stands there, False for nothing; raises WiringError for anything else."""
    for _ in range(_LOOKS):
        if (folder / MARKER).is_file():
            return True
        if not folder.exists():
            return False
        time.sleep(0.002)  # another process may have put its copy there between the two looks
    raise _not_ours(folder, remedy)


def _not_ours(folder: Path, remedy: str) -> WiringError:
    return WiringError(
        "not a cured copy made by this workbook, so it is left alone",
        where=folder,
        expected=f"a folder with {MARKER}",
        found="none",
        remedy=remedy,
    )


def config_digest(draft: Path) -> str:
    """SHA-256 of the draft's config.json: equal before and after, the reader's file was left alone."""
    return hashlib.sha256((draft / "config.json").read_bytes()).hexdigest()


def _pretty(config: dict) -> list[str]:
    return json.dumps(config, indent=2).splitlines(keepends=True)
