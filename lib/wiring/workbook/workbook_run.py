"""The run of the five notebooks: prerequisites, artefacts checked, and summary and report at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wiring.errors import WiringError
from wiring.workbook.notebook_parameters import parse_value, read_parameters
from wiring.workbook.run_folder import RECORD, RunFolder, is_run_folder, read_record
from wiring.workbook.run_notebooks import (
    CELL_TIMEOUT_S,
    REPOSITORY,
    WORKBOOK,
    RunPlan,
    RunResult,
    plan_run,
    run_notebooks,
)
from wiring.workbook.run_progress import RunProgress
from wiring.workbook.run_status import StepStatus, steps

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
    progress: RunProgress | None = None,
) -> RunResult:
    """Run the five notebooks on a profile (a name or a YAML file), then write summary.json and report.html.

    Raises WiringError as `run_notebooks` does, for an invalid profile, for one that this machine cannot serve, and for
    a draft that does not fit the target.
    """
    from wiring.server.preflight import preflight
    from wiring.workbook.case import validate_artefact
    from wiring.workbook.live import check_ready, server_spec
    from wiring.workbook.profile import load_profile, profile_path, read_profile

    path = profile_path(profile)
    check_ready(read_profile(path), path)  # before paths: without a GPU a missing path does not matter
    loaded = load_profile(path)
    plan = plan_run(path, run_root=run_root, notebooks_dir=NOTEBOOKS, overrides=overrides)
    if not resume or any(step.state != "ran" for step in workbook_steps(plan)):
        preflight(server_spec(loaded, draft=loaded.draft))
    return run_notebooks(
        plan,
        resume=resume,
        overrides=overrides,
        execution_timeout=execution_timeout,
        validate=validate_artefact,
        finish=write_results,
        progress=progress,
    )


def plan_workbook(profile: str | Path, run_root: str | Path = RUNS) -> RunPlan:
    """Return the plan of the five notebooks on a profile, with the settings that its run folder records.

    Raises WiringError for a missing profile and for settings that no notebook has any more.
    """
    from wiring.workbook.profile import profile_path

    plan = plan_run(profile_path(profile), run_root=run_root, notebooks_dir=NOTEBOOKS)
    overrides = (read_record(plan.folder.path) or {}).get("overrides", {})
    if not overrides:
        return plan
    return plan_run(plan.profile, run_root=run_root, notebooks_dir=NOTEBOOKS, overrides=overrides)


def workbook_steps(plan: RunPlan) -> tuple[StepStatus, ...]:
    """Return the state of the five notebooks' run, with their artefacts validated."""
    from wiring.workbook.case import validate_artefact

    return steps(plan, validate_artefact)


def write_results(run: Path) -> Path:
    """Write summary.json and report.html of a run and return the report's path. Raises WiringError: run-incomplete."""
    from wiring.workbook.case import write_summary
    from wiring.workbook.report import write_report

    if missing := [step.artefact for step in WORKBOOK if not (run / f"{step.artefact}.json").is_file()]:
        raise WiringError(
            "this run is not complete",
            code="run-incomplete",
            where=run,
            expected="the artefacts of all five notebooks",
            found=f"no {', '.join(missing)}",
            remedy=f"Finish it: `wiring resume {run.name}`",
        )
    write_summary(run, run.name)
    return write_report(run, [RunFolder(run).output(step.name) for step in WORKBOOK])


def parse_overrides(texts: list[str]) -> dict[str, object]:
    """Return `["steps=3", ...]` from a command line as values of the notebooks' types.

    Raises WiringError: setting-not-name-value, parameter-unknown, parameter-invalid.
    """
    declared = {}
    for step in WORKBOOK:
        for parameter in read_parameters(NOTEBOOKS / f"{step.name}.ipynb"):
            declared.setdefault(parameter.name, parameter)
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise WiringError(
                "not a setting", code="setting-not-name-value", where="--set", expected="name=value", found=text
            )
        if name not in declared:
            raise WiringError(
                f"no notebook has a parameter {name}",
                code="parameter-unknown",
                where="--set",
                expected=f"one of {', '.join(sorted(declared))}",
                found=name,
            )
        values[name] = parse_value(declared[name], value, where="--set")
    return values


def find_run(case: str, run_root: str | Path = RUNS) -> Path:
    """Return the run folder of a case given by name or path. Raises WiringError: not-a-run, run-missing."""
    path = Path(case) if is_run_folder(Path(case)) else Path(run_root) / case
    if is_run_folder(path):
        return path.resolve()
    if _holds_figures(Path(case)):
        raise WiringError(
            "this folder holds the artefacts of a run, not the run itself",
            code="not-a-run",
            where=case,
            expected=f"a run folder, with executed notebooks and {RECORD}",
            remedy="`wiring diagnose` and `wiring compare` accept it; `make run` makes a run of the tiny pair",
        )
    known = ", ".join(sorted(found.name for found in run_folders(run_root)))
    shipped = RECORDED / path.name
    also = f"; `wiring diagnose` and `wiring compare` accept {shipped}" if _holds_figures(shipped) else ""
    raise WiringError(
        "there is no such run",
        code="run-missing",
        where=path,
        expected=f"one of: {known}" if known else "a run (there is none yet)",
        remedy=f"`make run` makes one of the tiny pair{also}",
    )


def _holds_figures(folder: Path) -> bool:
    """Return whether the folder holds a run's artefacts, as `wiring record` copies them."""
    return all((folder / f"{step.artefact}.json").is_file() for step in WORKBOOK)


def run_folders(run_root: str | Path = RUNS) -> list[Path]:
    """Return all run folders under `run_root`."""
    return sorted(path for path in Path(run_root).glob("*") if is_run_folder(path))


def alone_folders(run_root: Path) -> dict[str, Path]:
    """Return the scratch folders of notebooks that ran without a run folder, by name: alone-PROFILE."""
    found = sorted(path for path in run_root.glob("alone-*") if path.is_dir() and not is_run_folder(path))
    return {path.name: path for path in found}


def recorded_call(run: Path) -> tuple[Path, dict[str, object]]:
    """Return the profile and the overrides that a run folder was made with."""
    record = read_record(run) or {}
    return Path(record.get("profile", "")), dict(record.get("overrides", {}))
