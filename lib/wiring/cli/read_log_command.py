"""`wiring read-log`: the acceptance figures of a log, a scrape or an answer, by one counting rule. Thin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.logs import LogSummary

READ_LOG_EXAMPLES = (
    "Examples: `wiring read-log server.log --version 0.5.9` · `wiring read-log server.log.gz --steps 3 --json` · "
    "`wiring read-log after.prom --earlier before.prom` · `wiring read-log server_info.json`. "
    "Exit status: 0 read, 1 figures that the counting rule cannot explain, 2 nothing known in the file."
)
_ENGINES = ("sglang", "vllm", "llama.cpp", "tensorrt-llm")


def read_log(
    file: Annotated[
        Path, typer.Argument(help="A log (plain or .gz), Prometheus text, /server_info or answers with meta_info.")
    ],
    engine: Annotated[
        str, typer.Option("--engine", help=f"{', '.join(_ENGINES)}. [default: told from the lines]")
    ] = "",
    version: Annotated[
        str, typer.Option("--version", help="Release of the engine: SGLang's accept rate changed its meaning.")
    ] = "",
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Draft steps per round (vLLM: speculative tokens).")
    ] = None,
    topk: Annotated[int | None, typer.Option("--topk", min=1, help="Branches per draft step.")] = None,
    draft_tokens: Annotated[
        int | None, typer.Option("--draft-tokens", min=2, help="Tokens verified per round, the root included.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option("--earlier", help="The scrape before this one, whose counters are taken off.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an evidence file instead of tables.")] = False,
) -> None:
    """Read acceptance and speed from what you already have, and say what cannot be.

    Everything comes out by one rule: accept length = 1 + accepted drafts / rounds, the bonus token apart.
    """
    from tqdm import tqdm

    from wiring.logs import LOOKED_FOR, read_file

    if engine and engine not in _ENGINES:
        raise WiringError(
            "no lines of this engine are known",
            where="--engine",
            expected=", ".join(_ENGINES),
            found=engine,
            remedy="Name one of these, or leave it out",
        )
    if file.is_dir():
        raise WiringError("this is a folder", where=file, expected="a file", remedy="Name a log, a scrape or an answer")
    if not file.is_file():
        raise WiringError("there is no such file", where=file, remedy="Name a log, a scrape or an answer")
    with tqdm(total=file.stat().st_size, desc=file.name, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        summary = read_file(
            file,
            earlier,
            engine=engine or None,
            version=version or None,
            steps=steps,
            topk=topk,
            draft_tokens=draft_tokens,
            progress=lambda done: bar.update(done - bar.n),
        )
    if summary.empty:
        raise WiringError(
            "nothing in this file is known",
            where=file,
            expected="; ".join(LOOKED_FOR),
            found=f"a {summary.kind} without any of them",
            remedy="Name the file that the server wrote, or ask for its log lines",
        )
    typer.echo(summary.evidence.model_dump_json(indent=2, exclude_defaults=True) if as_json else _text(summary))
    if summary.impossible_count:
        raise typer.Exit(1)


def _text(summary: LogSummary) -> str:
    """Tables as text, as wide as the terminal."""
    import io
    import os
    import sys

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    text = io.StringIO()
    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 120)
    console = Console(file=text, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    common = _common(summary)
    server = {**summary.evidence.setting.model_dump(exclude_none=True), **common}
    said = _conditions(server) or "nothing said of the server"
    console.print(f"{summary.kind} {escape(summary.context.source)}: {escape(said)}")
    if summary.evidence.acceptance:
        table = Table(title="Acceptance", title_justify="left")
        for heading in ("under", "accept length", "rounds", "by position", "K", "rule"):
            table.add_column(heading, overflow="fold", ratio=1 if heading == "rule" else None)
        for one in summary.evidence.acceptance:
            rest = {name: value for name, value in one.condition.items() if name not in common}
            length = "unknown" if one.accept_length is None else f"{one.accept_length:.3f}"
            shares = ", ".join(f"{share:.3f}" for share in one.by_position)
            table.add_row(
                escape(_conditions(rest)),
                length,
                _or_dash(one.rounds),
                shares or "-",
                _or_dash(one.proposed),
                escape(one.rule),
            )
        console.print(table)
    if summary.evidence.speed:
        table = Table("arm", "under", "tok/s", title="Speed, as the server says", title_justify="left")
        for speed in summary.evidence.speed:
            rest = {name: value for name, value in speed.condition.items() if name not in common}
            shown = "-" if speed.tok_per_s is None else f"{speed.tok_per_s:.2f}"
            table.add_row(speed.arm, escape(_conditions(rest)), shown)
        console.print(table)
    for fact in summary.evidence.facts:
        console.print(f"{fact.name}: {escape(str(fact.value))} [dim]({escape(fact.source)})[/]")
    for one in summary.evidence.arguments:
        console.print(f"{one.name}: asked {escape(str(one.asked))}, resolved {escape(str(one.resolved))}")
    for one in summary.evidence.accuracy:
        console.print(f"training accuracy {one.accuracy:.3f} [dim]({escape(one.rule)})[/]")
    if summary.impossible_count:
        console.print(f"[red]{summary.impossible_count} of {summary.figures} figures cannot be:[/]")
        for one in summary.impossible:
            console.print(f"  {escape(one.source)}: {escape(one.impossible)}")
    return text.getvalue().rstrip("\n")


def _common(summary: LogSummary) -> dict[str, object]:
    """What every record was measured under."""
    records = [*summary.evidence.acceptance, *summary.evidence.speed]
    if not records:
        return {}
    shared = [
        (name, value)
        for name, value in records[0].condition.items()
        if all(one.condition.get(name) == value for one in records)
    ]
    return dict(shared)


def _conditions(condition: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in condition.items())


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
