"""`wiring diagnose`: name the fault of a run or of an evidence file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.diagnosis.verdict import Diagnosis, RankedFault
    from wiring.logs.evidence import Evidence

DIAGNOSE_EXAMPLES = (
    "Examples: `wiring diagnose cpu-tiny` (a run) · `wiring diagnose cpu-tiny --cured` (the same after the fix) · "
    "`wiring diagnose data/evidence/case-study.json` · `wiring diagnose mine.json --json` · "
    "`wiring diagnose --schema`. data/evidence/README.md describes an evidence file. "
    "Exit status: 0 no fault named (healthy, or not enough evidence), 1 at least one named, 2 it could not be read."
)
_ROWS = 5  # candidates in the table


def diagnose(
    case: Annotated[
        str, typer.Argument(help="A run (its name under runs/, or its folder), or an evidence file (JSON).")
    ] = "",
    cured: Annotated[bool, typer.Option("--cured", help="Of a run: diagnose the server after the fix.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of an evidence file and exit.")
    ] = False,
    runs: Annotated[Path | None, typer.Option("--runs", help="Folder of the runs. [default: runs/]")] = None,
) -> None:
    """Rank the 25 faults by the evidence, with what counts for and against each and what to check next."""
    from wiring.diagnosis.evidence_file import ignored_inputs
    from wiring.diagnosis.verdict import diagnose as weigh
    from wiring.logs.evidence import Evidence

    if schema:
        typer.echo(json.dumps(Evidence.model_json_schema(), indent=2))
        return
    if not case:
        raise WiringError(
            "there is nothing to diagnose",
            code="nothing-to-diagnose",
            expected="a run, or an evidence file",
            remedy="`wiring diagnose --help` has examples",
        )
    evidence = _evidence(case, runs, cured)
    verdict, notes = weigh(evidence), ignored_inputs(evidence)
    if as_json:
        typer.echo(json.dumps({**verdict.as_json(), "notes": notes}, indent=2))
    else:
        _print(verdict)
        for note in notes:
            typer.echo(f"note: {note}.")
    if verdict.named:
        raise typer.Exit(1)


def _evidence(case: str, runs: Path | None, cured: bool) -> Evidence:
    from wiring.diagnosis.evidence_file import read_evidence

    if case.endswith(".json"):
        if cured:
            raise WiringError(
                "only a run holds evidence after a fix", code="cured-needs-run", where="--cured", found=case
            )
        return read_evidence(case)
    if Path(case).is_file():
        raise WiringError(
            "this file is not an evidence file by its name",
            code="not-an-evidence-file",
            where=case,
            expected="a run, or NAME.json",
            remedy=f"Convert a log or a scrape first: `wiring read-log {case} --json > evidence.json`",
        )
    from wiring.workbook.gather_evidence import evidence_of_run
    from wiring.workbook.workbook_run import RUNS, find_run

    folder = Path(case) if (Path(case) / "01_throughput.json").is_file() else find_run(case, runs or RUNS)
    return evidence_of_run(folder, cured=cured)


def _print(verdict: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from wiring.diagnosis.fault_catalogue import FAULT_CATALOGUE

    console = Console()
    console.print(f"[bold]{escape(verdict.summary)}[/]", highlight=False)
    for number in verdict.named:
        console.print(escape(f"Remedy for fault {number}: {FAULT_CATALOGUE[number].remedy}."), highlight=False)
    if verdict.predictions:
        columns = ("predicted from", "expected", "95 %", "measured", "difference")
        table = Table(*columns, title="Accept length (bonus token included)", title_justify="left")
        for p in verdict.predictions:
            table.add_row(
                f"{p.by.side}: {p.by.name}",
                f"{p.expected.value:.2f}",
                f"{p.expected.low:.2f} to {p.expected.high:.2f}{'' if p.expected.counted else ' (assumed)'}",
                f"{p.measured.length:.2f}",
                f"{p.residual:+.2f}",
            )
        console.print(table)
    shown = {*verdict.named, *verdict.candidates}  # faults that a named fault explains are not shown
    rows = [candidate for candidate in verdict.ranking if candidate.fault in shown] or verdict.ranking
    if rows:
        table = Table(title="Faults", title_justify="left", show_lines=True)
        for heading in ("fault", "bits", "evidence for it and against it"):
            table.add_column(heading, overflow="fold")
        for candidate in rows[: max(_ROWS, len(verdict.named))]:
            name = escape(f"{candidate.fault} {candidate.name}")
            name = f"[bold red]{name}[/]" if candidate.fault in verdict.named else name
            table.add_row(name, f"{candidate.score:.1f}", _evidence_of(candidate))
        console.print(table)
    console.print(f"[bold]Next:[/] {escape(verdict.next_check)}", highlight=False)


def _evidence_of(candidate: RankedFault) -> str:
    from rich.markup import escape

    lines = []
    for one in (*candidate.speaks_for, *candidate.speaks_against):
        text = escape(f"{one.bits:+.1f} {one.symptom.letter}: {one.symptom.text}")
        lines.append(text if one.bits > 0 else f"[dim]{text}[/]")
    return "\n".join(lines)
