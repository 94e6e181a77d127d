"""A copy of an SGLang package to try an edit on: the installed files stay as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

from wiring.errors import WiringError
from wiring.patch.source.sglang_tree import SglangTree, find_tree


def copy_of(tree: SglangTree, folder: Path) -> SglangTree:
    """Copy the package to `folder`/sglang, without byte code and without what a patch recorded beside it.

    Put `folder` first on a server's path, and it serves the copy. Raises WiringError where `folder` holds something.
    """
    if folder.exists() and any(folder.iterdir()):
        raise WiringError("the copy needs a folder of its own", where=folder, expected="an empty or a new folder")
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc", ".wiring-patch*")
    shutil.copytree(tree.package, folder / "sglang", ignore=left_out)
    return find_tree(folder)
