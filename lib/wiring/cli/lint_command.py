"""`wiring lint`: a draft against its target, an engine and a server's arguments, from files. Thin."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.engines.resolve import Engine
    from wiring.lint import LintResult, ServerView

LINT_EXAMPLES = (
    "Examples: `wiring lint --draft DIR --target DIR` · "
    "`wiring lint --draft DIR --target DIR --engine sglang==0.5.9 --trained 0,3,31 --json` · "
    "`wiring lint --draft DIR --target DIR --server http://127.0.0.1:30000`. "
    "Exit status: 0 no error found, 1 at least one, 2 it could not be checked."
)
_TIMEOUT_S = 20.0  # for the server's /server_info
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def lint(
    draft: Annotated[Path, typer.Option("--draft", help="Folder of the draft; config.json alone will do.")],
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target; config.json alone will do.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", help="sglang, vllm or tensorrt-llm, with ==VERSION. [default: the installed SGLang]"),
    ] = "",
    server: Annotated[
        str, typer.Option("--server", help="Address of a running SGLang server, whose arguments are read.")
    ] = "",
    trained: Annotated[
        str, typer.Option("--trained", help="Boundaries the draft was trained on: 0,3,31. [default: as it records]")
    ] = "",
    args: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="An argument asked of the server, such as speculative_algorithm=EAGLE; may be repeated.",
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="Ranks of the target. [default: the server's, or 1]")
    ] = None,
    no_cuda_graphs: Annotated[
        bool, typer.Option("--no-cuda-graphs", help="The server decodes without CUDA graphs.")
    ] = False,
    embedding_plugin: Annotated[
        bool, typer.Option("--embedding-plugin", help="The server runs with the workbook's plugin: id -1 is embedding.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of tables.")] = False,
) -> None:
    """Do draft, target, engine and the server's arguments agree? From files, without a GPU.

    Says which boundaries are served in each phase, and every disagreement with its kind of fault and its remedy.
    """
    from wiring.layers import parse_layout
    from wiring.lint import READ
    from wiring.lint import lint as check

    given = _assignments(args or ())
    unread = sorted(set(given) - READ - {"eagle3_layers_to_capture"})
    if unread and not server:
        raise WiringError(
            "lint reads no argument of this name",
            where="--arg",
            expected=", ".join(sorted(READ)),
            found=unread[0],
            remedy="Leave it out, or correct its spelling",
        )
    extra = ({"tp_size": tp} if tp else {}) | ({"disable_cuda_graph": True} if no_cuda_graphs else {})
    ids = given.pop("eagle3_layers_to_capture", None)
    view = _server_view(server, given, extra)
    result = check(
        draft,
        target,
        _engine(engine, view),
        trained=parse_layout(trained) if trained else None,
        server=view,
        embedding_plugin=embedding_plugin,
        engine_ids=None if ids is None else _ids(str(ids)),
    )
    problem = None
    if target is not None and result.served is None and not result.errors:  # the layout is what lint is for
        why = [gap.why for gap in result.not_checked if gap.check == "served layout"]
        problem = WiringError("the served layout could not be checked", where=target, found="; ".join(why))
        print(f"wiring: {problem}", file=sys.stderr)
    found = result.as_json() | ({"error": problem.as_json()} if problem else {})
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if as_json else _tables(result))
    if result.errors or problem:
        raise typer.Exit(1 if result.errors else 2)


def _engine(text: str, view: ServerView | None) -> Engine:
    """The engine as named; without a version the server's, the installed SGLang's, or the newest rule known."""
    from wiring.engines.resolve import Engine, parse_engine
    from wiring.server.preflight import installed_sglang

    engine = parse_engine(text or "sglang")
    if engine.name != "sglang" and view is not None and view.running:
        raise WiringError(
            "the arguments of an SGLang server say nothing about another engine",
            where="--server",
            expected="--engine sglang",
            found=engine.name,
            remedy="Leave out one of the two",
        )
    if engine.name != "sglang" or engine.version is not None:
        return engine
    return Engine("sglang", (view.version if view else None) or installed_sglang())


def _server_view(url: str, asked: Mapping[str, Any], known: Mapping[str, Any]) -> ServerView | None:
    """What a running server resolved, or what is asked of one; None where nothing is known.

    `known` is taken as it is, `asked` of a running server compared with what it resolved.
    """
    from wiring.lint import Changed, ServerView
    from wiring.server.arguments import asked_vs_resolved
    from wiring.server.client import ServerClient

    if not url:
        return ServerView({**asked, **known}, where="--arg") if asked or known else None
    client = ServerClient(url, timeout=_TIMEOUT_S)
    try:
        info = client.server_info()
    finally:
        client.close()
    changed = [
        Changed(row.name, row.asked, row.resolved, row.reason)
        for row in asked_vs_resolved(None, info)
        if row.overridden
    ]
    changed += [
        Changed(name, value, info.get(name))
        for name, value in asked.items()
        if str(info.get(name)).lower() != str(value).lower()
    ]
    return ServerView({**info, **known}, tuple(changed), running=True, version=info.get("version"), where=url)


def _assignments(texts: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE by SGLang's field names; dashes as the flag has them are taken, numbers and truth values read."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.strip().lstrip("-").partition("=")
        if not name or not equals:
            raise WiringError("not an argument of a server", where="--arg", expected="NAME=VALUE", found=repr(text))
        try:
            values[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            values[name.replace("-", "_")] = {"True": True, "False": False, "None": None}.get(value, value)
    return values


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.strip("[](){} ").split(",") if part.strip())
    except ValueError:
        raise WiringError(
            "not a list of layer ids", where="--arg eagle3_layers_to_capture", expected="1,29,57", found=text
        ) from None


def _tables(result: LintResult) -> str:
    """Result as text, as wide as the terminal; 80 columns where there is none."""
    import io

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from wiring.engines.faults import FAULTS
    from wiring.layers import Phase

    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 80)
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    name = result.engine if result.version is None else f"{result.engine} {result.version}"
    layouts = Table(title=f"Boundaries in the slots of fc, {name}", title_justify="left")
    for heading in ("", "boundaries"):
        layouts.add_column(heading, overflow="fold")
    trained = result.trained
    layouts.add_row("trained", f"{_layout(trained.layout)} ({escape(trained.why)})")
    for phase in Phase:
        served = _layout(result.served[phase], "fails") if result.served else "unknown"
        layouts.add_row(phase.value.replace("_", " "), served)
    console.print(layouts)
    if result.findings:
        table = Table(title="Findings", title_justify="left", show_lines=True)
        table.add_column("kind", max_width=18, overflow="fold")
        table.add_column("what", overflow="fold", ratio=1)
        for finding in result.findings:
            colour = _COLOURS[finding.severity]
            kind = f"[{colour}]{finding.severity}[/]"
            if finding.kind in FAULTS:
                kind += f"\n{finding.kind} {escape(FAULTS[finding.kind])}"
            what = f"{escape(finding.evidence)}\n[dim]{escape(finding.where)}[/]"
            table.add_row(kind, what + (f"\n[bold]{escape(finding.remedy)}[/]" if finding.remedy else ""))
        console.print(table)
    else:
        console.print("Nothing found.")
    if result.not_checked:
        gaps = Table(title="Not checked", title_justify="left", show_lines=True)
        gaps.add_column("check", overflow="fold")
        gaps.add_column("why", overflow="fold", ratio=1)
        for why, checks in _by_reason(result).items():
            gaps.add_row(escape("\n".join(checks)), escape(why))
        console.print(gaps)
    return text.getvalue()


def _by_reason(result: LintResult) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for gap in result.not_checked:
        reasons.setdefault(gap.why, []).append(gap.check)
    return reasons


def _layout(layout: Sequence[int] | None, none: str = "unknown") -> str:
    return none if layout is None else ", ".join(map(str, layout))
