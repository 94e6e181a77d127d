"""A cure in place for a while: the cured copy of the draft, and for the source form SGLang's files, edited.

The files are those of a copy in the run folder or, where the caller says so, of the installed SGLang.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wiring.errors import WiringError
from wiring.patch import draft_copy
from wiring.patch.fix_kinds import ApplyTo
from wiring.patch.plan import Cure, CurePlan, cure_diff, plan_cures, source_change
from wiring.patch.source import Change, SglangTree, SiteCheck, copy_of, find_tree, status
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


def digests(case: Case, cures: Sequence[Cure], tree: SglangTree | None = None) -> dict[str, str]:
    """Return SHA-256 of all user files that a fix changes in a copy: the draft's config.json and files of SGLang."""
    tree = tree or find_tree()
    paths = sorted({edit.site.path for cure in cures for edit in cure.edits})
    found = {path: hashlib.sha256(tree.file(path).read_bytes()).hexdigest() for path in paths}
    return found | {"config.json": draft_copy.config_digest(case.profile.draft)}


@contextmanager
def applied(
    case: Case,
    cure: Cure,
    to: ApplyTo = ApplyTo.SCRATCH,
    *,
    tree: SglangTree | None = None,
    folder: Path | None = None,
) -> Iterator[Applied]:
    """Apply a fix temporarily (context manager).

    The draft, and for the source form SGLang (`tree`, default: the installed one), are copied into the run folder or
    into an empty or new `folder`. If `to` is "installed", the source form edits the installed SGLang's own files
    instead. Raises WiringError if an edit is refused, if the installed SGLang already has a patch, and at the end if an
    edited file was changed within the block.
    """
    tree = tree or find_tree()
    draft = folder / "draft" if folder else case.scratch(f"draft-{cure.form}")
    package = folder or case.scratch("sglang-patched")
    with ExitStack() as stack:
        checks, sglang, copies = (), None, [draft]
        if folder is not None and not folder.exists():
            folder.mkdir(parents=True)
            stack.callback(folder.rmdir)
        if cure.edits and to is ApplyTo.INSTALLED:
            checks, sglang = stack.enter_context(edited(_on_the_installed(case, cure))), tree.package.parent
        elif cure.edits:
            if folder is None:
                shutil.rmtree(package, ignore_errors=True)
                stack.callback(shutil.rmtree, package, ignore_errors=True)
            stack.callback(shutil.rmtree, package / "sglang", ignore_errors=True)
            checks = stack.enter_context(edited(source_change(cure, copy_of(tree, package))))
            sglang, copies = package, [draft, package / "sglang" if folder else package]
        made = draft_copy.apply(case.profile.draft, cure, draft, case.profile.layout)
        stack.callback(draft_copy.undo, made.folder)
        yield Applied(made.folder, made.environment, sglang, checks, tuple(copies))


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
