"""Run notebooks in order with papermill; skip those with an unchanged cache key."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

import wiring
from wiring.errors import WiringError
from wiring.workbook.cache_keys import (
    CacheEntry,
    file_digest,
    inputs_digest,
    installed_versions,
    is_intact,
    notebook_key,
    profile_inputs,
    read_entry,
    tree_digest,
    write_entry,
)
from wiring.workbook.execute import ending_on_signals, execute
from wiring.workbook.notebook_job import NotebookJob
from wiring.workbook.notebook_parameters import open_notebook, read_parameters, resolve_parameters
from wiring.workbook.run_folder import RunFolder
from wiring.workbook.run_progress import RunProgress, clock

LIBRARY = Path(wiring.__file__).resolve().parent
REPOSITORY = LIBRARY.parents[1]
CELL_TIMEOUT_S = 1800

Validate = Callable[[Path, str], object]


@dataclass(frozen=True)
class NotebookStep:
    """One notebook of a run: its name, the artefact that it must leave, how long it usually takes ("": unknown)."""

    name: str
    artefact: str
    usual: str = ""


WORKBOOK = (
    NotebookStep("01_throughput_symptom", "01_throughput", "3 minutes"),
    NotebookStep("02_standalone_accuracy", "02_accuracy", "1 minute"),
    NotebookStep("03_layout_diff", "03_layout", "2 minutes"),
    NotebookStep("04_embedding_capture_patch", "04_patch", "2 minutes"),
    NotebookStep("05_rebenchmark", "05_rebenchmark", "7 minutes"),
)


@dataclass(frozen=True)
class RunResult:
    """The run folder, and the notebooks that ran or were skipped because their result was unchanged, in order."""

    run: Path
    ran: tuple[str, ...]
    resumed: tuple[str, ...]


@dataclass(frozen=True)
class RunPlan:
    """A run before it starts: profile, folder, steps, their files and parameters, and what else results depend on."""

    profile: Path
    folder: RunFolder
    steps: tuple[NotebookStep, ...]
    sources: dict[str, Path]  # a notebook's name -> its file
    values: dict[str, dict[str, object]]  # a notebook's name -> its parameters
    environment: object  # digests of the library and the inputs, and versions

    def key(self, step: NotebookStep, upstream: str) -> str:
        """Return the cache key of a step after `upstream`, the key that the step before passes on ("": the first)."""
        dependent = {key: value for key, value in self.values[step.name].items() if key not in ("profile", "run")}
        return notebook_key(open_notebook(self.sources[step.name]), dependent, upstream, self.environment)


def plan_run(
    profile: str | Path,
    *,
    run_root: str | Path = REPOSITORY / "runs",
    notebooks_dir: str | Path = REPOSITORY / "notebooks",
    steps: Sequence[NotebookStep] = WORKBOOK,
    overrides: Mapping[str, object] | None = None,
    library: Path = LIBRARY,
) -> RunPlan:
    """Return what `run_notebooks` would run with these arguments; nothing is written.

    Raises WiringError for a missing profile or notebook and for unknown or invalid parameters.
    """
    profile, notebooks_dir = Path(profile).resolve(), Path(notebooks_dir).resolve()
    folder = RunFolder(Path(run_root).resolve() / case_name(profile))
    given = {"profile": str(profile), "run": str(folder.path), "measure": "live"}
    sources = {step.name: notebooks_dir / f"{step.name}.ipynb" for step in steps}
    declared = {name: read_parameters(path) for name, path in sources.items()}
    values = resolve_parameters(declared, given, dict(overrides or {}))
    environment = [
        tree_digest(library, (".py",)),
        inputs_digest(profile_inputs(profile, folder.path)),
        installed_versions(),
    ]
    return RunPlan(profile, folder, tuple(steps), sources, values, environment)


def run_notebooks(
    plan: RunPlan,
    *,
    resume: bool = True,
    overrides: Mapping[str, object] | None = None,
    execution_timeout: int = CELL_TIMEOUT_S,
    validate: Validate | None = None,
    finish: Callable[[Path], object] | None = None,
    progress: RunProgress | None = None,
) -> RunResult:
    """Run the notebooks of a plan in its run folder.

    `overrides` are recorded for `wiring resume`; `execution_timeout` is seconds per cell. `validate(run folder,
    artefact name)` raises WiringError for an invalid artefact. `finish(run folder)` is called under the folder's lock
    after the last step, if a step ran or the results are gone.

    Raises WiringError: run-folder-locked, not-a-run-folder, cell-timeout-invalid, notebook-failed, artefact-missing,
    artefact-invalid. On KeyboardInterrupt and Terminated all processes are ended before they propagate.
    """
    progress, folder = progress or RunProgress(), plan.folder
    if isinstance(execution_timeout, bool) or not isinstance(execution_timeout, int) or execution_timeout < 1:
        raise WiringError(
            "the time limit of a cell is not valid",
            code="cell-timeout-invalid",
            where="--cell-timeout",
            expected="whole seconds, 1 or more",
            found=repr(execution_timeout),
        )
    folder.create()
    ran: list[str] = []
    upstream = ""
    with folder.locked(), ending_on_signals():
        folder.sign(plan.profile, overrides or {})
        for position, step in enumerate(plan.steps):
            key = plan.key(step, upstream)
            entry = _valid_entry(folder, step, key, validate) if resume else None
            if entry is None:
                for later in plan.steps[position:]:
                    folder.forget(later.name)
                folder.forget_results()
                source = plan.sources[step.name]
                job = NotebookJob(
                    str(source),
                    str(folder.output(step.name)),
                    plan.values[step.name],
                    str(source.parent),
                    execution_timeout,
                )
                entry = _run_step(folder, step, job, key, validate, progress)
                ran.append(step.name)
            else:
                progress.say(f"{step.name}: unchanged, skipped")
            upstream = entry.passes_on
        if finish is not None and (ran or not folder.has_results()):
            finish(folder.path)
    return RunResult(folder.path, tuple(ran), tuple(step.name for step in plan.steps if step.name not in ran))


def case_name(profile: Path) -> str:
    """Return the case of a profile: its `name`, or the file's name. Raises WiringError: case-name-invalid."""
    profile_inputs(profile, profile)  # raises WiringError where it is not readable YAML
    content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    name = content.get("name", profile.stem) if isinstance(content, dict) else profile.stem
    if not isinstance(name, str) or not name or name != Path(name).name or name.startswith("."):
        raise WiringError(
            "the case's name cannot name a folder",
            code="case-name-invalid",
            where=f"{profile}, field name",
            found=repr(name),
        )
    return name


