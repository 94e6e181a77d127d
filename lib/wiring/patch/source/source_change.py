"""The source fix as data: which files of a package change and how, as a diff, a patch, or a check of a patched copy."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from wiring.errors import WiringError
from wiring.patch.source.edit_site import Edit, EditResult, Refusal, Site, read_text
from wiring.patch.source.needed_edits import Rewritten, needed_edits, rewrite
from wiring.patch.source.sglang_tree import SglangTree

GRAPH_SITES = frozenset({"graph", "order", "dummy"})  # enough for a draft without -1 that verify does not serve


@dataclass(frozen=True)
class Change:
    """The edits of a tree, and each file before and after them. Nothing is written."""

    tree: SglangTree
    edits: tuple[Edit, ...]
    files: tuple[Rewritten, ...]

    def diff(self) -> str:
        """Return the change as a unified diff for reading; empty where every edit is in the files already."""
        return "".join(
            _unified(file, f"sglang/{file.path} (now)", f"sglang/{file.path} (patched)") for file in self.files
        )

    def patch(self) -> str:
        """Return the change as a patch: `git apply` or `patch -p1` in the folder that holds the package take it."""
        return "".join(
            f"diff --git a/sglang/{file.path} b/sglang/{file.path}\n"
            + _unified(file, f"a/sglang/{file.path}", f"b/sglang/{file.path}")
            for file in self.files
            if file.before != file.after
        )


@dataclass(frozen=True)
class SiteCheck:
    """Whether the patched code is present at a site of the package, and what the edit is for."""

    site: Site
    stands: bool
    text: str


def prepare(tree: SglangTree, family: str, sites: Collection[str] | None = None) -> Change:
    """Return the change that makes `tree` serve id -1 for a model family or architecture.

    `sites` keeps only the edits of these sites (`GRAPH_SITES` for Bug 2 alone); all sites must be known all the same.
    Raises WiringError (source-edit-refused) with the site and the code found there.
    """
    edits = needed_edits(tree, family)
    if isinstance(edits, Refusal):
        raise _refused(tree, edits)
    edits = tuple(edit for edit in edits if sites is None or edit.site.name in sites)
    files = rewrite(tree, edits)
    if isinstance(files, Refusal):
        raise _refused(tree, files)
    return Change(tree, edits, files)


def check_sites(tree: SglangTree, edits: Sequence[Edit]) -> tuple[SiteCheck, ...]:
    """Read a package again and check each edit: an edit that would change nothing is present."""
    checks = []
    for edit in edits:
        try:
            result = edit.transform(read_text(tree.file(edit.site.path).read_bytes())[0])
            stands = isinstance(result, EditResult) and result.already_done
        except (OSError, SyntaxError, UnicodeDecodeError):
            stands = False
        checks.append(SiteCheck(edit.site, stands, edit.reason if stands else f"not there: {edit.reason}"))
    return tuple(checks)


def _refused(tree: SglangTree, refusal: Refusal) -> WiringError:
    return WiringError("the source fix does not know this code", code="source-edit-refused", where=tree, found=refusal)


def _unified(file: Rewritten, old: str, new: str) -> str:
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(_lines(file.before), _lines(file.after), old, new)
    )


def _lines(data: bytes) -> list[str]:
    # Not str.splitlines: form feeds and the like inside a line would end it, and a patch knows line feeds only.
    parts = read_text(data)[0].split("\n")
    return [f"{part}\n" for part in parts[:-1]] + [part for part in parts[-1:] if part]
