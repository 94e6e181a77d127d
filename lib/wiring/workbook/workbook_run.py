"""The workbook's own chain: the five notebooks, their artefacts checked, the summary and the report at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wiring.errors import WiringError
from wiring.workbook.notebook_parameters import parse_value, read_parameters
from wiring.workbook.run_folder import RECORD, RunFolder, is_run_folder, read_record
from wiring.workbook.run_notebooks import CELL_TIMEOUT_S, REPOSITORY, WORKBOOK, ChainResult, Plan, plan_chain, run_chain
from wiring.workbook.run_progress import Progress
from wiring.workbook.run_status import Step, steps

NOTEBOOKS = REPOSITORY / "notebooks"
RUNS = REPOSITORY / "runs"
RECORDED = REPOSITORY / "data" / "recorded"


def run_workbook(
    profile: str | Path,
    *,
    run_root: str | Path = RUNS,
    resume: bool = True,
    overrides: Mapping[str, object] | None = None,
    execution_timeout: int = CELL_TIMEOUT_S,
    progress: Progress | None = None,
) -> ChainResult:
    """Run the five notebooks on a profile (a name or a YAML file), then write summary.json and report.html.

    Raises WiringError as `run_chain` does, for a profile that is not valid, for one that this machine cannot serve, and
    for a draft that does not fit the target.
    """
    from wiring.server.preflight import preflight
    from wiring.workbook.case import validate_artefact
    from wiring.workbook.live import check_ready, server_spec
    from wiring.workbook.profile import load_profile, profile_path, read_profile

    path = profile_path(profile)
    check_ready(read_profile(path), path)  # first: on a machine without GPUs its paths do not matter
    loaded = load_profile(path)
    plan = plan_chain(path, run_root=run_root, notebooks_dir=NOTEBOOKS, overrides=overrides)
    if not resume or any(step.state != "ran" for step in workbook_steps(plan)):
        preflight(server_spec(loaded, draft=loaded.draft))
    return run_chain(
        path,
        run_root=run_root,
        notebooks_dir=NOTEBOOKS,
        resume=resume,
        overrides=overrides,
        execution_timeout=execution_timeout,
        validate=validate_artefact,
        finish=write_results,
        progress=progress,
    )


def plan_workbook(profile: str | Path, run_root: str | Path = RUNS) -> Plan:
    """The five notebooks on a profile as `run_workbook` would run them, with the settings that its run folder records.

    Raises WiringError for a profile that is not there and for settings that no notebook has any more.
    """
    from wiring.workbook.profile import profile_path

    plan = plan_chain(profile_path(profile), run_root=run_root, notebooks_dir=NOTEBOOKS)
    overrides = (read_record(plan.folder.path) or {}).get("overrides", {})
    if not overrides:
        return plan
    return plan_chain(plan.profile, run_root=run_root, notebooks_dir=NOTEBOOKS, overrides=overrides)


def workbook_steps(plan: Plan) -> tuple[Step, ...]:
    """How far the run of the five notebooks is, their artefacts held against their models."""
    from wiring.workbook.case import validate_artefact

    return steps(plan, validate_artefact)


def write_results(run: Path) -> Path:
    """Write summary.json and report.html of a run; the report's path.

    Raises WiringError where an artefact is missing.
    """
    from wiring.figures.report import write_report
    from wiring.workbook.case import write_summary

    if missing := [link.artefact for link in WORKBOOK if not (run / f"{link.artefact}.json").is_file()]:
        raise WiringError(
            "this run has not come to its end",
            where=run,
            expected="what all five notebooks write",
            found=f"no {', '.join(missing)}",
            remedy=f"Finish it: `wiring resume {run.name}`",
        )
    write_summary(run, run.name)
    return write_report(run, [RunFolder(run).output(link.name) for link in WORKBOOK])


def parse_overrides(texts: list[str]) -> dict[str, object]:
    """`["steps=3", ...]` from a command line as values of the notebooks' own types; WiringError for unknown names."""
    declared = {}
    for link in WORKBOOK:
        for parameter in read_parameters(NOTEBOOKS / f"{link.name}.ipynb"):
            declared.setdefault(parameter.name, parameter)
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise WiringError("a setting is written name=value", where="--set", found=text)
        if name not in declared:
            raise WiringError(
                f"no notebook has a parameter {name}", where="--set", expected=f"one of {', '.join(sorted(declared))}"
            )
        values[name] = parse_value(declared[name], value, where="--set")
    return values


def find_run(case: str, run_root: str | Path = RUNS) -> Path:
    """The run folder of a case given by name or path; WiringError where there is none."""
    path = Path(case) if is_run_folder(Path(case)) else Path(run_root) / case
    if is_run_folder(path):
        return path.resolve()
    if _holds_figures(Path(case)):
        raise WiringError(
            "this folder holds the figures of a run, and not the run itself",
            where=case,
            expected=f"a run folder, with its executed notebooks and its {RECORD}",
            remedy="`wiring diagnose` and `wiring compare` take it as it is; `make run` makes a run of the tiny pair",
        )
    known = ", ".join(sorted(found.name for found in run_folders(run_root)))
    shipped = RECORDED / path.name
    also = f"; `wiring diagnose` and `wiring compare` take {shipped}, which is there" if _holds_figures(shipped) else ""
    raise WiringError(
        "there is no such run",
        where=path,
        expected=f"one of: {known}" if known else "a run, and there is none yet",
        remedy=f"`make run` makes one of the tiny pair{also}",
    )


def _holds_figures(folder: Path) -> bool:
    """Whether a run's artefacts lie here, as `wiring record` copies them."""
    return all((folder / f"{link.artefact}.json").is_file() for link in WORKBOOK)


def run_folders(run_root: str | Path = RUNS) -> list[Path]:
    """All run folders under `run_root`; other folders there are not ours."""
    return sorted(path for path in Path(run_root).glob("*") if is_run_folder(path))


def alone_folders(run_root: Path) -> dict[str, Path]:
    """By name, where notebooks worked that ran without a run folder: alone-PROFILE, as `open_case` makes them."""
    found = sorted(path for path in run_root.glob("alone-*") if path.is_dir() and not is_run_folder(path))
    return {path.name: path for path in found}


def recorded_call(run: Path) -> tuple[Path, dict[str, object]]:
    """The profile and the overrides that a run folder was made with."""
    record = read_record(run) or {}
    return Path(record.get("profile", "")), dict(record.get("overrides", {}))