def _valid_entry(folder: RunFolder, step: NotebookStep, key: str, validate: Validate | None) -> CacheEntry | None:
    """Return the cache entry of a step whose result is unchanged and valid; None where it must run."""
    entry = read_entry(folder.marker(step.name))
    artefact = f"{step.artefact}.json"
    if entry is None or entry.key != key or artefact not in entry.files or not is_intact(entry, folder.path):
        return None
    if not folder.output(step.name).is_file():
        return None
    try:
        if validate is not None:
            validate(folder.path, step.artefact)
    except WiringError:
        return None
    return entry


def _run_step(
    folder: RunFolder, step: NotebookStep, job: NotebookJob, key: str, validate: Validate | None, progress: RunProgress
) -> CacheEntry:
    log, began = folder.log(step.name), time.monotonic()
    progress.start(step.name, step.usual, log)
    try:
        execute(job, log, progress, folder.note_process)
        _check_artefact(folder, step, job, validate)
    except BaseException:
        progress.end("did not complete")
        raise
    entry = CacheEntry(key, {path.name: file_digest(path) for path in folder.artefacts(step.name)})
    write_entry(
        folder.marker(step.name),
        entry,
        notebook=step.name,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        took=clock(time.monotonic() - began),
    )
    progress.end("done")
    return entry


def _check_artefact(folder: RunFolder, step: NotebookStep, job: NotebookJob, validate: Validate | None) -> None:
    path = folder.path / f"{step.artefact}.json"
    if not path.is_file():
        raise WiringError(
            "the notebook ran to its end but left no artefact",
            code="artefact-missing",
            where=step.name,
            expected=path,
            remedy=f"Look into {job.output}",
        )
    try:
        if validate is not None:
            validate(folder.path, step.artefact)
    except WiringError as error:
        raise WiringError(
            "the notebook left an invalid artefact", code="artefact-invalid", where=step.name, found=error
        ) from error
