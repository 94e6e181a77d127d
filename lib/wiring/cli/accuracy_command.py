"""`wiring accuracy`: evaluate a draft on saved states, by the counting rule of its trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.accuracy.evaluation_result import EvaluationResult

EXAMPLES = (
    "Examples: `wiring accuracy` (the tiny pair) · "
    "`wiring accuracy --draft DIR --states DIR --target DIR --layout 0,3,31` · "
    "`wiring accuracy --draft DIR --states DIR --target DIR --preset speculators-full --ttt-steps 3 --json`"
)
_TABLE_CONTROLS = 3  # depths of the controls in the table


def accuracy(
    profile: Annotated[
        str, typer.Argument(help="Profile with the draft, states and target, where --draft is not given.")
    ] = "cpu-tiny",
    draft: Annotated[Path | None, typer.Option("--draft", help="Folder of the draft checkpoint.")] = None,
    states: Annotated[Path | None, typer.Option("--states", help="Saved training states: a folder or a file.")] = None,
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder with the target's config and weights.")
    ] = None,
    layout: Annotated[
        str, typer.Option("--layout", help="Boundaries that feed the draft: 0,3,31. [default: the recorded layout]")
    ] = "",
    stored: Annotated[
        str, typer.Option("--stored", help="Boundaries of the file's slots, where the file does not name them.")
    ] = "",
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            help="Counting rule: specforge, safeailab, speculators-full, speculators-cond, "
            "modelopt, modelopt-answer-only or torchspec.",
        ),
    ] = "specforge",
    ttt_steps: Annotated[int, typer.Option("--ttt-steps", min=1, help="Draft steps to measure.")] = 5,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first sequences.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences per batch.")] = 8,
    trainer_batch: Annotated[
        int,
        typer.Option("--trainer-batch", min=1, help="Batch size of the trainer, for rules that average over batches."),
    ] = 1,
    control_sequences: Annotated[
        int, typer.Option("--control-sequences", min=1, help="Number of sequences for the controls.")
    ] = 64,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip and report damaged files.")] = False,
    last_hidden: Annotated[
        str, typer.Option("--last-hidden", help="post or pre: whether the last hidden state is normed. [default: test]")
    ] = "",
    producer: Annotated[
        str,
        typer.Option(
            "--producer",
            help="specforge, safeailab, speculators, modelopt, or sglang to read the draft "
            "as SGLang does. [default: detected from the files]",
        ),
    ] = "",
    norm_output: Annotated[
        str,
        typer.Option(
            "--norm-output", help="head or feedback: meaning of the config's norm_output. [default: the producer's]"
        ),
    ] = "",
    device: Annotated[str, typer.Option("--device", help="[default: cuda where there is one]")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or bfloat16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")] = False,
) -> None:
    """Measure the accuracy of the draft by depth on its saved training states, without a server (notebook 02).

    The result equals that of the draft's trainer on the same files; controls are always shown.
    """
    import torch
    from tqdm import tqdm

    from wiring.accuracy.counting import counting_rule
    from wiring.accuracy.draft_evaluation import open_evaluation
    from wiring.accuracy.evaluation_result import measure
    from wiring.layers import parse_layout
    from wiring.model.threads import limit_threads_for_small_model

    counting_rule(preset)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in dtypes:
        raise WiringError(
            "unknown dtype", code="dtype-unknown", where="--dtype", expected=", ".join(dtypes), found=dtype
        )
    if (draft is None) != (states is None) or (draft is None and target is not None):
        given = {"--draft": draft, "--states": states, "--target": target}
        raise WiringError(
            "the evaluation needs both a draft and saved states",
            code="accuracy-inputs-incomplete",
            expected="--draft with --states, or none of --draft, --states and --target",
            found=", ".join(name for name, value in given.items() if value is not None),
        )
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise WiringError(
            "this device is not available",
            code="device-unknown",
            where="--device",
            found=f"{device}: {str(error)[:80]}",
        ) from None
    wanted = {name: parse_layout(text) if text else None for name, text in (("layout", layout), ("stored", stored))}
    served = None
    if draft is None:
        draft, states, target, wanted, served, limit = _from_profile(profile, wanted, limit)
    assert draft is not None and states is not None  # both or none are given
    opened = open_evaluation(
        draft,
        states,
        target,
        **wanted,
        producer=producer,
        norm_output=norm_output,
        last_hidden=last_hidden,
        device=device,
        dtype=dtypes[dtype],
        skip_bad=skip_bad,
    )
    limit_threads_for_small_model(opened.target.hidden_size)
    settings = {
        "preset": preset,
        "limit": limit,
        "batch": batch,
        "trainer_batch": trainer_batch,
        "control_sequences": control_sequences,
    }
    total = min(len(opened.states), limit or len(opened.states))
    results = []
    for one in (None, served) if served is not None else (None,):
        with tqdm(total=total, desc="sequences", unit="", disable=None, leave=False) as bar:
            advance = lambda done: bar.update(done - bar.n)  # noqa: B023, E731
            results.append(measure(opened, ttt_steps, layout=one, progress=advance, **settings))
    result, also = results[0], results[1] if served is not None else None
    if as_json:
        found = result.as_json()
        typer.echo(json.dumps(found if also is None else found | {"served": also.as_json()}, indent=2))
        return
    _print(result)
    if also is not None:
        _print(also, "as served: ")


def _from_profile(name: str, wanted: dict, limit: int | None):
    """Return paths, layouts and number of documents of a profile; the served layout where no layout was requested."""
    from wiring.checkpoints.target_files import read_target_config
    from wiring.checkpoints.tensor_files import read_json
    from wiring.engines.resolve import served_layout
    from wiring.engines.sglang import SUPPORTED
    from wiring.workbook.profile import load_profile

    profile = load_profile(name)
    served = None
    if wanted["layout"] is None:
        config, target = (
            read_json(profile.draft / "config.json", "the draft's config"),
            read_target_config(profile.target),
        )
        served = served_layout("sglang", SUPPORTED, target.raw, config).verify
        wanted = wanted | {"layout": profile.layout}
    wanted = wanted | {"stored": wanted["stored"] or tuple(profile.states.boundaries)}
    return profile.draft, profile.states.path, profile.target, wanted, served, limit or profile.accuracy.documents


def _print(result: EvaluationResult, title: str = "") -> None:
    from wiring.cli.tables import print_table

    report = result.report
    rows = [
        (
            d.depth,
            d.correct,
            d.total,
            f"{d.accuracy:.3f}",
            f"{d.low:.3f} to {d.high:.3f}",
            f"{d.out_of_vocabulary / d.out_of_vocabulary_of:.3f}" if d.out_of_vocabulary_of else "",
        )
        for d in report.depths
    ]
    print_table(
        f"{title}layout {result.layout}, {report.sequences} sequences",
        ("depth", "correct", "rows", "accuracy", "95 %", "labels outside draft vocabulary"),
        rows,
    )
    typer.echo(f"layout {result.layout}: {result.why}")
    typer.echo(result.rule.describe)
    typer.echo(
        f"simulated accept length {report.accept_length:.2f} without the bonus token, "
        f"{report.accept_length_with_bonus:.2f} with it "
        f"(95 %: {report.accept_length_low + 1:.2f} to {report.accept_length_high + 1:.2f})"
    )
    controls = [
        (name, control.sequences, *(f"{d.accuracy:.3f}" for d in control.depths[:_TABLE_CONTROLS]))
        for name, control in result.controls.items()
    ]
    depths = [f"depth {k}" for k in range(min(_TABLE_CONTROLS, len(report.depths)))]
    baselines = [
        (name, "", "" if value is None else f"{value:.3f}", *[""] * (len(depths) - 1))
        for name, value in (("most frequent label", report.unigram), ("bigram table", report.bigram))
    ]
    print_table("Controls: what failure looks like", ("control", "sequences", *depths), controls + baselines)
    early = [p for p in report.positions if p.depth == 0]
    print_table(
        "Depth 0 by token position",
        ("from", "to", "rows", "accuracy"),
        [(p.first, "" if p.last is None else p.last, p.total, f"{p.correct / p.total:.3f}") for p in early],
    )
    for note in result.notes:
        typer.echo(f"note: {note}")
    if result.skipped:
        typer.echo(f"skipped {len(result.skipped)} file(s):")
        for file, reason in result.skipped:
            typer.echo(f"  {file}: {reason}")
