"""`wiring lint`: check draft, target, engine and a server's arguments from files."""

from __future__ import annotations

import json
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
    "Exit status: 0 no error found, 1 at least one, 2 the check failed."
)
_TIMEOUT_S = 20.0  # for the server's /server_info
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
_ENGINE_IDS = "eagle3_layers_to_capture"  # TensorRT-LLM's argument for layer ids


def lint(
    draft: Annotated[Path, typer.Option("--draft", help="Folder of the draft; config.json is enough.")],
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target; config.json is enough.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", help="sglang, vllm or tensorrt-llm, with ==VERSION. [default: the installed SGLang]"),
    ] = "",
    server: Annotated[
        str, typer.Option("--server", help="Address of a running SGLang server to read arguments from.")
    ] = "",
    trained: Annotated[
        str,
        typer.Option("--trained", help="Boundaries that the draft was trained on: 0,3,31. [default: as it records]"),
    ] = "",
    args: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="An argument requested from the server, such as speculative_algorithm=EAGLE; may be repeated.",
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="Ranks of the target. [default: the server's, or 1]")
    ] = None,
    no_cuda_graphs: Annotated[
        bool, typer.Option("--no-cuda-graphs", help="The server decodes without CUDA graphs.")
    ] = False,
    embedding_plugin: Annotated[
        bool, typer.Option("--embedding-plugin", help="The server runs the workbook's plugin: id -1 is the embedding.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of tables.")] = False,
) -> None:
    """Check that draft, target, engine and the server's arguments fit together. Reads files, needs no GPU.

    Prints the boundaries that are served in each phase, and each problem with its fault and remedy.
    """
    from wiring.layers import parse_layout
    from wiring.lint import READ
    from wiring.lint import lint as check

    given = _assignments(args or ())
    unknown = sorted(set(given) - READ - {_ENGINE_IDS})
    if unknown and not server:
        raise WiringError(
            "lint reads no argument of this name",
            code="unknown-argument",
            where="--arg",
            expected=", ".join(sorted(READ)),
            found=unknown[0],
            remedy="Leave it out, or correct its spelling",
        )
    extra = ({"tp_size": tp} if tp else {}) | ({"disable_cuda_graph": True} if no_cuda_graphs else {})
    ids = given.pop(_ENGINE_IDS, None)
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
    if target is not None and result.served is None and not result.errors:
        why = [gap.why for gap in result.not_checked if gap.check == "served layout"]
        problem = WiringError(
            "the served layout could not be checked", code="served-layout-unknown", where=target, found="; ".join(why)
        )
        print(f"wiring: {problem}", file=sys.stderr)
    found = result.as_json() | ({"error": problem.as_json()} if problem else {})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(result)
    if result.errors or problem:
        raise typer.Exit(1 if result.errors else 2)


def _engine(text: str, view: ServerView | None) -> Engine:
    """Return the named engine; SGLang without a version has the server's, or that of the installed package."""
    from wiring.engines.resolve import Engine, parse_engine
    from wiring.server.preflight import installed_sglang

    engine = parse_engine(text or "sglang")
    if engine.name != "sglang" and view is not None and view.running:
        raise WiringError(
            "the arguments of an SGLang server do not apply to another engine",
            code="server-of-another-engine",
            where="--server",
            expected="--engine sglang",
            found=engine.name,
            remedy="Leave out one of the two",
        )
    if engine.name != "sglang" or engine.version is not None:
        return engine
    return Engine("sglang", (view.version if view else None) or installed_sglang())


def _server_view(url: str, requested: Mapping[str, Any], known: Mapping[str, Any]) -> ServerView | None:
    """Return the arguments of a running or planned server; None if nothing is known.

    `known` is taken as given; `requested` is compared with the resolved arguments of a running server.
    """
    from wiring.lint import Changed, ServerView
    from wiring.server.arguments import asked_vs_resolved
    from wiring.server.client import ServerClient

    if not url:
        return ServerView({**requested, **known}, where="--arg") if requested or known else None
    client = ServerClient(url, timeout=_TIMEOUT_S)
    try:
        info = client.server_info()
    finally:
        client.close()
    rows = [row for row in asked_vs_resolved(None, info) if row.overridden]
    changed = [Changed(row.name, row.asked, row.resolved, row.reason) for row in rows]
    differing = {name: value for name, value in requested.items() if str(info.get(name)).lower() != str(value).lower()}
    changed += [Changed(name, value, info.get(name)) for name, value in differing.items()]
    return ServerView({**info, **known}, tuple(changed), running=True, version=info.get("version"), where=url)


def _assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE by SGLang's field names, also with the dashes of the flags; values are numbers, flags or text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.strip().lstrip("-").partition("=")
        if not name or not equals:
            raise WiringError(
                "not an argument of a server",
                code="argument-not-name-value",
                where="--arg",
                expected="NAME=VALUE",
                found=repr(text),
            )
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
            "not a list of layer ids",
            code="not-layer-ids",
            where=f"--arg {_ENGINE_IDS}",
            expected="1,29,57",
            found=text,
        ) from None


def _print(result: LintResult) -> None:
    from rich.markup import escape

    from wiring.cli.tables import print_table
    from wiring.engines.faults import FAULTS
    from wiring.layers import Phase

    name = result.engine if result.version is None else f"{result.engine} {result.version}"
    layouts = [("trained", f"{_layout(result.trained.layout)} ({escape(result.trained.why)})")]
    for phase in Phase:
        served = _layout(result.served[phase], "fails") if result.served else "unknown"
        layouts.append((phase.value.replace("_", " "), served))
    print_table(f"Boundaries in the slots of fc, {name}", ("", "boundaries"), layouts)
    findings = []
    for finding in result.findings:
        fault = f"[{_COLORS[finding.severity]}]{finding.severity}[/]"
        fault += f"\n{finding.kind} {escape(FAULTS[int(finding.kind)])}" if finding.kind else ""
        parts = (escape(finding.evidence), f"[dim]{escape(finding.where)}[/]", f"[bold]{escape(finding.remedy)}[/]\n")
        findings.append((fault, "\n".join(parts)))
    if findings:
        print_table("Findings", ("fault", "evidence, place, remedy"), findings)
    else:
        typer.echo("Nothing found.")
    reasons: dict[str, list[str]] = {}
    for gap in result.not_checked:
        reasons.setdefault(gap.why, []).append(gap.check)
    if reasons:
        gaps = [(escape("\n".join(checks)), escape(why)) for why, checks in reasons.items()]
        print_table("Not checked", ("check", "reason"), gaps)


def _layout(layout: Sequence[int] | None, none: str = "unknown") -> str:
    return none if layout is None else ", ".join(map(str, layout))
