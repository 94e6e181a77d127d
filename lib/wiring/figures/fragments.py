"""HTML fragments of the panels, rendered with Jinja2: every value is escaped, text in backticks becomes code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

import jinja2
from markupsafe import Markup

from wiring.figures.plot_template import INK, RED
from wiring.workbook.page import coded

_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters["code"] = lambda text: Markup(coded(text))  # noqa: S704 (coded escapes)
_NOTE = '<small style="color:{{ color }}">{{ text | code }}</small>'
_PROBLEM = (
    """<div style="border-left:4px solid {{ color }};padding:2px 10px;white-space:pre-wrap">{{ text | code }}</div>"""
)
# Dark text on a light background in any theme; the signs mark the sides for readers who do not see the colors.
_DIFF = """
{% set mono = "padding:0 6px;font-family:monospace;font-size:12px;vertical-align:top;" %}
{% set number = mono ~ "color:#8c959f;text-align:right" %}
{% set cell = mono ~ "white-space:pre-wrap;text-align:left" %}
<table style="border-collapse:collapse"><tr>
{% for side in ("as it is", "changed") %}<th colspan="2" style="text-align:left">{{ name }}, {{ side }}</th>{% endfor %}
</tr>
{% for group in groups %}
{% if not loop.first %}<tr><td colspan="4" style="text-align:center;color:#8c959f">...</td></tr>{% endif %}
{% for left, right in group %}
<tr>{% for (at, text, changed), mark, sign in ((left, "background:#ffe5cc;color:#1f2328;", "-"),
                                             (right, "background:#d6ebff;color:#1f2328;", "+")) %}
<td style="{{ number }}">{{ at }}</td>
{%- if changed %}<td style="{{ mark }}{{ cell }}">{{ sign }} {{ text }}</td>
{%- else %}<td style="{{ cell }}">{{ "  " if at }}{{ text }}</td>{% endif %}
{% endfor %}</tr>
{% endfor %}{% endfor %}
</table>
"""

Line = tuple[int | str, str, bool]  # number from 1 ("": no line on this side), text, changed


def render(template: str, **values: object) -> str:
    """Render a Jinja2 template with autoescape; the filter `code` turns text in backticks into code."""
    return _ENVIRONMENT.from_string(template).render(values)


def note(text: str) -> str:
    """Return a line of small print."""
    return render(_NOTE, text=text, color=INK)


def problem(error: Exception) -> str:
    """Return the message of an error, for a panel that shows it instead of a traceback."""
    return render(_PROBLEM, text=str(error), color=RED)


def side_by_side(before: str, after: str, name: str, context: int = 3) -> str:
    """Return a table of the parts of `name` that differ, with `context` unchanged lines around each."""
    groups = list(_diff_groups(before.splitlines(), after.splitlines(), context))
    return render(_DIFF if groups else "<p>{{ name }}: no difference</p>", name=name, groups=groups)


def _diff_groups(before: Sequence[str], after: Sequence[str], context: int) -> Iterator[list[tuple[Line, Line]]]:
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(context):
        rows: list[tuple[Line, Line]] = []
        for tag, a, a_end, b, b_end in group:
            changed = tag != "equal"
            left = [(at + 1, before[at], changed) for at in range(a, a_end)]
            right = [(at + 1, after[at], changed) for at in range(b, b_end)]
            rows += zip_longest(left, right, fillvalue=("", "", False))
        yield rows
