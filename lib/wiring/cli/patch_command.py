"""`wiring patch plan|diff|apply|verify|undo|status`: the cure for one SGLang, one target and one draft. Thin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.checkpoints.target_files import TargetConfig
    from wiring.layers import Layout
    from wiring.patch.plan import Cure, CurePlan
    from wiring.patch.source import SglangTree

app = typer.Typer(
    name="patch",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Plan the smallest change that serves the trained layout in every phase; show, apply, verify and undo it. "
    "Exit status: 0 done, or nothing to do; 2 refused, with the reason.",
    epilog="Examples: `wiring patch plan` (the tiny pair) · "
    "`wiring patch diff --sglang DIR --target DIR --draft DIR --layout 0,3,31 --form source` · "
    "`wiring patch apply --out cured/` · `wiring patch undo --out cured/`",
)

Sglang = Annotated[
    Path | None, typer.Option("--sglang", help="Folder that holds the package sglang. [default: the installed one]")
]
Target = Annotated[Path | None, typer.Option("--target", help="Folder of the target. [default: the tiny one]")]
Draft = Annotated[Path | None, typer.Option("--draft", help="Folder of the draft. [default: the tiny one]")]
Wanted = Annotated[str, typer.Option("--layout", help="Boundaries that the draft was trained on: 0,3,31.")]
FormName = Annotated[str, typer.Option("--form", help="config, plugin or source. [default: the first planned]")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the cured copy of the draft.")]
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
    """Which cures there are, least invasive first, and why a smaller one does not do."""
    _, _, plan = _planned(sglang, target, draft, layout, cuda_graphs)
    cures = [plan.cure(form)] if form and plan.cures else plan.cures
    found, lines = _as_json(plan, cures), _in_words(plan, cures)
    if not plan.cures and not plan.nothing_to_do:
        _refuse(WiringError(plan.advice), found, as_json, lines)
    _tell(found, as_json, lines)


@app.command("diff")
def diff_command(
    sglang: Sglang = None,
    target: Target = None,
    draft: Draft = None,
    layout: Wanted = "",
    form: FormName = "",
    cuda_graphs: Graphs = True,
    as_json: AsJson = False,
) -> None:
    """The change as a unified diff; nothing is written."""
    from wiring.patch.plan import cure_diff

    folder, tree, plan = _planned(sglang, target, draft, layout, cuda_graphs)
    cure = None if plan.nothing_to_do else plan.cure(form)
    text = plan.advice if cure is None else cure_diff(cure, folder, tree)
    typer.echo(json.dumps({"diff": "" if cure is None else text}) if as_json else text)


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
    """Make the change: the cured copy of the draft at --out, and for the source form the edits of SGLang's files.

    The draft itself is never written. Source edits are kept in a record beside the package and undone byte for byte.
    """
    from wiring.patch import draft_copy
    from wiring.patch.fix_kinds import Form
    from wiring.patch.plan import source_change
    from wiring.patch.source import apply, status, undo
    from wiring.patch.source.for_a_while import take_back

    folder, tree, plan = _planned(sglang, target, draft, layout, cuda_graphs)
    if plan.nothing_to_do:
        _tell({"done": [plan.advice]}, as_json)
        return
    cure = plan.cure(form)
    if out is None:
        raise WiringError(
            "the draft needs other ids, and its own files are never written",
            where="--out",
            expected="a folder for the cured copy",
            remedy="Name one with --out",
        )
    done, stood = [], True
    draft_copy.check_goal(folder, out)  # before SGLang is touched: all of the cure, or nothing
    if cure.form is Form.SOURCE:
        take_back(tree)  # what a killed notebook left would be undone by the next one
        stood = status(tree).record is not None
        done.append(apply(source_change(cure, tree)).text)
    try:
        copied = draft_copy.apply(folder, cure, out, plan.wanted)
    except WiringError:
        if not stood:
            undo(tree)
        raise
    done.append(f"cured copy of the draft: {copied.folder}")
    done += [f"start its server with {name}={value}" for name, value in sorted(copied.environment.items())]
    done += [f"note: {note}" for note in cure.notes]
    _tell({"form": cure.form.value, "done": done}, as_json)


@app.command("verify")
def verify_command(
    sglang: Sglang = None,
    target: Target = None,
    draft: Draft = None,
    layout: Wanted = "",
    out: Out = None,
    cuda_graphs: Graphs = True,
    as_json: AsJson = False,
) -> None:
    """Read again what was written: the cured copy at --out, and for the source form SGLang's files.

    Without --out SGLang's files alone, at the places that --layout asks for; the draft itself is not looked at. Exit
    status 2 where something does not stand.
    """
    from wiring.layers import parse_layout
    from wiring.patch.copy_check import verify_copy
    from wiring.patch.fix_kinds import Form
    from wiring.patch.source import find_tree

    tree, config = find_tree(sglang), _target_config(target)
    found: dict[str, Any] = {}
    form, wanted = str(Form.SOURCE), parse_layout(layout) if layout else None
    if out is not None:
        record, checks = verify_copy(out, _release(tree), config.raw, cuda_graphs=cuda_graphs)
        form, wanted = record.form, wanted or record.layout
        found["copy"] = [{"what": check.what, "stands": check.stands, "text": check.text} for check in checks]
    if form == Form.SOURCE:
        found["sites"] = _sites(tree, config.architecture, wanted)
    rows = [(row.get("site") or row["what"], row) for part in found.values() for row in part]
    lines = [f"{'stands' if row['stands'] else 'MISSING'}: {name}: {row['text']}" for name, row in rows]
    missing = [name for name, row in rows if not row["stands"]]
    if missing:
        problem = WiringError(
            "not everything stands that the cure writes",
            where=out or tree.package,
            found=f"missing: {'; '.join(missing)}",
            remedy="`wiring patch apply` writes it",
        )
        _refuse(problem, found, as_json, lines)
    _tell(found, as_json, lines)


@app.command("undo")
def undo_command(sglang: Sglang = None, out: Out = None, as_json: AsJson = False) -> None:
    """Remove the cured copy at --out; without --out, restore SGLang's files byte for byte."""
    from wiring.checkpoints.copy_record import read_copy_record
    from wiring.patch import draft_copy
    from wiring.patch.fix_kinds import Form
    from wiring.patch.source import find_tree, undo

    if out is None:
        _tell({"done": [undo(find_tree(sglang)).text]}, as_json)
        return
    if not out.exists():
        _tell({"done": [f"there is no copy at {out}: nothing to undo"]}, as_json)
        return
    record = read_copy_record(out)
    draft_copy.undo(out)
    done = [f"removed {out}"]
    if record is not None and record.form == Form.SOURCE:
        done.append("SGLang's edited files stay as they are: `wiring patch undo` without --out restores them")
    _tell({"done": done}, as_json)


