"""Determine the state of each step of a run (not run, ran, stale) by the same keys that a run resumes by.

Nothing is run and nothing is written. A step that was run by hand leaves its artefact without a marker; for it only the
order in time is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wiring.errors import WiringError
from wiring.workbook.cache_keys import CacheEntry, is_intact, read_entry
from wiring.workbook.run_folder import RunFolder
from wiring.workbook.run_notebooks import NotebookStep, RunPlan

if TYPE_CHECKING:
    import pandas as pd

State = Literal["not run", "ran", "stale"]
Validate = Callable[[Path, str], object]
BY_HAND = "by hand: its inputs are not recorded, so `wiring run` runs it again"


@dataclass(frozen=True)
class StepStatus:
    """One notebook of a run: its state, the reason, and when (UTC) and how long (m:ss) it last ran."""

    name: str
    state: State
    why: str = ""
    finished: str = ""
    took: str = ""


def steps(plan: RunPlan, validate: Validate | None = None) -> tuple[StepStatus, ...]:
    """Return the steps of the plan's run folder, in order; the folder need not exist.

    `validate(run folder, artefact name)` raises WiringError for an invalid artefact.
    """
    found: list[StepStatus] = []
    upstream: str | None = ""  # key of the step before; None where it has no valid record
    for at in range(len(plan.steps)):
        status, upstream = _status(plan, at, found[-1] if found else None, upstream, validate)
        found.append(status)
    return tuple(found)


def table(found: tuple[StepStatus, ...]) -> pd.DataFrame:
    """Return the steps as a table: one row each, indexed by name."""
    import pandas as pd

    rows = [(step.name, step.state, step.why, step.finished, step.took) for step in found]
    return pd.DataFrame(rows, columns=["step", "state", "why", "finished (UTC)", "took"]).set_index("step")


def _status(
    plan: RunPlan, at: int, before: StepStatus | None, upstream: str | None, validate: Validate | None
) -> tuple[StepStatus, str | None]:
    """Return the step at this position, and the key that it passes on."""
    step, folder = plan.steps[at], plan.folder
    artefact = _artefact(folder, step)
    if not artefact.is_file():
        return StepStatus(step.name, "not run", _how_it_ended(folder.output(step.name))), None
    entry = read_entry(folder.marker(step.name))
    if entry is not None and not (artefact.name in entry.files and is_intact(entry, folder.path)):
        entry = None  # the marker is about other files: the notebook was run by hand since
    invalid = _fault(folder, step, validate)
    if invalid:
        state, why = "stale", f"its artefact is not valid: {invalid}"
    elif before is not None and before.state != "ran":
        state, why = "stale", f"{before.name} before it {'is stale' if before.state == 'stale' else 'has not run'}"
    elif before is not None and (entry is None or upstream is None) and _later(folder, plan.steps[at - 1], step):
        state, why = "stale", f"{before.name} before it ran again since"
    elif entry is None:
        state, why = "ran", BY_HAND
    elif upstream is None:
        state, why = "ran", f"on a {before.name} that was run by hand" if before is not None else ""
    elif entry.key != plan.key(step, upstream):
        state, why = "stale", "its code, parameters or input changed since, or the package or a version"
    elif not folder.output(step.name).is_file():
        state, why = "stale", "its executed notebook is gone"
    else:
        state, why = "ran", ""
    finished, took = _times(folder.marker(step.name)) if entry is not None else ("", "")
    stands = entry is not None and upstream is not None and state == "ran"
    return StepStatus(step.name, state, why, finished, took), _passes_on(entry) if stands else None


def _passes_on(entry: CacheEntry | None) -> str | None:
    return None if entry is None else entry.passes_on


def _artefact(folder: RunFolder, step: NotebookStep) -> Path:
    return folder.path / f"{step.artefact}.json"


def _later(folder: RunFolder, first: NotebookStep, second: NotebookStep) -> bool:
    """Return whether the first notebook's artefact was written after the second's."""
    return _artefact(folder, first).stat().st_mtime_ns > _artefact(folder, second).stat().st_mtime_ns


def _fault(folder: RunFolder, step: NotebookStep, validate: Validate | None) -> str:
    try:
        if validate is not None:
            validate(folder.path, step.artefact)
    except WiringError as error:
        return error.problem
    return ""


def _how_it_ended(output: Path) -> str:
    """Return what the saved copy of a notebook without artefact says about its end; "" where there is none."""
    try:
        outcome = json.loads(output.read_text(encoding="utf-8"))["metadata"].get("wiring", {})
        return f"it {outcome['outcome'].replace('_', ' ')}: {outcome['message']}"[:200] if outcome else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _times(marker: Path) -> tuple[str, str]:
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        return str(content.get("finished", ""))[:16].replace("T", " "), str(content.get("took", ""))
    except (OSError, ValueError, AttributeError):
        return "", ""
