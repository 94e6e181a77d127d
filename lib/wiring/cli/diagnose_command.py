"""`wiring diagnose`: name the fault from a case or from evidence that people bring. Thin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.diagnosis.verdict import Candidate, Verdict
    from wiring.logs.evidence import Evidence

DIAGNOSE_EXAMPLES = (
    "Examples: `wiring diagnose cpu-tiny` (a run) · `wiring diagnose cpu-tiny --cured` (the same after its cure) · "
    "`wiring diagnose data/evidence/case-study.json` · `wiring diagnose mine.json --json` · "
    "`wiring diagnose --schema`. data/evidence/README.md describes an evidence file. "
    "Exit status: 0 no fault named (healthy, or not enough evidence), 1 at least one named, 2 it could not be read."
)
_ROWS = 5  # candidates in the table


def diagnose(
    case: Annotated[
        str, typer.Argument(help="A run (its name under runs/, or its folder), or an evidence file (JSON).")
    ] = "",
    cured: Annotated[bool, typer.Option("--cured", help="Of a run: the server after its cure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of an evidence file, and end.")
    ] = False,
    runs: Annotated[Path | None, typer.Option("--runs", help="Where run folders lie; else runs/.")] = None,
) -> None:
    """Which of the 25 kinds of fault is it? Ranked, with what speaks for and against each, and what to check next."""
    from wiring.diagnosis.ignored_inputs import left_out
    from wiring.diagnosis.verdict import diagnose as weigh
    from wiring.logs.evidence import Evidence

    if schema:
        typer.echo(json.dumps(Evidence.model_json_schema(), indent=2))
        return
    if not case:
        raise WiringError(
            "there is nothing to diagnose",
            expected="a run, or an evidence file",
            remedy="`wiring diagnose --help` has examples",
        )
    evidence = _evidence(case, runs, cured)
    verdict, notes = weigh(evidence), left_out(evidence)
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
            raise WiringError("only a run holds what its cure did", where="--cured", found=case)
        return read_evidence(case)
    if Path(case).is_file():
        raise WiringError(
            "this is a file, and not an evidence file by its name",
            where=case,
            expected="a run, or NAME.json",
            remedy=f"Of a log or a scrape make one first: `wiring read-log {case} --json > evidence.json`",
        )
    from wiring.workbook.gather_evidence import evidence_of_run
    from wiring.workbook.workbook_run import RUNS, find_run

    folder = Path(case) if (Path(case) / "01_throughput.json").is_file() else find_run(case, runs or RUNS)
    return evidence_of_run(folder, cured=cured)


def _print(verdict: Verdict) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{escape(verdict.summary)}[/]", highlight=False)
    for kind in verdict.named:
        console.print(escape(f"Remedy for kind {kind}: {_remedy(kind)}."), highlight=False)
    if verdict.predictions:
        table = Table(title="Accept length (bonus token included)", title_justify="left")
        for heading in ("predicted from", "expected", "95 %", "measured", "left over"):
            table.add_column(heading)
        for p in verdict.predictions:
            table.add_row(
                f"{p.by.side}: {p.by.name}",
                f"{p.expected.value:.2f}",
                f"{p.expected.low:.2f} to {p.expected.high:.2f}{'' if p.expected.counted else ' (assumed)'}",
                f"{p.measured.length:.2f}",
                f"{p.residual:+.2f}",
            )
        console.print(table)
    told = {*verdict.named, *verdict.candidates}  # what a named fault explains is no news
    rows = [candidate for candidate in verdict.ranking if candidate.kind in told] or verdict.ranking
    if rows:
        table = Table(title="Kinds of fault", title_justify="left", show_lines=True)
        for heading in ("kind", "bits", "speaks for it, and against it"):
            table.add_column(heading, overflow="fold")
        for candidate in rows[: max(_ROWS, len(verdict.named))]:
            named = candidate.kind in verdict.named
            name = escape(f"{candidate.kind} {candidate.name}")
            table.add_row(f"[bold red]{name}[/]" if named else name, f"{candidate.score:.1f}", _said(candidate))
        console.print(table)
    console.print(f"[bold]Next:[/] {escape(verdict.next_check)}", highlight=False)


def _said(candidate: Candidate) -> str:
    from rich.markup import escape

    said = [
        (one, escape(f"{one.bits:+.1f} {one.symptom.letter}: {one.symptom.text}"))
        for one in (*candidate.speaks_for, *candidate.speaks_against)
    ]
    return "\n".join(text if one.bits > 0 else f"[dim]{text}[/]" for one, text in said)


def _remedy(kind: int) -> str:
    from wiring.diagnosis.faults import KINDS

    return KINDS[kind].remedy
