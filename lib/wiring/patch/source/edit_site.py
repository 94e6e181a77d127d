"""What an edit is: where it goes, what came of it, and what it says where it does not know the code."""

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
    """The file's text after an edit; `already_done` says that it was there before, and nothing changed."""

    new_text: str
    site: Site
    already_done: bool


@dataclass(frozen=True)
class Refusal:
    """Why nothing is edited: `found` is the code at the site as it stands, in full."""

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
    """A module's text with its line ends as they are, and its encoding.

    Raises SyntaxError or UnicodeDecodeError where the bytes are no Python source.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding), encoding


def parse(text: str, site: Site) -> cst.Module | Refusal:
    """The module, or why it cannot be edited."""
    try:
        module = _parsed(text)
    except cst.ParserSyntaxError as error:
        return Refusal(site, f"the file is not Python that can be read here ({error.message})")
    return module or Refusal(site, "the file cannot be written again as it is")


@lru_cache(maxsize=4)  # several questions are asked of one file, whose reading takes a second; trees are never changed
def _parsed(text: str) -> cst.Module | None:
    module = cst.parse_module(text)
    return module if module.code == text else None


def shown(node: cst.CSTNode) -> str:
    """A node's code, for a refusal."""
    return cst.Module(body=[]).code_for_node(node).strip("\r\n")
