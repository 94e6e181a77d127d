"""`wiring search`: find the layout that a draft was trained on, from its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wiring.layout_search import SearchResult

SEARCH_EXAMPLES = (
    "Examples: `wiring search --draft DIR --target DIR --text documents.txt` · "
    "`wiring search --draft DIR --target DIR --states DIR --exhaustive --json`. "
    "Exit status: 0 a layout fits, 1 no layout fits, 2 the search failed."
)
_TABLE_ROWS = 10


def search(
    draft: Annotated[Path, typer.Option("--draft", help="Folder of the draft checkpoint.")],
    target: Annotated[Path, typer.Option("--target", help="Folder of the target: config, weights, tokenizer.")],
    text: Annotated[
        Path | None, typer.Option("--text", help="Documents, one per line; the target computes their states.")
    ] = None,
    states: Annotated[
        Path | None, typer.Option("--states", help="Saved states of every boundary, in place of --text.")
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Compare all (L+1)^k ordered layouts instead of a coordinate search.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")] = False,
) -> None:
    """Find the layout that the draft's fc was trained on, ignoring the ids that the draft records.

    Use text that the target wrote or was trained on; 32 documents are usually enough.
    """
    from tqdm import tqdm

    from wiring.layout_search import open_search
    from wiring.layout_search import search as run

    with tqdm(desc="documents", unit="", disable=None, leave=False) as bar:
        model, data = open_search(
            draft, target, text=text, states=states, progress=lambda done: bar.update(done - bar.n)
        )
    with tqdm(bar_format="{desc} {elapsed}", disable=None, leave=False) as bar:
        result = run(model, data, exhaustive=exhaustive, progress=bar.set_description_str)
    if as_json:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        _print(result)
    if not result.fits:
        raise typer.Exit(1)


def _print(result: SearchResult) -> None:
    from wiring.cli.tables import print_table
    from wiring.layout_search.layout_losses import TEMPERATURE

    print_table(
        f"Layouts by cross-entropy: {result.compared:,} compared ({result.method}), {result.rows} rows of "
        f"{result.documents} documents, {result.seconds:.1f} s; logits divided by {TEMPERATURE:g}",
        ("layout", "cross-entropy", "worse than the best by", "95 %"),
        [
            (row.layout, f"{row.cross_entropy:.4f}", f"{row.difference:.4f}", f"{row.low:.4f} to {row.high:.4f}")
            for row in result.ranking[:_TABLE_ROWS]
        ],
    )
    print_table(
        "Controls on held-out documents",
        ("control", "cross-entropy", "the layout is better by", "95 %"),
        [
            (c.name, f"{c.cross_entropy:.3f}", f"{c.difference:.3f}", f"{c.low:.3f} to {c.high:.3f}")
            for c in result.controls
        ],
    )
    typer.echo(f"Trained on {result.layout}: {result.reason}." if result.fits else f"{result.reason}.")
    if result.fits and result.alike:
        typer.echo(f"Not distinguishable on this text: {', '.join(map(str, result.alike))}. Use more documents.")
