"""`wiring ab`: test whether acceptance depends on the cache, the batch, the temperature or the server."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from wiring.bench.ab import AbResult

AB_EXAMPLES = (
    "Examples: `wiring ab --server http://127.0.0.1:30000 --prompts prompts.json --factor flush` · "
    "`wiring ab --server URL --against URL --prompts prompts.json --factor eager --json`. "
    "Exit status: 0 no significant difference, 1 a significant one, 2 too few prompts."
)


def ab(
    server: Annotated[str, typer.Option("--server", help="Address of a running SGLang server with a draft.")],
    prompts: Annotated[
        Path, typer.Option("--prompts", help='Prompts as JSON: [{"input_ids": [1, 2, ...]}, ...]; six or more.')
    ],
    factor: Annotated[
        str,
        typer.Option(
            "--factor",
            help="flush, batch, temperature or first-round on one server; eager, prefix-cache, chunked, backend or "
            "tree on two (--against).",
        ),
    ],
    against: Annotated[
        str, typer.Option("--against", help="The second server, for factors that are fixed when a server starts.")
    ] = "",
    count: Annotated[int, typer.Option("--count", min=1, help="Number of prompts.")] = 8,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=2, help="Tokens to generate per prompt.")] = 64,
    batch: Annotated[int, typer.Option("--batch", min=2, help="Concurrent requests, for the factor batch.")] = 4,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.01, help="Sampling temperature, for the factor temperature.")
    ] = 1.0,
    keep_cache: Annotated[
        bool,
        typer.Option("--keep-cache", help="Do not empty the server's prefix cache (for a server with other users)."),
    ] = False,
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="SGLANG_API_KEY", show_default=False, help="The server's API key.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")] = False,
) -> None:
    """Send the same prompts under two conditions and test whether the draft's acceptance differs.

    Empties the server's prefix cache before each request, unless --keep-cache is given.
    """
    from wiring.bench.ab import run_ab
    from wiring.server.launch import attach
    from wiring.workbook.live import read_prompts
    from wiring.workbook.progress import say

    ids = read_prompts(prompts, count, asked_by="--count")
    with ExitStack() as stack:
        first = stack.enter_context(attach(server, api_key=api_key, read_only=keep_cache))
        second = stack.enter_context(attach(against, api_key=api_key, read_only=keep_cache)) if against else None
        result = run_ab(
            first.client,
            ids,
            factor,
            other=second.client if second else None,
            new_tokens=new_tokens,
            batch=batch,
            temperature=temperature,
            keep_cache=keep_cache,
            progress=say,
        )
    if as_json:
        evidence = {"acceptance": _evidence(result, server), "differences": [_difference(result, server)]}
        typer.echo(json.dumps({**result.as_json(), **evidence}, indent=2))
    else:
        _print(result)
    if result.difference.real is None:
        raise typer.Exit(2)
    raise typer.Exit(int(result.difference.real))


def _evidence(result: AbResult, server: str) -> list[dict[str, Any]]:
    """Return both groups as records for an evidence file."""
    from wiring.engines.sglang import ACCEPT_RULE
    from wiring.logs.evidence import AcceptanceRecord

    records = [
        AcceptanceRecord(
            source=f"wiring ab --factor {result.factor.name} on {server}",
            accept_length=group.acceptance.accept_length,
            by_position=group.acceptance.by_position,
            rounds=group.acceptance.rounds,
            proposed=result.steps,
            rule=ACCEPT_RULE,
            condition={result.factor.condition: group.acceptance.value},
        )
        for group in (result.a, result.b)
    ]
    return [record.model_dump(mode="json") for record in records]


def _difference(result: AbResult, server: str) -> dict[str, Any]:
    """Return the test as a record for an evidence file."""
    from wiring.logs.evidence import DifferenceRecord

    found = result.difference
    bounds = {name: value for name in ("low", "high") if (value := getattr(found, name)) == value}  # not nan
    return DifferenceRecord(
        source=f"wiring ab --factor {result.factor.name} on {server}",
        by=result.factor.condition,
        a=result.a.acceptance.value,
        b=result.b.acceptance.value,
        accept_length_a=found.accept_length_a,
        accept_length_b=found.accept_length_b,
        p_value=found.p_value,
        **bounds,
    ).model_dump(mode="json")


def _print(result: AbResult) -> None:
    from wiring.cli.tables import print_table

    def shares(values: Any) -> str:
        return " ".join("-" if v != v else f"{v:.2f}" for v in values)

    print_table(
        f"Acceptance by {result.factor.name}",
        ("", "requests", "rounds", "accept length", "95 %", "by position", "conditional", "tok/s"),
        [
            (
                g.label,
                g.acceptance.requests,
                g.acceptance.rounds,
                f"{g.acceptance.accept_length:.2f}",
                f"{g.acceptance.low:.2f} to {g.acceptance.high:.2f}",
                shares(g.acceptance.by_position),
                shares(g.acceptance.conditional),
                f"{g.tok_per_s:.1f}",
            )
            for g in (result.a, result.b)
        ],
    )
    typer.echo(f"{result.difference}.")
    if result.same_outputs is not None:
        typer.echo(f"Same text under both: {sum(result.same_outputs)} of {len(result.same_outputs)} prompts.")
    for note in result.notes:
        typer.echo(f"note: {note}.")
    if result.difference.real is None:
        typer.echo("Too few prompts: pass six or more.")
