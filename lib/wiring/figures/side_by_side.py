"""Two texts side by side as one HTML table: what stands left and right of a change, with a few lines around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import zip_longest

_CELL = "padding:0 6px;white-space:pre-wrap;font-family:monospace;font-size:12px;text-align:left;vertical-align:top"
# Dark text on a light ground, whatever the theme; the signs tell the sides where colours do not.
_GONE, _NEW = "background:#ffe5cc;color:#1f2328;", "background:#d6ebff;color:#1f2328;"
_NUMBER = "padding:0 6px;color:#8c959f;font-family:monospace;font-size:12px;text-align:right;vertical-align:top"

Line = tuple[int | None, str, bool]  # number from 1 (None: no line on this side), text, changed


def side_by_side(before: str, after: str, name: str, context: int = 3) -> str:
    """An HTML table of the parts of `name` that differ, with `context` lines around each; a sentence where none do."""
    groups = list(_groups(before.splitlines(), after.splitlines(), context))
    if not groups:
        return f"<p>{escape(name)}: no difference</p>"
    rows = []
    for number, group in enumerate(groups):
        if number:
            rows.append('<tr><td colspan="4" style="text-align:center;color:#8c959f">...</td></tr>')
        rows += [f"<tr>{_side(left, _GONE, '-')}{_side(right, _NEW, '+')}</tr>" for left, right in group]
    head = "".join(
        f'<th colspan="2" style="text-align:left">{escape(f"{name}, {side}")}</th>' for side in ("as it is", "changed")
    )
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(rows)}</table>'


def _groups(before: Sequence[str], after: Sequence[str], context: int) -> Iterator[list[tuple[Line, Line]]]:
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(context):
        rows: list[tuple[Line, Line]] = []
        for tag, a, a_end, b, b_end in group:
            changed = tag != "equal"
            left = [(at + 1, before[at], changed) for at in range(a, a_end)]
            right = [(at + 1, after[at], changed) for at in range(b, b_end)]
            rows += zip_longest(left, right, fillvalue=(None, "", False))
        yield rows


def _side(line: Line, colour: str, sign: str) -> str:
    number, text, changed = line
    told = f"{sign if changed else ' '} {text}" if number else ""
    style = f"{colour if changed else ''}{_CELL}"
    return f'<td style="{_NUMBER}">{number or ""}</td><td style="{style}">{escape(told)}</td>'
