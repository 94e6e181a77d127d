"""Read named numbers in log text."""

from __future__ import annotations

import math
import re
from functools import lru_cache

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"(-?(?:\d+(?:\.\d+)?|nan|inf))"


@lru_cache(maxsize=64)
def _field(name: str) -> re.Pattern[str]:
    return re.compile(name + r"\s*[:=]\s*" + NUMBER + r"\s*(%?)")


def field_of(line: str, name: str) -> str | None:
    """Return the number after `name:` or `name =` as printed, or None. `name` is a regular expression."""
    found = _field(name).search(line)
    return None if found is None else found[1]


def rate_of(line: str, name: str) -> float | None:
    """Return a rate after `name:` as a share, also where the line prints percent."""
    found = _field(name).search(line)
    return None if found is None else float(found[1]) / (100 if found[2] else 1)


def number(text: str | None) -> float | None:
    """Return a printed number; None stays None."""
    return None if text is None else float(text)


def count(text: str | None) -> int | None:
    """Return a printed count; None where there is none or it is not whole."""
    value = number(text)
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else None


def place(source: str, line_number: int) -> str:
    """Return the position of a line, as `Record.source` names it."""
    return f"{source}, line {line_number}"
