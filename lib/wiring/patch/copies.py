"""Copies that carry a fix: of the draft and, for the source kind, of the package sglang. Nothing else is written."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wiring.checkpoints.atomic import write_json
from wiring.checkpoints.copy_record import MARKER, CopyRecord, read_copy_record
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.resolve import served_layout
from wiring.engines.sglang import requested_ids
from wiring.errors import WiringError
from wiring.layers import Layout, Phase
from wiring.patch.fix_kinds import FixKind, with_ids
from wiring.patch.plan import Fix
from wiring.patch.source import Change, SglangTree, SiteCheck, check_sites, find_tree, prepare


@dataclass(frozen=True)
class AppliedFix:
    """A fix on disk: `folder` is what `remove_copy` removes.

    `draft` is the fixed copy of the draft, `sglang` the folder that comes first on the server's PYTHONPATH (None: the
    installed package serves), `environment` what the server needs, `checks` the edited sites read again.
    """

    folder: Path
    draft: Path
    sglang: Path | None
    environment: dict[str, str]
    checks: tuple[SiteCheck, ...] = ()

    @property
    def copies(self) -> tuple[Path, ...]:
        """Return the copies: of the draft, and of the package for the source kind."""
        return (self.draft,) if self.sglang is None else (self.draft, self.sglang / "sglang")

    @property
    def start_line(self) -> str:
        """Return the start of the command line of a server with this fix."""
        variables = {**self.environment, **({"PYTHONPATH": str(self.sglang)} if self.sglang else {})}
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
        command = "python -m sglang.launch_server --speculative-draft-model-path"
        return " ".join([*words, command, shlex.quote(str(self.draft)), "..."])


@dataclass(frozen=True)
class CopyCheck:
    """One property of a copy: whether it holds, and what was found."""

    what: str
    stands: bool
    text: str


def source_change(fix: Fix, tree: SglangTree) -> Change:
    """Return the edits of a source fix for `tree`. Raises WiringError (source-edit-refused)."""
    return prepare(tree, fix.family, {edit.site.name for edit in fix.edits})


def config_diff(draft: Path, fix: Fix) -> str:
    """Return the change of the draft's config.json as a unified diff, and the environment of the server."""
    config = read_json(draft / "config.json", "the draft's config")
    before, after = (json.dumps(one, indent=2).splitlines() for one in (config, with_ids(config, fix.ids)))
    lines = list(
        difflib.unified_diff(before, after, "config.json (as it is)", f"config.json ({fix.form})", lineterm="")
    )
    if fix.environment:
        lines += ["", "environment of the server process:"]
        lines += [f"+ {name}={value}" for name, value in sorted(fix.environment.items())]
    return "\n".join(lines)


def fix_diff(draft: Path, fix: Fix, tree: SglangTree) -> str:
    """Return the whole change as text. Raises WiringError (source-edit-refused)."""
    text = config_diff(draft, fix)
    return f"{text}\n\n{source_change(fix, tree).diff()}" if fix.edits else text


def apply_fix(draft: Path, fix: Fix, folder: Path, layout: Layout, tree: SglangTree | None = None) -> AppliedFix:
    """Write the copies that carry `fix` to `folder`, replacing an older copy of ours.

    For the kinds config and plugin `folder` is the fixed copy of the draft; for source it holds `draft/` and `sglang/`,
    a copy of the package of `tree` (default: the installed one) with changed files written and all others linked.
    `layout`: the boundaries that the draft was trained on, kept in the copy's record.

    Raises WiringError: copy-inside-draft, not-our-copy, copy-not-writable, source-edit-refused, copy-incomplete. Then
    nothing is left.
    """
    check_destination(draft, folder)
    draft, folder = draft.resolve(), folder.resolve()
    change = source_change(fix, tree or find_tree()) if fix.edits else None

    def fill(building: Path) -> None:
        _copy_draft(draft, fix, building / "draft" if change else building, layout)
        if change:
            write_json(building / MARKER, _record(draft, fix, layout))
            copy_package(change, building / "sglang")
            _check_package(building, change)

    _build(folder, fill)
    if change is None:
        return AppliedFix(folder, folder, None, dict(fix.environment))
    checks = check_sites(find_tree(folder), change.edits)
    return AppliedFix(folder, folder / "draft", folder, dict(fix.environment), checks)


@contextmanager
def applied_fix(
    draft: Path, fix: Fix, folder: Path, layout: Layout, tree: SglangTree | None = None
) -> Iterator[AppliedFix]:
    """Apply a fix temporarily: `apply_fix`, and `remove_copy` at the end of the block, also after an error."""
    made = apply_fix(draft, fix, folder, layout, tree)
    try:
        yield made
    finally:
        remove_copy(made.folder)


def remove_copy(folder: Path) -> None:
    """Remove what `apply_fix` wrote. Raises WiringError (not-our-copy) for any other folder, which stays untouched."""
    folder, remedy = folder.resolve(), "Name the folder of a fixed copy"
    try:
        with _locked(folder.parent):
            if not _is_ours(folder, remedy):
                raise _not_ours(folder, remedy)
            _remove(folder)
    except OSError as error:
        raise WiringError(
            "the fixed copy cannot be removed", code="copy-not-removable", where=folder, found=error.strerror or error
        ) from error


def check_destination(draft: Path, folder: Path) -> None:
    """Raise WiringError where `apply_fix` would write into the draft itself or over a folder that is not ours."""
    inside, destination = draft.resolve(), folder.resolve()
    if inside == destination or inside in destination.parents:
        raise WiringError(
            "a fixed copy cannot be written into the draft itself",
            code="copy-inside-draft",
            where=folder,
            remedy="Choose another folder",
        )
    if destination.parent.is_dir():
        with _locked(destination.parent):
            _is_ours(folder, "Choose a folder that does not exist yet")


