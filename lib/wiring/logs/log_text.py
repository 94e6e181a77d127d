"""Small readers of log text: a named number, colour codes, where a line stands."""

from __future__ import annotations

import math
import re
from functools import lru_cache

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"(-?(?:\d+(?:\.\d+)?|nan|inf))"


@lru_cache(maxsize=64)
def _field(name: str) -> re.Pattern[str]:
    return re.compile(name + r"\s*[:=]\s*" + NUMBER)


def field_of(line: str, name: str) -> str | None:
    """The number behind `name:` or `name =` as it is printed, or None. `name` is a regular expression."""
    found = _field(name).search(line)
    return None if found is None else found[1]


def number(text: str | None) -> float | None:
    """A printed number; None stays None."""
    return None if text is None else float(text)


def count(text: str | None) -> int | None:
    """A printed count; None where there is none or it is not whole."""
    value = number(text)
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else None


def place(source: str, line_number: int) -> str:
    """Where a line stands, as `Record.source` names it."""
    return f"{source}, line {line_number}"


def rate_of(line: str, name: str) -> float | None:
    """A rate behind `name:`, as a share also where the line prints per cent."""
    found = re.search(name + r"\s*[:=]\s*" + NUMBER + r"\s*(%?)", line)
    return None if found is None else float(found[1]) / (100 if found[2] else 1)
