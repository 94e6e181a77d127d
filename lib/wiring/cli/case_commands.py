"""One command for each notebook's main step, without the notebook around it. Thin: open the case, call, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from wiring.cli.ab_command import AB_EXAMPLES, ab
from wiring.cli.accuracy_command import EXAMPLES, accuracy
from wiring.cli.compare_command import COMPARE_EXAMPLES, compare
from wiring.cli.diagnose_command import DIAGNOSE_EXAMPLES, diagnose
from wiring.cli.lint_command import LINT_EXAMPLES, lint
from wiring.cli.patch_command import app as patch
from wiring.cli.read_log_command import READ_LOG_EXAMPLES, read_log
from wiring.cli.search_command import SEARCH_EXAMPLES, search
from wiring.cli.tables import print_table

ProfileArgument = Annotated[str, typer.Argument(help="A profile: a YAML file, or a name in data/profiles.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")]
RunOption = Annotated[
    str, typer.Option("--run", help="Run folder for logs and captures. [default: runs/alone-PROFILE]")
]
FormOption = Annotated[str, typer.Option("--form", help="Which cure: config or plugin. [default: the first planned]")]


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file on the command line."""
    for command, example in (
        (throughput, "Examples: `wiring throughput` · `wiring throughput my.yaml --json`"),
        (accuracy, EXAMPLES),
        (lint, LINT_EXAMPLES),
        (search, SEARCH_EXAMPLES),
        (read_log, READ_LOG_EXAMPLES),
        (diagnose, DIAGNOSE_EXAMPLES),
        (layout, "Examples: `wiring layout` (by rule, no server) · `wiring layout --capture` (in the running server)"),
        (ab, AB_EXAMPLES),
        (compare, COMPARE_EXAMPLES),
        (rebenchmark, "Examples: `wiring rebenchmark` · `wiring rebenchmark my.yaml --form plugin`"),
    ):
        app.command(epilog=example)(command)
    app.add_typer(patch)


def throughput(profile: ProfileArgument = "cpu-tiny", run: RunOption = "", as_json: JsonOption = False) -> None:
    """Measure plain decoding and EAGLE-3 as served, in one run (notebook 01)."""
    from wiring.workbook.case import open_case
    from wiring.workbook.live import AS_SERVED, PLAIN, draft_arm, measure_arms, plain_arm
    from wiring.workbook.progress import say

    case = open_case(profile=profile, run=run, measure="live")
    measured = measure_arms(case, [plain_arm(case, "01", say), draft_arm(case, "01", progress=say)], progress=say)
    _print_arms(case, measured, (PLAIN, AS_SERVED), as_json)


def layout(
    profile: ProfileArgument = "cpu-tiny",
    capture: Annotated[bool, typer.Option("--capture", help="Start the server and capture what fc is fed.")] = False,
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """The trained layout beside the served one, by SGLang's rule and by capture (notebook 03)."""
    from wiring.checkpoints.target_files import read_target_config
    from wiring.checkpoints.tensor_files import read_json
    from wiring.engines.resolve import served_layout
    from wiring.engines.sglang import SUPPORTED
    from wiring.layers import Phase
    from wiring.workbook.case import open_case
    from wiring.workbook.progress import say

    case = open_case(profile=profile, run=run, measure="live")
    target, config = (
        read_target_config(case.profile.target),
        read_json(case.profile.draft / "config.json", "the draft's config"),
    )
    rule = served_layout("sglang", SUPPORTED, target.raw, config)
    trained = case.profile.layout
    found: dict[str, Any] = {"trained": trained, "rule": {phase.value: rule[phase] for phase in Phase}}
    told = []
    if capture:
        from wiring.workbook import captured_states as cap
        from wiring.workbook.captured_accuracy import compare_with_reference, phase_differences
        from wiring.workbook.evaluate import load_reference

        states = cap.capture(case, "03_as_served", case.profile.draft, progress=say)
        compared = compare_with_reference(case, states, load_reference(case))
        differences = phase_differences(trained, compared, target.num_layers)
        found["captured"] = {phase.value: one.layout for phase, one in compared.items()}
        found["slots"] = {phase: [match.summary() for match in one.matches] for phase, one in compared.items()}
        found["differences"] = {
            phase: {"names": one.names, "kinds": one.kinds, "text": one.text} for phase, one in differences.items()
        }
        told = [f"{phase.value}: {one.text}" for phase, one in differences.items()]
    if as_json:
        typer.echo(json.dumps({**found, "notes": [str(note) for note in rule.notes]}, indent=2))
        return
    phases = [phase.value for phase in Phase]
    rows = [("trained", *[trained] * len(phases))]
    rows += [(name, *map(found[name].get, phases)) for name in ("rule", "captured") if name in found]
    print_table("Boundaries in the slots of fc", ("", *phases), [tuple(map(str, row)) for row in rows])
    for line in (*told, *(f"note: {note}" for note in rule.notes)):
        typer.echo(line)


def rebenchmark(
    profile: ProfileArgument = "cpu-tiny", form: FormOption = "", run: RunOption = "", as_json: JsonOption = False
) -> None:
    """Measure plain, as served and cured in one run (notebook 05)."""
    from wiring.workbook.case import open_case
    from wiring.workbook.live import AS_SERVED, CURED, PLAIN
    from wiring.workbook.progress import say
    from wiring.workbook.rebenchmark import measure_cured

    case = open_case(profile=profile, run=run, measure="live")
    measured = measure_cured(case, form, progress=say)
    _print_arms(case, measured, (PLAIN, AS_SERVED, CURED), as_json)


def _print_arms(case, measured, names: Sequence[str], as_json: bool) -> None:
    from wiring.bench.arm_results import same_outputs, summarize
    from wiring.engines.sglang import ACCEPT_RULE

    baseline, steps = measured.baseline(names[0]), case.profile.speculation.steps
    arms = [summarize(measured.arm(name), baseline, steps) for name in names]
    same = all(all(same_outputs(measured.arm(name), measured.arm(names[0]))) for name in names)
    if as_json:
        rows = [arm.model_dump() for arm in arms]
        found = {"rate_rule": measured.rate_rule, "accept_rule": ACCEPT_RULE, "arms": rows, "lossless": same}
        typer.echo(json.dumps(found, indent=2))
        return
    accept = ["" if arm.accept_length is None else f"{arm.accept_length:.2f}" for arm in arms]
    rows = [(a.arm, f"{a.tok_per_s:.1f}", f"{a.speedup:.2f}", length) for a, length in zip(arms, accept, strict=True)]
    print_table("Throughput", ("arm", "tok/s", "speed-up", "accept length"), rows)
    typer.echo(f"Same text in all arms: {'yes' if same else 'NO'}. {measured.rate_rule}; {ACCEPT_RULE}.")