def copy_package(change: Change, package: Path) -> None:
    """Write a copy of the change's package to the folder `package`: changed files written, all others as symlinks.

    Real folders with linked files, so that `__file__` and byte code belong to the copy and nothing of the original is
    ever written through it.
    """
    written = {change.tree.package / file.path: file.after for file in change.files}
    for folder, folders, names in os.walk(change.tree.package):
        here, there = Path(folder), package / Path(folder).relative_to(change.tree.package)
        there.mkdir(parents=True, exist_ok=True)
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in [name for name in folders if (here / name).is_symlink()]:
            (there / name).symlink_to((here / name).resolve())
        for name in names:
            if here / name in written:
                (there / name).write_bytes(written[here / name])
                shutil.copymode(here / name, there / name)
            elif not name.endswith(".pyc"):
                (there / name).symlink_to((here / name).resolve())


def verify_copy(
    folder: Path, version: str, target_config: Mapping[str, Any], *, cuda_graphs: bool = True
) -> tuple[CopyRecord, tuple[CopyCheck, ...]]:
    """Return the record of the copy at `folder` and the checks of its draft, on SGLang `version` and this target.

    Raises WiringError (not-our-copy, and as reading its config and the engine's rules do).
    """
    record = read_copy_record(folder)
    if record is None:
        raise _not_ours(folder, "Name the folder of a fixed copy")
    copy = folder / "draft" if (folder / "draft" / MARKER).is_file() else folder
    config = read_json(copy / "config.json", "the copy's config")
    ids = requested_ids(config)
    gone = sorted(entry.name for entry in copy.iterdir() if not entry.exists())
    checks = [
        CopyCheck("layer ids of the copy", ids == record.ids, f"{ids}, written were {record.ids}"),
        CopyCheck("files of the draft that it links to", not gone, f"gone: {', '.join(gone)}" if gone else "all there"),
        _original(record),
    ]
    if record.form != FixKind.SOURCE and record.layout is not None:
        plugin = record.form == FixKind.PLUGIN
        served = served_layout(
            "sglang", version, target_config, config, cuda_graphs=cuda_graphs, embedding_plugin=plugin
        )
        by_phase = ", ".join(f"{phase} {served[phase]}" for phase in Phase)
        right = all(served[phase] == record.layout for phase in Phase)
        checks.append(
            CopyCheck(f"layout by the rules of SGLang {version}", right, f"{by_phase}; trained {record.layout}")
        )
    return record, tuple(checks)


def config_digest(draft: Path) -> str:
    """Return the SHA-256 of the draft's config.json: equal before and after, the user's file was not written."""
    return hashlib.sha256((draft / "config.json").read_bytes()).hexdigest()


def _check_package(folder: Path, change: Change) -> None:
    missing = [str(one.site) for one in check_sites(find_tree(folder), change.edits) if not one.stands]
    if missing:
        raise WiringError(
            "the copy of the package lacks an edit, because the file is in a linked folder",
            code="copy-incomplete",
            where=change.tree.package,
            found=f"missing: {'; '.join(missing)}",
            remedy="Replace the linked folder by a real one",
        )


def _copy_draft(draft: Path, fix: Fix, folder: Path, layout: Layout) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in sorted(draft.iterdir()):
        if entry.name not in ("config.json", MARKER):
            (folder / entry.name).symlink_to(entry.resolve())
    write_json(folder / "config.json", with_ids(read_json(draft / "config.json", "the draft's config"), fix.ids))
    write_json(folder / MARKER, _record(draft, fix, layout))


def _record(draft: Path, fix: Fix, layout: Layout) -> dict[str, Any]:
    return CopyRecord(
        source=str(draft),
        source_config_sha256=config_digest(draft),
        form=str(fix.form),
        ids=fix.ids,
        layout=layout,
        environment=dict(fix.environment),
    ).model_dump(mode="json")


def _original(record: CopyRecord) -> CopyCheck:
    what, path = "config of the draft itself", Path(record.source) / "config.json"
    if not path.is_file():
        return CopyCheck(what, False, f"{path} is gone")
    same = config_digest(path.parent) == record.source_config_sha256
    return CopyCheck(what, same, "unchanged" if same else f"{path} changed since the copy was made")


def _build(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `folder` and put it in place at once; a killed call leaves the old copy, or none."""
    building = _beside(folder, "new")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            for leftover in (building, _beside(folder, "old")):  # of a call that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            try:
                building.mkdir()
                fill(building)
                if _is_ours(folder, "Choose a folder that does not exist yet"):
                    _remove(folder)
                building.rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise WiringError(
            "the fixed copy cannot be written", code="copy-not-writable", where=folder, found=error.strerror or error
        ) from error


def _remove(folder: Path) -> None:
    leaving = _beside(folder, "old")
    shutil.rmtree(leaving, ignore_errors=True)
    folder.rename(leaving)  # first, so that an interrupted removal never leaves files without their record
    shutil.rmtree(leaving)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change the copies in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}.tmp")


def _is_ours(folder: Path, remedy: str) -> bool:
    """Return whether a fixed copy is there, False for nothing. Raises WiringError (not-our-copy) for anything else."""
    if (folder / MARKER).is_file():
        return True
    if folder.exists():
        raise _not_ours(folder, remedy)
    return False


def _not_ours(folder: Path, remedy: str) -> WiringError:
    return WiringError(
        "not a fixed copy made by this workbook, so it is not touched",
        code="not-our-copy",
        where=folder,
        expected=f"a folder with {MARKER}",
        remedy=remedy,
    )
