"""Plan, preview and apply a fix for a case: on copies, by default in its run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.patch.copies import AppliedFix, applied_fix, config_digest, fix_diff
from wiring.patch.plan import Fix, FixPlan, plan_fixes
from wiring.patch.source import SglangTree, find_tree
from wiring.workbook.case import Case


def plan_for(
    case: Case, target_config: Mapping[str, Any] | None = None, draft_config: Mapping[str, Any] | None = None
) -> FixPlan:
    """Return the plan for the case's draft on the installed SGLang; configs default to those of the case."""
    tree, profile = find_tree(), case.profile
    target_config = target_config or read_target_config(profile.target).raw
    draft_config = draft_config or read_json(profile.draft / "config.json", "the draft's config")
    return plan_fixes(str(tree.version), target_config, draft_config, profile.layout, tree=tree)


def preview(case: Case, fix: Fix) -> str:
    """Return the whole change as text; nothing is written."""
    return fix_diff(case.profile.draft, fix, find_tree())


def digests(case: Case, fixes: Sequence[Fix], tree: SglangTree | None = None) -> dict[str, str]:
    """Return the SHA-256 of the user's files that fixes are about: the draft's config.json and files of SGLang."""
    tree = tree or find_tree()
    paths = sorted({edit.site.path for fix in fixes for edit in fix.edits})
    found = {path: hashlib.sha256(tree.file(path).read_bytes()).hexdigest() for path in paths}
    return found | {"config.json": config_digest(case.profile.draft)}


def applied(
    case: Case, fix: Fix, name: str = "fix", *, tree: SglangTree | None = None, folder: Path | None = None
) -> AbstractContextManager[AppliedFix]:
    """Return a context manager: the fix on copies in `folder` (default: in the run folder), removed with the block."""
    goal = folder or case.scratch(f"{name}-{fix.form}")
    return applied_fix(case.profile.draft, fix, goal, case.profile.layout, tree)
