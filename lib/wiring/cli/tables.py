"""Print tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)
