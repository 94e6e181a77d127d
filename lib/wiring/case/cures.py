"""A cure in place for a while: the cured copy of the draft, and for the source form a patched copy of SGLang."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wiring.case.store import Case
from wiring.patch import draft_copy
from wiring.patch.plan import Cure, CurePlan, plan_cures, source_change
from wiring.patch.source import SglangTree, SiteCheck, apply, copy_of, find_tree, undo, verify_static


@dataclass(frozen=True)
class Applied:
    """Where a cure stands: the draft's copy, what its server needs, and SGLang's patched copy (None: the installed).

    `checks`: the patched files read again, site by site; `diff`: the whole change.
    """

    draft: Path
    environment: dict[str, str]
    sglang: Path | None
    checks: tuple[SiteCheck, ...]
    diff: str


def plan_for(case: Case, target_config: dict, draft_config: dict) -> CurePlan:
    """The plan for the case's draft on the installed SGLang."""
    tree = find_tree()
    return plan_cures(str(tree.version), target_config, draft_config, case.profile.layout, tree=tree)


@contextmanager
def applied(case: Case, cure: Cure) -> Iterator[Applied]:
    """Apply `cure` to copies inside the run folder, and undo it with the block.

    Neither the reader's draft nor the installed SGLang is written. Raises WiringError where an edit is refused, and,
    at the end, AssertionError should undoing not bring back every byte of the copy.
    """
    folder, package = case.scratch(f"draft-{cure.form}"), case.scratch("sglang-patched")
    diff, checks, tree = draft_copy.preview(case.profile.draft, cure), (), None
    made = draft_copy.apply(case.profile.draft, cure, folder)
    try:
        if cure.edits:
            shutil.rmtree(package, ignore_errors=True)
            tree = copy_of(find_tree(), package)
            change = source_change(cure, tree)
            diff += "\n\n" + change.diff()
            apply(change)
            checks = verify_static(tree, cure.edits)
        yield Applied(made.folder, made.environment, package if tree else None, checks, diff)
        if tree is not None:
            _undo(tree, cure)
    finally:
        draft_copy.undo(made.folder)
        shutil.rmtree(package, ignore_errors=True)


def _undo(tree: SglangTree, cure: Cure) -> None:
    undo(tree)
    installed = find_tree()
    for path in {edit.site.path for edit in cure.edits}:
        assert tree.file(path).read_bytes() == installed.file(path).read_bytes(), f"{path} was not restored"
