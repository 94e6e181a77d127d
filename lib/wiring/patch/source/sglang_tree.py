"""Find an SGLang on disk: the installed one, a checkout, or an unpacked wheel. Nothing of SGLang is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from wiring.errors import WiringError

PACKAGE = "sglang"


@dataclass(frozen=True)
class SglangTree:
    """A package folder `sglang`, symbolic links resolved, and the release that its own files name (None: none).

    `given` is the path as the caller gave it; `installed`: `import sglang` in this Python reads this folder.
    """

    package: Path
    version: str | None
    given: Path
    installed: bool = False

    def file(self, relative: str) -> Path:
        """Return the real file of a path relative to the package; a symbolic link is followed."""
        return (self.package / relative).resolve()

    def __str__(self) -> str:
        return f"SGLang {self.version or 'of an unknown release'} in {self.package}"


def find_tree(path: str | Path | None = None) -> SglangTree:
    """Return the package `sglang` at `path`; None: what `import sglang` would read.

    `path` is the package, a folder that holds it (site-packages, a checkout or its `python/`, an unpacked wheel), or a
    site-packages with an editable install.

    Raises WiringError: sglang-not-installed, sglang-not-found, sglang-packed.
    """
    installed = _installed_package()
    if path is None:
        if installed is None:
            raise WiringError(
                "SGLang is not installed in this environment",
                code="sglang-not-installed",
                where=PACKAGE,
                remedy="Install it, or name the folder that holds the package sglang",
            )
        given = package = installed
    else:
        given = Path(path).expanduser()
        package = _package_at(given)
    if not package.is_dir():
        _refuse_packed(package)
        raise WiringError(
            "not a folder",
            code="sglang-not-found",
            where=package,
            expected="the package sglang as files",
            remedy="Unpack or reinstall SGLang",
        )
    package = package.resolve()
    ours = installed is not None and installed.resolve() == package
    return SglangTree(package, _version(package, given), given, ours)


def _installed_package() -> Path | None:
    # For a name without a dot find_spec imports nothing; editable installs answer through their own finder.
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except ValueError:  # sys.modules holds a module of this name without a spec
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    return next((folder for folder in folders if (folder / "srt").is_dir()), folders[0])


def _package_at(given: Path) -> Path:
    if not given.exists():
        raise WiringError(
            "there is no such folder",
            code="sglang-not-found",
            where=given,
            expected="a folder that holds the package sglang",
            remedy="Check the path",
        )
    _refuse_packed(given)
    for candidate in (given, given / PACKAGE, given / "python" / PACKAGE, *_editable(given)):
        if candidate.is_dir() and (candidate / "srt").is_dir():
            return candidate
    raise WiringError(
        "the package sglang is not here",
        code="sglang-not-found",
        where=given,
        expected="sglang/srt, python/sglang/srt, or the package itself",
        found="a file" if given.is_file() else "none of these",
        remedy="Name the site-packages, the checkout, or the folder of the unpacked wheel",
    )


def _refuse_packed(path: Path) -> None:
    packed = next((p for p in (path, *path.parents) if p.is_file()), None)
    if packed is not None and zipfile.is_zipfile(packed):
        raise WiringError(
            "this wheel is a zip file",
            code="sglang-packed",
            where=packed,
            expected="a folder",
            found="a zip file",
            remedy=f"Unpack it first (python -m zipfile -e {packed.name} FOLDER) and name the folder",
        )


def _editable(site_packages: Path) -> list[Path]:
    """Return the folders that the `.pth` files and finder modules of an editable install of SGLang name."""
    if not site_packages.is_dir():
        return []
    found = []
    for pth in sorted(site_packages.glob("*sglang*.pth")):
        lines = pth.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [site_packages / line.strip() / PACKAGE for line in lines if line and not line.startswith("import")]
    for finder in sorted(site_packages.glob("__editable___sglang*_finder.py")):
        mapping = _literal(finder, "MAPPING")
        if isinstance(mapping, dict) and PACKAGE in mapping:
            found.append(Path(mapping[PACKAGE]))
    return found


def _version(package: Path, given: Path) -> str | None:
    for name in ("version.py", "_version.py"):
        version = _literal(package / name, "__version__")
        if isinstance(version, str):
            return version
    for folder in (package.parent, given):
        # A failed upgrade can leave two; then neither is used.
        names = list(folder.glob("sglang-*.dist-info/METADATA")) if folder.is_dir() else []
        if len(names) == 1:
            found = re.search(r"^Version:\s*(\S+)", names[0].read_text(encoding="utf-8", errors="replace"), re.M)
            if found:
                return found[1]
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = _installed_package()
    if installed is not None and os.path.realpath(installed) == str(package):
        return distribution.version
    return None


def _literal(path: Path, name: str) -> object:
    """Return the literal that is assigned to `name` at the top of a module; None where there is none."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            try:
                return ast.literal_eval(value)
            except ValueError:
                return None
    return None
