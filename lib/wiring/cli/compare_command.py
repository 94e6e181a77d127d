"""`wiring compare`: two runs side by side, before and after an upgrade. Thin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wiring.workbook.compare_runs import Comparison, Run

RunsOption = Annotated[Path | None, typer.Option("--runs", help="Where run folders lie; else runs/ of the workbook.")]
COMPARE_EXAMPLES = (
    "Examples: `wiring compare data/recorded/cpu-tiny cpu-tiny` · `wiring compare before after --html both.html` · "
    "`wiring compare before after --json`."
)


def compare(
    a: Annotated[str, typer.Argument(help="A finished run: its name under runs/, or its folder.")],
    b: Annotated[str, typer.Argument(help="The run to hold against it.")],
    runs: RunsOption = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write it to this file too, with figures.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show the --html file in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of tables.")] = False,
) -> None:
    """Two runs side by side, for example before and after an upgrade of SGLang.

    Rows whose counting rule, text, target, setting, machine or bounds differ are shown, and not compared. Target, draft
    and documents are looked at as their files are now.
    """
    from wiring.errors import WiringError
    from wiring.workbook.compare_runs import compare as held
    from wiring.workbook.workbook_run import RUNS

    if open_it and html is None:
        raise WiringError("no file to open", code="no-file-to-open", where="--open", expected="--html FILE as well")
    both = _read(a, runs or RUNS), _read(b, runs or RUNS)
    comparison = held(*both)
    if html is not None:
        from wiring.figures.compare_page import write_comparison

        write_comparison(html, comparison, both)
    if as_json:
        typer.echo(json.dumps(comparison.as_json(), indent=2))
    else:
        _print(comparison)
        if html is not None:
            typer.echo(f"Written: {html}")
    if open_it and html is not None:
        from wiring.workbook.open_page import show

        show(html)


def _read(case: str, run_root: Path) -> Run:
    """A run by name or folder, or a recorded one, whose profile goes by its folder's name."""
    from wiring.workbook.compare_runs import read_run
    from wiring.workbook.profile import PROFILES
    from wiring.workbook.run_folder import read_record
    from wiring.workbook.workbook_run import find_run, recorded_call

    folder = Path(case)
    if not (folder / "05_rebenchmark.json").is_file() or read_record(folder) is not None:
        folder = find_run(case, run_root)
        return read_run(folder, recorded_call(folder)[0])
    folder = folder.resolve()
    return read_run(folder, PROFILES / f"{folder.name}.yaml")


def _print(comparison: Comparison) -> None:
    from wiring.cli.tables import print_table

    named = (comparison.a, comparison.b)
    if comparison.differences:
        print_table("Not the same", ("", *named), [(one.what, one.a, one.b) for one in comparison.differences])
    typer.echo(comparison.note)
    rows = [
        (row.name, row.a, row.b, row.change, f"not compared: {row.refused}" if row.refused else row.unchecked)
        for row in comparison.rows
    ]
    print_table("Side by side", ("", *named, "change", ""), rows)
