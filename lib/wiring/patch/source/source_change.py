"""Prepare, preview, apply and undo source edits on a tree, all files or none, and say how a tree stands.

Killed at any point, a change is found by the next call of `apply`, `undo` or `recover`, which takes it to its end
(`state` tells how). A file is replaced, never written in place: a hard link that it shares with a package cache is
broken and the cache stays; a symbolic link stays, and the file that it leads to is replaced.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import wiring
from wiring.errors import WiringError
from wiring.patch.source.edit_site import Edit, Refusal, read_text
from wiring.patch.source.needed_edits import Rewritten, needed_edits, rewrite
from wiring.patch.source.patch_state import (
    State,
    content_of,
    drop_byte_code,
    drop_temporaries,
    read_only,
    replace_source,
    sha256,
)
from wiring.patch.source.sglang_tree import SglangTree

FORMAT = 1


class Standing(StrEnum):
    """How a tree stands to the patch that was recorded in it."""

    NONE = "none"  # no patch is recorded
    APPLIED = "applied"  # every file has the patched bytes
    CHANGED = "changed"  # somebody changed a patched file since
    REPLACED = "replaced"  # SGLang was installed again over the patch
    INTERRUPTED = "interrupted"  # a change was begun and not ended, or another process is at it


@dataclass(frozen=True)
class Change:
    """What `apply` will write: the edits, and each file before and after. `plan` is kept in the record as it is."""

    tree: SglangTree
    edits: tuple[Edit, ...]
    files: tuple[Rewritten, ...]
    plan: Mapping[str, Any]

    @property
    def nothing_to_do(self) -> bool:
        """Whether every edit stands already, or none is needed."""
        return all(file.before == file.after for file in self.files)

    def diff(self) -> str:
        """The change as a unified diff with paths relative to the package; empty where there is nothing to do."""
        return "".join(_diff(file.path, file.before, file.after, "as it is", "patched") for file in self.files)


@dataclass(frozen=True)
class Outcome:
    """What a call did: the files that it replaced, relative to the package, and a sentence."""

    changed: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Status:
    """How a tree stands, its record (None for none), and what each patched file is: patched, original, other, gone."""

    standing: Standing
    record: Mapping[str, Any] | None
    files: Mapping[str, str]
    text: str


GRAPH_SITES = frozenset({"graph", "order", "dummy"})  # enough for a draft without -1 whose ids verify does not serve


def prepare(
    tree: SglangTree, family: str, plan: Mapping[str, Any] | None = None, sites: Collection[str] | None = None
) -> Change:
    """Compute the change that makes `tree` serve id -1 for a model family or architecture; nothing is written.

    `plan` is kept in the record. `sites` leaves only the edits of these sites, `GRAPH_SITES` for the second disease
    alone; the whole must be known all the same.

    Raises WiringError with the site and the code found there where an edit is refused.
    """
    edits = needed_edits(tree, family)
    if isinstance(edits, Refusal):
        raise _refused(tree, edits)
    edits = tuple(edit for edit in edits if sites is None or edit.site.name in sites)
    return Change(tree, edits, _rewritten(tree, edits), {"family": family, **(plan or {})})


def apply(change: Change) -> Outcome:
    """Write a prepared change. Files that carry the patched bytes already are left alone.

    Raises WiringError, with nothing changed, where the package cannot be written, where a file is no longer what was
    prepared, where an earlier patch was changed by somebody, and while another process is patching.
    """
    tree, state = change.tree, State(change.tree)
    if change.nothing_to_do and not state.left_over():
        return Outcome((), "The patch stands already: nothing was done" if change.edits else "No edit is needed")
    _check_writable(tree, [file.path for file in change.files])
    with _at_work(state):
        begun = state.journal() is not None
        finished = _finish(state)
        old = _living_record(state)
        # What was prepared in the middle of an interrupted change is prepared again: the edits are the same.
        files = _rewritten(tree, change.edits) if begun else change.files
        todo = [file for file in files if content_of(tree.file(file.path)) != file.after]
        for file in todo:
            _check_unchanged(tree, file)
        if not todo:
            state.tidy()
            text = "An interrupted change was finished: the patch stands" if finished else "The patch stands already"
            return Outcome(finished, text)
        record = _record(change, old, [_entry(state, file, tree) for file in todo])
        moves = [_move(file.path, sha256(file.before), sha256(file.after)) for file in todo]
        _carry_out(state, "apply", moves, old, record)
        return Outcome(tuple(file.path for file in todo), f"{len(todo)} file(s) patched in {tree.package}")


def undo(tree: SglangTree) -> Outcome:
    """Restore every file that the patch changed, byte for byte, and forget the patch.

    Raises WiringError with the difference where somebody changed a patched file since; nothing is restored then.
    """
    state = State(tree)
    if state.record() is None and not state.left_over():
        return Outcome((), "No patch is recorded here: nothing to undo")
    with _at_work(state):
        _finish(state)
        if state.record() is None:
            state.tidy()
            return Outcome((), "What a killed call had left was removed: no patch is recorded here")
        record = _living_record(state)
        if record is None:
            state.tidy()
            return Outcome((), "SGLang was installed again since: its files are not the patched ones, nothing to undo")
        moves = [_move(file["path"], file["after"], file["before"]) for file in record["files"]]
        _check_writable(tree, [move["path"] for move in moves])
        _carry_out(state, "undo", moves, record, None)
        return Outcome(tuple(move["path"] for move in moves), f"{len(moves)} file(s) restored in {tree.package}")


def recover(tree: SglangTree) -> Outcome:
    """Finish what a killed call began. Does nothing where nothing was begun.

    Raises WiringError where a file is neither what it was nor what it was to become.
    """
    state = State(tree)
    if not state.left_over():
        return Outcome((), "Nothing was left unfinished")
    with _at_work(state):
        finished = _finish(state)
        state.tidy()
    text = "An interrupted change was finished" if finished else "What a killed call had left was removed"
    return Outcome(finished, text)


def status(tree: SglangTree) -> Status:
    """How the tree stands; nothing is written and no lock is taken."""
    state = State(tree)
    record, journal = state.record(), state.journal()
    if journal is not None:
        moves = journal["files"]
        files = {m["path"]: _is(tree, m["path"], m["from"], m["to"], "before", "after") for m in moves}
        text = f"A call of {journal['operation']} was begun and has not ended; the next call takes it to its end"
        return Status(Standing.INTERRUPTED, record, files, text)
    if record is None:
        return Status(Standing.NONE, None, {}, f"{tree} carries no patch of this workbook")
    kept = record["files"]
    files = {f["path"]: _is(tree, f["path"], f["before"], f["after"], "original", "patched") for f in kept}
    standing = _standing(tree, record, files)
    told = {
        Standing.APPLIED: "carries the patch",
        Standing.CHANGED: "carries a patch in which somebody changed a file since",
        Standing.REPLACED: f"was installed again over the patch of {record['sglang']}",
    }
    return Status(standing, record, files, f"{tree} {told[standing]}")


def _rewritten(tree: SglangTree, edits: Sequence[Edit]) -> tuple[Rewritten, ...]:
    files = rewrite(tree, edits)
    if isinstance(files, Refusal):
        raise _refused(tree, files)
    return files


def _refused(tree: SglangTree, refusal: Refusal) -> WiringError:
    return WiringError(f"this SGLang is not patched, and nothing was changed: {refusal}", where=tree)


@contextmanager
def _at_work(state: State) -> Iterator[None]:
    """The lock, and errors of the machine (a full disk, a read-only folder) told as such."""
    with state.locked():
        try:
            yield
        except OSError as error:
            raise read_only(state.tree.package, error) from error


def _standing(tree: SglangTree, record: Mapping[str, Any], files: Mapping[str, str]) -> Standing:
    if set(files.values()) == {"patched"}:
        return Standing.APPLIED
    other_release = "patched" not in files.values() and tree.version != record["sglang"]
    return Standing.REPLACED if other_release or set(files.values()) == {"original"} else Standing.CHANGED


def _is(tree: SglangTree, path: str, before: str, after: str, old: str, new: str) -> str:
    data = content_of(tree.file(path))
    if data is None:
        return "gone"
    return {before: old, after: new}.get(sha256(data), "other")


def _living_record(state: State) -> dict[str, Any] | None:
    """The record, or None where it speaks of files that are there no more.

    Raises WiringError with the difference where somebody changed a patched file.
    """
    record = state.record()
    if record is None:
        return None
    now = status(state.tree)
    if now.standing is Standing.REPLACED:
        state.end(None)
        return None
    if now.standing is Standing.CHANGED:
        raise _changed_since(state, [(f["path"], f["after"]) for f in record["files"]], "patched")
    return record


def _changed_since(state: State, expected: Sequence[tuple[str, str]], name: str) -> WiringError:
    differences = []
    for path, digest in expected:
        data = content_of(state.tree.file(path))
        if data is None or sha256(data) != digest:
            differences.append(_diff(path, state.content(digest), data or b"", name, "now" if data else "gone"))
    return WiringError(
        "somebody changed a patched file since, so nothing was touched",
        where=state.tree.package,
        expected="the bytes that the patch wrote",
        found="this difference:\n" + "".join(differences),
        remedy="Take this change back and call again; the originals are in " + str(state.folder / "contents"),
    )


def _finish(state: State) -> tuple[str, ...]:
    """Take a begun change to its end; the files that were still to be replaced. The folder is left to the caller, for
    with it the lock would go.
    """
    journal = state.journal()
    if journal is None:
        return ()
    left = []
    for move in journal["files"]:
        data = content_of(state.tree.file(move["path"]))
        if data is None or sha256(data) not in (move["from"], move["to"]):
            raise _changed_since(state, [(move["path"], move["to"])], "to be")
        left += [move] if sha256(data) == move["from"] != move["to"] else []
    _replace(state, left)
    for move in journal["files"]:  # the killed process may have replaced a file and not its byte code
        drop_byte_code(state.tree.file(move["path"]))
        drop_temporaries(state.tree.file(move["path"]))
    state.end(journal["record"])
    return tuple(move["path"] for move in left)


def _carry_out(
    state: State,
    operation: str,
    moves: list[dict[str, str]],
    old: dict[str, Any] | None,
    new: dict[str, Any] | None,
) -> None:
    """Journal, replace, record. An error of the machine rolls everything back; a kill is left to the next call."""
    state.begin({"format": FORMAT, "operation": operation, "files": moves, "record": new})
    try:
        _replace(state, moves)
    except OSError:
        back = [_move(move["path"], move["to"], move["from"]) for move in reversed(moves)]
        _replace(state, [m for m in back if sha256(content_of(state.tree.file(m["path"])) or b"") == m["from"]])
        state.end(old)
        state.tidy()
        raise
    state.end(new)
    state.tidy()


def _replace(state: State, moves: Sequence[Mapping[str, str]]) -> None:
    for move in moves:
        replace_source(state.tree.file(move["path"]), state.content(move["to"]))


def _move(path: str, before: str, after: str) -> dict[str, str]:
    return {"path": path, "from": before, "to": after}


def _entry(state: State, file: Rewritten, tree: SglangTree) -> dict[str, Any]:
    real = tree.file(file.path)
    entry = {"path": file.path, "before": state.keep(file.before), "after": state.keep(file.after)}
    entry["mode"] = oct(real.stat().st_mode & 0o7777)
    if not real.is_relative_to(tree.package):
        entry["real"] = str(real)
    return entry


def _record(change: Change, old: Mapping[str, Any] | None, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The record after this change; over an older patch the originals stay those from before the first one."""
    files = {file["path"]: dict(file) for file in (old or {}).get("files", [])}
    for entry in entries:
        first = files.get(entry["path"], entry)["before"]
        files[entry["path"]] = {**entry, "before": first}
    edits = [
        {"site": str(edit.site), "phases": [str(phase) for phase in edit.phases], "reason": edit.reason}
        for edit in change.edits
    ]
    return {
        "format": FORMAT,
        "workbook": wiring.__version__,
        "applied": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "sglang": change.tree.version,
        "plan": dict(change.plan),
        "edits": [*(e for e in (old or {}).get("edits", []) if e not in edits), *edits],
        "files": list(files.values()),
    }


def _check_unchanged(tree: SglangTree, file: Rewritten) -> None:
    now = content_of(tree.file(file.path))
    if now != file.before:
        raise WiringError(
            "the file changed after the change was prepared, so nothing was written",
            where=tree.file(file.path),
            expected=f"SHA-256 {sha256(file.before)}",
            found="no file" if now is None else f"SHA-256 {sha256(now)}",
            remedy="Prepare the change again",
        )


def _check_writable(tree: SglangTree, paths: Sequence[str]) -> None:
    # A file is replaced, so it is its folder that must be writable; a read-only file system answers no to root as well.
    for folder in {tree.package, *(tree.file(path).parent for path in paths)}:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise read_only(folder)


def _diff(path: str | Path, before: bytes, after: bytes, old: str, new: str) -> str:
    sides = [_lines(before), _lines(after)]
    lines = difflib.unified_diff(*sides, f"sglang/{path} ({old})", f"sglang/{path} ({new})", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _lines(data: bytes) -> list[str]:
    try:
        return read_text(data)[0].splitlines()
    except (SyntaxError, UnicodeDecodeError):
        return data.decode("utf-8", errors="replace").splitlines()
