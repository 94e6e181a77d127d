"""A cure in place for a while: the cured copy of the draft, and for the source form SGLang's files, edited.

The files are those of a copy in the run folder or, where the caller says so, of the installed SGLang.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wiring.errors import WiringError
from wiring.patch import draft_copy
from wiring.patch.fix_kinds import ApplyTo
from wiring.patch.plan import Cure, CurePlan, cure_diff, plan_cures, source_change
from wiring.patch.source import Change, SiteCheck, copy_of, find_tree, status
from wiring.patch.source.for_a_while import edited, mark, take_back
from wiring.workbook.case import Case


@dataclass(frozen=True)
class Applied:
    """Where a cure stands: the draft's copy, what its server needs, and the folder of an edited SGLang, None for none.

    `checks`: the edited files read again, site by site. `copies`: the folders that go with the block.
    """

    draft: Path
    environment: dict[str, str]
    sglang: Path | None
    checks: tuple[SiteCheck, ...]
    copies: tuple[Path, ...]


def plan_for(case: Case, target_config: dict, draft_config: dict) -> CurePlan:
    """The plan for the case's draft on the installed SGLang, in which a killed notebook's edits are taken back first.

    Raises WiringError as `take_back` and `plan_cures` do.
    """
    tree = find_tree()
    take_back(tree)
    return plan_cures(str(tree.version), target_config, draft_config, case.profile.layout, tree=tree)


def preview(case: Case, cure: Cure) -> str:
    """The whole change as text, as it would be on the installed SGLang; nothing is written."""
    return cure_diff(cure, case.profile.draft, find_tree())


def digests(case: Case, cures: Sequence[Cure]) -> dict[str, str]:
    """SHA-256 of everything of the reader's that a cure could touch: the draft's config.json, and SGLang's files."""
    tree = find_tree()
    paths = sorted({edit.site.path for cure in cures for edit in cure.edits})
    found = {path: hashlib.sha256(tree.file(path).read_bytes()).hexdigest() for path in paths}
    return found | {"config.json": draft_copy.config_digest(case.profile.draft)}


@contextmanager
def applied(case: Case, cure: Cure, to: ApplyTo = ApplyTo.SCRATCH) -> Iterator[Applied]:
    """Apply `cure`, and undo it with the block, whatever ends it.

    The draft is copied into the run folder, and SGLang too, unless `to` is "installed": then the source form edits the
    installed SGLang's own files. Raises WiringError where an edit is refused, where the installed SGLang carries a
    patch already, and, at the end, where somebody changed an edited file within the block.
    """
    made = draft_copy.apply(case.profile.draft, cure, case.scratch(f"draft-{cure.form}"), case.profile.layout)
    try:
        if not cure.edits:
            yield Applied(made.folder, made.environment, None, (), (made.folder,))
        elif to is ApplyTo.INSTALLED:
            with edited(_on_the_installed(case, cure)) as checks:
                yield Applied(made.folder, made.environment, find_tree().package.parent, checks, (made.folder,))
        else:
            package = case.scratch("sglang-patched")
            shutil.rmtree(package, ignore_errors=True)
            try:
                with edited(source_change(cure, copy_of(find_tree(), package))) as checks:
                    yield Applied(made.folder, made.environment, package, checks, (made.folder, package))
            finally:
                shutil.rmtree(package, ignore_errors=True)
    finally:
        draft_copy.undo(made.folder)


def _on_the_installed(case: Case, cure: Cure) -> Change:
    tree = find_tree()
    take_back(tree)
    standing = status(tree)
    if standing.record is not None:
        raise WiringError(
            "the installed SGLang carries a patch already, and this run would undo it",
            where=tree.package,
            found=standing.standing.value,
            remedy='Take it back first (`wiring patch undo`), or set apply_to = "scratch"',
        )
    return source_change(cure, tree, mark(f"for the run {case.folder}"))
