"""Preview, apply and undo a cure on a copy of the draft: the reader's own files are never written."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wiring.errors import WiringError
from wiring.files.atomic import write_json
from wiring.patch.forms import with_ids

MARKER = ".wiring-patch.json"


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


def apply(draft: Path, cure: DraftChange, folder: Path) -> PatchedDraft:
    """Make a cured copy of `draft` at `folder`: tensors by link, config.json written anew.

    Raises WiringError when `folder` exists and is not a copy that this function made, or lies inside `draft`.
    """
    draft, folder = draft.resolve(), folder.absolute()
    if draft == folder.resolve() or draft in folder.resolve().parents:
        raise WiringError("a cured copy cannot lie in the draft itself", where=folder, remedy="Choose another folder")
    if folder.exists():
        undo(folder)
    building = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        building.mkdir(parents=True)
        for entry in sorted(draft.iterdir()):
            if entry.name not in ("config.json", MARKER):
                (building / entry.name).symlink_to(entry.resolve())
        config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
        write_json(building / "config.json", with_ids(config, cure.ids))
        write_json(
            building / MARKER,
            {"source": str(draft), "source_config_sha256": config_digest(draft), "ids": list(cure.ids)},
        )
        os.replace(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return PatchedDraft(folder=folder, source=draft, environment=dict(cure.environment))


def undo(folder: Path) -> None:
    """Remove a cured copy. Raises WiringError when `folder` is not one, and then touches nothing."""
    if not (folder / MARKER).is_file():
        raise WiringError(
            "not a cured copy made by this workbook, so it is left alone",
            where=folder,
            expected=f"a folder with {MARKER}",
            found="none",
            remedy="Choose a folder that does not exist yet",
        )
    shutil.rmtree(folder)


def config_digest(draft: Path) -> str:
    """SHA-256 of the draft's config.json: equal before and after, the reader's file was left alone."""
    return hashlib.sha256((draft / "config.json").read_bytes()).hexdigest()


def _pretty(config: dict) -> list[str]:
    return json.dumps(config, indent=2).splitlines(keepends=True)