@app.command("status")
def status_command(
    sglang: Sglang = None,
    recover: Annotated[bool, typer.Option("--recover", help="Finish what a killed call began.")] = False,
    as_json: AsJson = False,
) -> None:
    """Whether SGLang's files carry the patch, were changed since, or were left in the middle of a change."""
    from wiring.patch.source import find_tree, status
    from wiring.patch.source import recover as finish

    tree = find_tree(sglang)
    if recover:
        typer.echo(finish(tree).text, err=True)
    found = status(tree)
    _tell({"standing": found.standing.value, "files": dict(found.files), "text": found.text}, as_json, [found.text])


def _planned(
    sglang: Path | None, target: Path | None, draft: Path | None, layout: str, cuda_graphs: bool
) -> tuple[Path, SglangTree, CurePlan]:
    """The draft's folder, SGLang's files, and the plan."""
    from wiring.checkpoints.target_files import read_target_config
    from wiring.checkpoints.tensor_files import read_json
    from wiring.layers import parse_layout
    from wiring.patch.plan import plan_cures
    from wiring.patch.source import find_tree
    from wiring.workbook.profile import load_profile

    if len({target is None, draft is None, not layout}) > 1:
        raise WiringError("--target, --draft and --layout belong together", found="some of them")
    if draft is None or target is None:
        tiny = load_profile("cpu-tiny")
        target, draft, wanted = tiny.target, tiny.draft, tiny.layout
    else:
        wanted = parse_layout(layout)
    config, tree = read_target_config(target), find_tree(sglang)
    asked = read_json(draft / "config.json", "the draft's config")
    plan = plan_cures(_release(tree), config.raw, asked, wanted, tree=tree, cuda_graphs=cuda_graphs)
    return draft, tree, plan


def _sites(tree: SglangTree, architecture: str, wanted: Layout | None) -> list[dict[str, Any]]:
    from wiring.patch.source import GRAPH_SITES, Refusal, needed_edits, verify_static

    edits = needed_edits(tree, architecture)
    if isinstance(edits, Refusal):
        raise WiringError("the source form does not know this code", where=tree.package, found=str(edits))
    if wanted is not None and 0 not in wanted:  # no -1 is to be read, so the model stays as it is
        edits = tuple(edit for edit in edits if edit.site.name in GRAPH_SITES)
    checks = verify_static(tree, edits)
    return [{"site": str(check.site), "stands": check.stands, "text": check.text} for check in checks]


def _target_config(target: Path | None) -> TargetConfig:
    from wiring.checkpoints.target_files import read_target_config
    from wiring.workbook.profile import load_profile

    return read_target_config(target or load_profile("cpu-tiny").target)


def _release(tree: SglangTree) -> str:
    if tree.version is None:
        raise WiringError("these files do not say which release they are", where=tree.package)
    return tree.version


def _in_words(plan: CurePlan, cures: Sequence[Cure]) -> list[str]:
    lines = [plan.advice]
    for cure in cures:
        lines += ["", f"{cure.form}: serves {cure.served.verify} in {', '.join(cure.phases)}"]
        lines += [f"  changes {change}" for change in cure.changes]
        lines += [f"  why: {cure.reason}", *(f"  note: {note}" for note in cure.notes)]
    for short in plan.short:
        lines += ["", f"{short.form}: does not do. {short.reason}"]
    return lines


def _as_json(plan: CurePlan, cures: Sequence[Cure]) -> dict[str, Any]:
    rows = [
        {
            "form": c.form,
            "ids": list(c.ids),
            "phases": list(c.phases),
            "changes": list(c.changes),
            "reason": c.reason,
            "notes": list(c.notes),
        }
        for c in cures
    ]
    return {
        "version": plan.version,
        "wanted": list(plan.wanted),
        "served": {phase: plan.now[phase] for phase in ("prefill", "verify", "draft_extend")},
        "nothing_to_do": plan.nothing_to_do,
        "advice": plan.advice,
        "cures": rows,
        "refused": [{"form": s.form, "phases": list(s.phases), "reason": s.reason} for s in plan.short],
    }


def _refuse(problem: WiringError, found: dict[str, Any], as_json: bool, lines: list[str]) -> NoReturn:
    """Tell what was found, and end with status 2; programs get the problem too, and then it is on stderr as well."""
    _tell(found | {"error": problem.as_json()}, as_json, lines)
    if as_json:
        typer.echo(f"wiring: {problem}", err=True)
    raise typer.Exit(2)


def _tell(found: dict[str, Any], as_json: bool, lines: list[str] | None = None) -> None:
    for line in [json.dumps(found, indent=2)] if as_json else lines if lines is not None else found["done"]:
        typer.echo(line)
