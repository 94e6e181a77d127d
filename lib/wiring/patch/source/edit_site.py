"""Data types of a source edit: its site, its result, and the refusal where the code is not known."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from wiring.layers import Phase


@dataclass(frozen=True)
class Site:
    """A place in SGLang: `path` relative to the package, `where` a class and its method."""

    name: str
    path: str
    where: str

    def __str__(self) -> str:
        return f"{self.path}: {self.where}"


@dataclass(frozen=True)
class EditResult:
    """The file's text after an edit; `already_done`: the edit was there before, and nothing changed."""

    new_text: str
    site: Site
    already_done: bool


@dataclass(frozen=True)
class Refusal:
    """Why nothing is edited; `found` is the code at the site, in full."""

    site: Site
    reason: str
    found: str = ""

    def __str__(self) -> str:
        text = f"{self.site}: {self.reason}"
        return text if not self.found else f"{text}. Found:\n{self.found.rstrip()}"


@dataclass(frozen=True)
class Edit:
    """One needed edit: its site, the phases it is needed for, why, and the transform of the file's text."""

    site: Site
    phases: tuple[Phase, ...]
    reason: str
    transform: Callable[[str], EditResult | Refusal] = field(compare=False, repr=False)


def read_text(source: bytes) -> tuple[str, str]:
    """Return a module's text with its line ends unchanged, and its encoding.

    Raises SyntaxError or UnicodeDecodeError where the bytes are not Python source.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding), encoding


def parse(text: str, site: Site) -> cst.Module | Refusal:
    """Return the module, or the refusal to edit it."""
    try:
        module = _parsed(text)
    except cst.ParserSyntaxError as error:
        return Refusal(site, f"the file is not Python that this Python can parse ({error.message})")
    return module or Refusal(site, "libcst cannot reproduce the file byte for byte")


@lru_cache(maxsize=4)  # several edits read one file, which takes a second to parse; trees are never changed
def _parsed(text: str) -> cst.Module | None:
    module = cst.parse_module(text)
    return module if module.code == text else None


def shown(node: cst.CSTNode) -> str:
    """Return a node's code, for a refusal."""
    return cst.Module(body=[]).code_for_node(node).strip("\r\n")
