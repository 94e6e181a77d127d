"""`wiring read-log`: the acceptance figures of a log, a scrape or an answer, by one counting rule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from rich.console import Console

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
    engine: Annotated[str, typer.Option("--engine", help=f"{', '.join(_ENGINES)}. [default: by the lines]")] = "",
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
        Path | None, typer.Option("--earlier", help="The scrape before this one; its counters are subtracted.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an evidence file instead of tables.")] = False,
) -> None:
    """Read acceptance and speed from an existing file, and report figures that are impossible.

    Everything follows one rule: accept length = 1 + accepted drafts / rounds, without the bonus token.
    """
    from tqdm import tqdm

    from wiring.logs import LOOKED_FOR, read_file

    if engine and engine not in _ENGINES:
        raise WiringError(
            "no log lines of this engine are known",
            code="engine-without-log-reader",
            where="--engine",
            expected=", ".join(_ENGINES),
            found=engine,
            remedy="Name one of these, or leave it out",
        )
    if file.is_dir():
        raise WiringError(
            "this is a folder", code="log-is-a-folder", where=file, expected="a log, a scrape or an answer"
        )
    if not file.is_file():
        raise WiringError("there is no such file", code="log-missing", where=file, remedy="Name a log or a scrape")
    given = {"engine": engine or None, "version": version or None}
    given |= {"steps": steps, "topk": topk, "draft_tokens": draft_tokens}
    with tqdm(total=file.stat().st_size, desc=file.name, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        summary = read_file(file, earlier, progress=lambda done: bar.update(done - bar.n), **given)
    if summary.empty:
        raise WiringError(
            "nothing in this file is known",
            code="log-without-figures",
            where=file,
            expected="; ".join(LOOKED_FOR),
            found=f"a {summary.kind} without any of them",
            remedy="Name the file that the server wrote",
        )
    if as_json:
        typer.echo(summary.evidence.model_dump_json(indent=2, exclude_defaults=True))
    else:
        _print(summary)
    if summary.impossible_count:
        raise typer.Exit(1)


def _print(summary: LogSummary) -> None:
    import os
    import sys

    from rich.console import Console
    from rich.markup import escape

    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 120)
    console, evidence = Console(width=width, highlight=False), summary.evidence
    records = [*evidence.acceptance, *evidence.speed]
    common = set.intersection(*(set(one.condition.items()) for one in records)) if records else set()
    server = {**evidence.setting.model_dump(exclude_none=True), **dict(sorted(common))}
    words = _conditions(server.items()) or "nothing is known of the server"
    console.print(f"{summary.kind} {escape(summary.context.source)}: {escape(words)}")
    _print_tables(console, summary, common)
    for fact in evidence.facts:
        console.print(f"{fact.name}: {escape(str(fact.value))} [dim]({escape(fact.source)})[/]")
    for one in evidence.arguments:
        console.print(f"{one.name}: requested {escape(str(one.asked))}, resolved {escape(str(one.resolved))}")
    for one in evidence.accuracy:
        console.print(f"training accuracy {one.accuracy:.3f} [dim]({escape(one.rule)})[/]")
    if summary.impossible_count:
        console.print(f"[red]{summary.impossible_count} of {summary.figures} figures are impossible:[/]")
        for one in summary.impossible:
            console.print(f"  {escape(one.source)}: {escape(one.impossible)}")


def _print_tables(console: Console, summary: LogSummary, common: set) -> None:
    from rich.markup import escape
    from rich.table import Table

    acceptance = Table(title="Acceptance", title_justify="left")
    for heading in ("under", "accept length", "rounds", "by position", "K", "rule"):
        acceptance.add_column(heading, overflow="fold", ratio=1 if heading == "rule" else None)
    for one in summary.evidence.acceptance:
        acceptance.add_row(
            escape(_conditions(one.condition.items() - common)),
            "unknown" if one.accept_length is None else f"{one.accept_length:.3f}",
            "-" if one.rounds is None else str(one.rounds),
            ", ".join(f"{share:.3f}" for share in one.by_position) or "-",
            "-" if one.proposed is None else str(one.proposed),
            escape(one.rule),
        )
    speed = Table("arm", "under", "tok/s", title="Speed, as printed by the server", title_justify="left")
    for one in summary.evidence.speed:
        shown = "-" if one.tok_per_s is None else f"{one.tok_per_s:.2f}"
        speed.add_row(one.arm, escape(_conditions(one.condition.items() - common)), shown)
    for table in (acceptance, speed):
        if table.row_count:
            console.print(table)


def _conditions(items) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(items))
