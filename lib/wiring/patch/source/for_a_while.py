"""Edits of SGLang's files that one process makes and undoes: marked as such, so that a killed one's are taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil

from wiring.errors import WiringError
from wiring.patch.source.sglang_tree import SglangTree
from wiring.patch.source.source_change import Change, apply, recover, status, undo
from wiring.patch.source.static_check import SiteCheck, verify_static

_KEY = "for_a_while"  # in the plan that a record keeps
_CLOCK_S = 2.0  # the start of one process, told by two others, may differ by the clock's adjustment


def mark(purpose: str) -> dict[str, Any]:
    """What goes into a change's plan: this process is to undo it; `purpose` says to a reader what it is made for."""
    return {_KEY: {"process": os.getpid(), "started": psutil.Process().create_time(), "purpose": purpose}}


@contextmanager
def edited(change: Change) -> Iterator[tuple[SiteCheck, ...]]:
    """The change in place, and undone with the block; gives its sites, read again.

    Raises WiringError as `apply` and `undo` do: where the files cannot be written, and where somebody changed one of
    them within the block, which leaves all of them as they are then.
    """
    tree, before = change.tree, {file.path: file.before for file in change.files}
    apply(change)
    try:
        yield verify_static(tree, change.edits)
    finally:
        undo(tree)
        wrong = [path for path, data in before.items() if tree.file(path).read_bytes() != data]
        assert not wrong, f"not restored: {', '.join(wrong)}"


def take_back(tree: SglangTree) -> bool:
    """Undo a change that was made for a while by a process that is no more; whether there was one.

    Also finishes what a killed call began. Raises WiringError while the process that made it still runs, and where the
    files were changed since.
    """
    recover(tree)
    record = status(tree).record
    made_by = None if record is None else record["plan"].get(_KEY)
    if made_by is None:
        return False
    if _runs(made_by):
        raise WiringError(
            "another process has this SGLang edited for a while",
            where=tree.package,
            found=f"process {made_by['process']}, {made_by['purpose']}",
            remedy="Wait until it has ended",
        )
    undo(tree)
    return True


def _runs(made_by: Mapping[str, Any]) -> bool:
    """Whether the process lives; another one may have its number by now."""
    try:
        process = psutil.Process(made_by["process"])
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and abs(process.create_time() - made_by["started"]) < _CLOCK_S
    except psutil.NoSuchProcess:
        return False
