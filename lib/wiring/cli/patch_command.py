"""`wiring patch plan|diff|apply|verify|undo|status`: the fix for one SGLang release, one target and one draft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.patch.plan import Fix, FixPlan
    from wiring.patch.source import SglangTree

app = typer.Typer(
    name="patch",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Plan the smallest change that serves the trained layout in every phase; show, apply, verify and undo it. "
    "Everything is written to copies. Exit status: 0 done, or nothing to do; 2 refused, with the reason.",
    epilog="Examples: `wiring patch plan` (the tiny pair) · "
    "`wiring patch diff --sglang DIR --target DIR --draft DIR --layout 0,3,31 --form source --patch > fix.patch` · "
    "`wiring patch apply --out fixed/` · `wiring patch undo --out fixed/`",
)

Sglang = Annotated[
    Path | None, typer.Option("--sglang", help="Folder that holds the package sglang. [default: the installed one]")
]
Target = Annotated[Path | None, typer.Option("--target", help="Folder of the target. [default: the tiny one]")]
Draft = Annotated[Path | None, typer.Option("--draft", help="Folder of the draft. [default: the tiny one]")]
Wanted = Annotated[str, typer.Option("--layout", help="Boundaries that the draft was trained on: 0,3,31.")]
FormName = Annotated[str, typer.Option("--form", help="config, plugin or source. [default: the first planned]")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the fixed copy.")]
Graphs = Annotated[bool, typer.Option("--cuda-graphs/--no-cuda-graphs", help="Whether decoding replays CUDA graphs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command("plan")
def plan_command(
    sglang: Sglang = None,
    target: Target = None,
    draft: Draft = None,
    layout: Wanted = "",
    form: FormName = "",
    cuda_graphs: Graphs = True,
    as_json: AsJson = False,
) -> None:
    """List the possible fixes, least invasive first, and why smaller ones do not suffice."""
    _, _, plan = _planned(sglang, target, draft, layout, cuda_graphs)
    fixes = [plan.fix(form)] if form and plan.fixes else plan.fixes
    found, lines = _as_json(plan, fixes), _in_words(plan, fixes)
    if not plan.fixes and not plan.nothing_to_do:
        _refuse(WiringError(plan.advice, code="no-fix"), found, as_json, lines)
    _print(found, as_json, lines)


@app.command("diff")
def diff_command(
    sglang: Sglang = None,
    target: Target = None,
    draft: Draft = None,
    layout: Wanted = "",
    form: FormName = "",
    patch: Annotated[
        bool, typer.Option("--patch", help="Print SGLang's files only, for `git apply` or `patch -p1`.")
    ] = False,
    cuda_graphs: Graphs = True,
    as_json: AsJson = False,
) -> None:
    """Print the change as a unified diff; nothing is written.

    With --patch: a patch of SGLang's files for `git apply` or `patch -p1` in the folder that holds the package sglang.
    """
    from wiring.patch.copies import fix_diff, source_change

    folder, tree, plan = _planned(sglang, target, draft, layout, cuda_graphs)
    text, fix = plan.advice, None if plan.nothing_to_do else plan.fix(form or ("source" if patch else ""))
    if fix is not None:
        if patch and not fix.edits:
            raise WiringError(
                "only the source fix changes SGLang's files", code="no-source-patch", where="--form", found=fix.form
            )
        text = source_change(fix, tree).patch() if patch else fix_diff(folder, fix, tree)
    if patch and fix and not as_json:
        typer.echo(f"apply with `git apply` or `patch -p1` in {tree.package.parent}", err=True)
    typer.echo(json.dumps({"diff": text if fix else ""}) if as_json else text, nl=not (patch and fix))


@app.command("apply")
def apply_command(
    sglang: Sglang = None,
    target: Target = None,
    draft: Draft = None,
    layout: Wanted = "",
    form: FormName = "",
    out: Out = None,
    cuda_graphs: Graphs = True,
    as_json: AsJson = False,
) -> None:
    """Write the fixed copy to --out and print the line that starts a server with it.

    For the kinds config and plugin it is a copy of the draft; for source it also holds a patched copy of the package
    sglang, whose unchanged files are links. The draft and the SGLang given are never written.
    """
    from wiring.patch.copies import apply_fix

    folder, tree, plan = _planned(sglang, target, draft, layout, cuda_graphs)
    if plan.nothing_to_do:
        _print({"done": [plan.advice]}, as_json)
        return
    fix = plan.fix(form)
    if out is None:
        raise WiringError(
            "a fix is written to a copy, which needs a folder",
            code="out-missing",
            where="--out",
            expected="a folder that does not exist yet",
            remedy="Name one with --out",
        )
    made = apply_fix(folder, fix, out, plan.wanted, tree)
    done = [f"fixed copy of the draft: {made.draft}"]
    if made.sglang:
        done.append(f"patched copy of the package: {made.sglang / 'sglang'}")
    done += [f"start the server with: {made.start_line}", *(f"note: {note}" for note in fix.notes)]
    _print({"form": fix.form.value, "done": done}, as_json)


@app.command("verify")
def verify_command(
    sglang: Sglang = None,
    target: Target = None,
    out: Out = None,
    cuda_graphs: Graphs = True,
    as_json: AsJson = False,
) -> None:
    """Read again what `apply` wrote to --out: the copy of the draft and, for the source kind, the package's files.

    Without --out, check the SGLang given (for example one that a patch was applied to). Exit status 2 where something
    is missing.
    """
    from wiring.checkpoints.target_files import read_target_config
    from wiring.patch.copies import verify_copy
    from wiring.patch.fix_kinds import FixKind
    from wiring.patch.source import GRAPH_SITES, Refusal, check_sites, find_tree, needed_edits
    from wiring.workbook.profile import load_profile

    config = read_target_config(target or load_profile("cpu-tiny").target)
    found: dict[str, Any] = {}
    kind, wanted, tree = str(FixKind.SOURCE), None, find_tree(sglang) if out is None or sglang else None
    if out is not None:
        copy = (out / "sglang").is_dir()
        tree = tree or find_tree(out if copy else None)
        record, checks = verify_copy(out, _release(tree), config.raw, cuda_graphs=cuda_graphs)
        kind, wanted = record.form, record.layout
        found["copy"] = [{"what": check.what, "stands": check.stands, "text": check.text} for check in checks]
    assert tree is not None
    if kind == FixKind.SOURCE:
        edits = needed_edits(tree, config.architecture)
        if isinstance(edits, Refusal):
            raise WiringError(
                "the source fix does not know this code", code="source-edit-refused", where=tree.package, found=edits
            )
        if wanted is not None and 0 not in wanted:  # no -1 is to be read, so the model stays as it is
            edits = tuple(edit for edit in edits if edit.site.name in GRAPH_SITES)
        sites = check_sites(tree, edits)
        found["sites"] = [{"site": str(one.site), "stands": one.stands, "text": one.text} for one in sites]
    rows = [(row.get("site") or row["what"], row) for part in found.values() for row in part]
    lines = [f"{'present' if row['stands'] else 'MISSING'}: {name}: {row['text']}" for name, row in rows]
    missing = [name for name, row in rows if not row["stands"]]
    if missing:
        problem = WiringError(
            "the fix is only partly applied",
            code="fix-incomplete",
            where=out or tree.package,
            found=f"missing: {'; '.join(missing)}",
            remedy="`wiring patch apply` writes it",
        )
        _refuse(problem, found, as_json, lines)
    _print(found, as_json, lines)


@app.command("undo")
def undo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder of the fixed copy.")],
    as_json: AsJson = False,
):
    """Remove the fixed copy at --out. Any other folder is refused and not touched."""
    from wiring.patch.copies import remove_copy

    if not out.exists():
        _print({"done": [f"there is no copy at {out}: nothing to undo"]}, as_json)
        return
    remove_copy(out)
    _print({"done": [f"removed {out}"]}, as_json)


@app.command("status")
def status_command(
    out: Annotated[Path, typer.Option("--out", help="Folder of the fixed copy.")],
    as_json: AsJson = False,
):
    """Print what the copy at --out is: its kind of fix, its layer ids, and the draft that it was made from."""
    from wiring.checkpoints.copy_record import read_copy_record

    record = read_copy_record(out)
    standing = "none" if record is None else "applied"
    text = f"{out} holds no fixed copy"
    if record is not None:
        text = f"{out}: {record.form} fix of {record.source}, ids {list(record.ids)}, trained layout {record.layout}"
    _print({"standing": standing, "record": record and record.model_dump(mode="json"), "text": text}, as_json, [text])


def _planned(
    sglang: Path | None, target: Path | None, draft: Path | None, layout: str, cuda_graphs: bool
) -> tuple[Path, SglangTree, FixPlan]:
    """Return the draft's folder, SGLang's files, and the plan."""
    from wiring.checkpoints.target_files import read_target_config
    from wiring.checkpoints.tensor_files import read_json
    from wiring.layers import parse_layout
    from wiring.patch.plan import plan_fixes
    from wiring.patch.source import find_tree
    from wiring.workbook.profile import load_profile

    if len({target is None, draft is None, not layout}) > 1:
        raise WiringError("--target, --draft and --layout belong together", code="options-belong-together")
    if draft is None or target is None:
        tiny = load_profile("cpu-tiny")
        target, draft, wanted = tiny.target, tiny.draft, tiny.layout
    else:
        wanted = parse_layout(layout)
    config, tree = read_target_config(target), find_tree(sglang)
    asked = read_json(draft / "config.json", "the draft's config")
    plan = plan_fixes(_release(tree), config.raw, asked, wanted, tree=tree, cuda_graphs=cuda_graphs)
    return draft, tree, plan


def _release(tree: SglangTree) -> str:
    if tree.version is None:
        raise WiringError("these files do not name their release", code="sglang-release-unknown", where=tree.package)
    return tree.version


def _in_words(plan: FixPlan, fixes: Sequence[Fix]) -> list[str]:
    lines = [plan.advice]
    for fix in fixes:
        lines += ["", f"{fix.form}: serves {fix.served.verify} in {', '.join(fix.phases)}"]
        lines += [f"  changes {change}" for change in fix.changes]
        lines += [f"  why: {fix.reason}", *(f"  note: {note}" for note in fix.notes)]
    for short in plan.short:
        lines += ["", f"{short.form}: does not suffice. {short.reason}"]
    return lines


def _as_json(plan: FixPlan, fixes: Sequence[Fix]) -> dict[str, Any]:
    keys = ("form", "ids", "phases", "changes", "reason", "notes")
    from wiring.layers import Phase

    return {
        "version": plan.version,
        "wanted": list(plan.wanted),
        "served": {phase.value: plan.now[phase] for phase in Phase},
        "nothing_to_do": plan.nothing_to_do,
        "advice": plan.advice,
        "cures": [{key: getattr(fix, key) for key in keys} for fix in fixes],
        "refused": [{"form": s.form, "phases": list(s.phases), "reason": s.reason} for s in plan.short],
    }


def _refuse(problem: WiringError, found: dict[str, Any], as_json: bool, lines: list[str]) -> NoReturn:
    """Print what was found and end with status 2; with --json the problem is printed on stderr too."""
    _print(found | {"error": problem.as_json()}, as_json, lines)
    if as_json:
        typer.echo(f"wiring: {problem}", err=True)
    raise typer.Exit(2)


def _print(found: dict[str, Any], as_json: bool, lines: list[str] | None = None) -> None:
    for line in [json.dumps(found, indent=2)] if as_json else lines if lines is not None else found["done"]:
        typer.echo(line)
