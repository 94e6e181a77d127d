"""The command line, thin: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import json
import shutil
import sys
from errno import ENOSPC
from pathlib import Path
from typing import Annotated

import typer

from wiring.cli import case_commands as commands
from wiring.cli.stdout import give_up, ignore_broken_pipe
from wiring.errors import WiringError

app = typer.Typer(
    name="wiring",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Find out why an EAGLE-3 draft crawls in production, cure it, and prove it.",
    epilog="Start with `wiring run`: it takes the tiny pair on the CPU. Each command has examples in its --help.",
)

ProfileArgument = Annotated[str, typer.Argument(help="A profile: a YAML file, or a name in data/profiles.")]
RunsOption = Annotated[Path | None, typer.Option("--runs", help="Where run folders lie; else runs/ of the workbook.")]
TimeoutOption = Annotated[int, typer.Option("--cell-timeout", min=1, help="Seconds that one cell may take.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A notebook parameter; may be repeated.")
]


@app.command(epilog="Examples: `wiring run` · `wiring run my.yaml --runs /data/runs` · `wiring run cpu-tiny --fresh`")
def run(
    profile: ProfileArgument = "cpu-tiny",
    runs: RunsOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again, whatever stands.")] = False,
    settings: SetOption = None,
    cell_timeout: TimeoutOption = 1800,
) -> None:
    """Run the five notebooks on a profile, to runs/CASE/summary.json and report.html.

    A notebook whose code, parameters, input and predecessors did not change is not run again.
    """
    from wiring.workbook.workbook_run import RUNS, parse_overrides, run_workbook

    overrides = parse_overrides(settings) if settings else {}
    result = run_workbook(
        profile, run_root=runs or RUNS, resume=not fresh, overrides=overrides, execution_timeout=cell_timeout
    )
    _print_verdict(result.run)


@app.command(epilog="Examples: `wiring resume cpu-tiny` · `wiring resume /data/runs/mine`")
def resume(
    case: Annotated[str, typer.Argument(help="A run: its name under runs/, or its folder.")],
    runs: RunsOption = None,
    cell_timeout: TimeoutOption = 1800,
) -> None:
    """Go on with a run that was interrupted, with the profile and the settings that it was started with."""
    from wiring.workbook.workbook_run import RUNS, find_run, recorded_call, run_workbook

    folder = find_run(case, runs or RUNS)
    profile, overrides = recorded_call(folder)
    result = run_workbook(profile, run_root=folder.parent, overrides=overrides, execution_timeout=cell_timeout)
    _print_verdict(result.run)


@app.command(epilog="Examples: `wiring report cpu-tiny --open` · `wiring report /data/runs/mine --images svg`")
def report(
    case: Annotated[str, typer.Argument(help="A run: its name under runs/, or its folder.")],
    runs: RunsOption = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
    images: Annotated[str, typer.Option("--images", help="Write each figure too, as png or svg, to figures/.")] = "",
) -> None:
    """Write summary.json and report.html of a run again, and print the verdict."""
    from wiring.workbook.workbook_run import RUNS, find_run, write_results

    folder = find_run(case, runs or RUNS)
    page = write_results(folder)
    _print_verdict(folder)
    if open_it:
        from wiring.workbook.open_page import show

        show(page)
    if images:
        from wiring.figures.export_images import write_figures

        typer.echo(f"Figures: {len(write_figures(folder, images))} in {folder / 'figures'}")


@app.command(epilog="Example: `wiring record cpu-tiny`, after `wiring run cpu-tiny`")
def record(
    case: Annotated[str, typer.Argument(help="A run: its name under runs/, or its folder.")], runs: RunsOption = None
) -> None:
    """Keep a live run's artefacts in data/recorded, where the notebooks find them when they run alone."""
    from wiring.workbook import case as store
    from wiring.workbook.workbook_run import RUNS, find_run, recorded_call

    folder = find_run(case, runs or RUNS)
    profile, _ = recorded_call(folder)
    typer.echo(f"Recorded: {store.record(folder, str(profile))}")


@app.command(epilog="Examples: `wiring clean cpu-tiny` · `wiring clean --all --yes`")
def clean(
    cases: Annotated[list[str] | None, typer.Argument(help="Runs: names under runs/, or folders.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs under runs/.")] = False,
    runs: RunsOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete run folders, and those of notebooks that ran alone (alone-PROFILE). Any other folder is left as it is."""
    from wiring.workbook.run_folder import RunFolder
    from wiring.workbook.workbook_run import RUNS, alone_folders, find_run, run_folders

    root = runs or RUNS
    if bool(cases) == everything:
        raise WiringError("no run is named", code="no-run-named", expected="names, or --all")
    alone = {} if runs else alone_folders(root)  # they are made in the workbook's own folder, never elsewhere
    named = [alone.get(case) or find_run(case, root) for case in cases or ()]
    folders = [*run_folders(root), *alone.values()] if everything else named
    if not folders:
        typer.echo(f"No runs in {root}.")
        return
    if not yes:
        typer.echo("\n".join(f"  {folder}" for folder in folders))
        if not sys.stdin.isatty():
            remedy = "Add --yes to delete these folders (make clean CLEAN=--yes)"
            raise WiringError("stdin is not a terminal, so there is no prompt", code="no-terminal", remedy=remedy)
        if not typer.confirm(f"Delete {len(folders)} run folder(s)?"):
            return
    for folder in folders:
        if folder in alone.values():
            shutil.rmtree(folder)
        else:
            RunFolder(folder).remove()
        typer.echo(f"Deleted {folder}")


commands.add_to(app)


def _print_verdict(folder: Path) -> None:
    """The conclusions of a run as a table, and where the report is."""
    from rich.console import Console
    from rich.table import Table

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    table = Table(title=f"Verdict: {folder.name}", title_justify="left")
    for heading in ("", "claim", "expected", "actual"):
        table.add_column(heading, overflow="fold")
    for row in summary["conclusions"]:
        mark = "[green]holds[/]" if row["holds"] else "[red]FAILS[/]"
        table.add_row(mark, *(str(row[key]).replace("[", r"\[") for key in ("claim", "expected", "actual")))
    console = Console()
    console.print(table)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, highlight=False, markup=False)


def _tell_programs(error: WiringError) -> None:
    if "--json" in sys.argv:
        print(json.dumps({"error": error.as_json()}, indent=2))


def main() -> None:
    """Console script. Exit status: 0 done, 2 a problem that was told, 130 interrupted, 143 terminated.

    With --json a problem is told twice: on stderr for readers, and on stdout as {"error": {...}} for programs.
    """
    ignore_broken_pipe()
    try:
        try:
            _main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        give_up()
        print("wiring: no space is left where this writes to.", file=sys.stderr)
        sys.exit(2)


def _main() -> None:
    from wiring.workbook.execute import Terminated

    try:
        app()
    except WiringError as error:
        print(f"wiring: {error}", file=sys.stderr)
        _tell_programs(error)
        sys.exit(2)
    except SystemExit as ended:
        usage = getattr(ended.__context__, "format_message", None)  # typer's own errors: an option that is not there
        if ended.code == 2 and usage is not None:
            _tell_programs(WiringError(usage().rstrip("."), code="usage", remedy="See --help"))
        if ended.code == 130:  # typer ends so on Ctrl-C, in silence
            print(
                "wiring: interrupted; `wiring run` and `resume` go on where they stopped, others begin again.",
                file=sys.stderr,
            )
        raise
    except Terminated as error:
        print("wiring: terminated; the same command goes on where it stopped.", file=sys.stderr)
        sys.exit(128 + error.number)


if __name__ == "__main__":
    main()
