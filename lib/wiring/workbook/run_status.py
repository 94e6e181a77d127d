"""How far a run is: which steps did not run, ran, or are stale, by the same keys that the chain resumes by.

Nothing is run and nothing is written. A step that was run by hand leaves its artefact and no marker; of such a one only
the order in time is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wiring.errors import WiringError
from wiring.workbook.cache_keys import Done, read_done, still_stands
from wiring.workbook.run_folder import RunFolder
from wiring.workbook.run_notebooks import Link, Plan

if TYPE_CHECKING:
    import pandas as pd

State = Literal["not run", "ran", "stale"]
Validate = Callable[[Path, str], object]
BY_HAND = "by hand: what it was made from is not recorded, so `wiring run` runs it again"


@dataclass(frozen=True)
class Step:
    """One notebook of a run: its state, why it is not simply "ran", and when (UTC) and how long (m:ss) it last ran."""

    name: str
    state: State
    why: str = ""
    finished: str = ""
    took: str = ""


def steps(plan: Plan, validate: Validate | None = None) -> tuple[Step, ...]:
    """The steps of the plan's run folder, in order; the folder need not be there.

    `validate(run folder, artefact name)` raises WiringError where an artefact is not what it should be, as in
    `wiring.workbook.run_notebooks.run_chain`.
    """
    found: list[Step] = []
    upstream: str | None = ""  # what the step before passes on; None where it has no record that stands
    for at in range(len(plan.links)):
        step, upstream = _step(plan, at, found[-1] if found else None, upstream, validate)
        found.append(step)
    return tuple(found)


def table(found: tuple[Step, ...]) -> pd.DataFrame:
    """The steps as a table: one row each, indexed by name."""
    import pandas as pd

    rows = [(step.name, step.state, step.why, step.finished, step.took) for step in found]
    return pd.DataFrame(rows, columns=["step", "state", "why", "finished (UTC)", "took"]).set_index("step")


def _step(
    plan: Plan, at: int, before: Step | None, upstream: str | None, validate: Validate | None
) -> tuple[Step, str | None]:
    """The step at this place, and what it passes on."""
    link, folder = plan.links[at], plan.folder
    artefact = _artefact(folder, link)
    if not artefact.is_file():
        return Step(link.name, "not run", _how_it_ended(folder.output(link.name))), None
    done = read_done(folder.marker(link.name))
    if done is not None and not (artefact.name in done.files and still_stands(done, folder.path)):
        done = None  # the marker speaks of other files: the notebook was run by hand since
    invalid = _fault(folder, link, validate)
    if invalid:
        state, why = "stale", f"its artefact is not valid: {invalid}"
    elif before is not None and before.state != "ran":
        state, why = "stale", f"{before.name} before it {'is stale' if before.state == 'stale' else 'has not run'}"
    elif before is not None and (done is None or upstream is None) and _later(folder, plan.links[at - 1], link):
        state, why = "stale", f"{before.name} before it ran again since"
    elif done is None:
        state, why = "ran", BY_HAND
    elif upstream is None:
        state, why = "ran", f"on a {before.name} that was run by hand" if before is not None else ""
    elif done.key != plan.key(link, upstream):
        state, why = "stale", "its code, parameters or input changed since, or the package or a version"
    elif not folder.output(link.name).is_file():
        state, why = "stale", "its executed notebook is gone"
    else:
        state, why = "ran", ""
    finished, took = _times(folder.marker(link.name)) if done is not None else ("", "")
    stands = done is not None and upstream is not None and state == "ran"
    return Step(link.name, state, why, finished, took), _passes_on(done) if stands else None


def _passes_on(done: Done | None) -> str | None:
    return None if done is None else done.passes_on


def _artefact(folder: RunFolder, link: Link) -> Path:
    return folder.path / f"{link.artefact}.json"


def _later(folder: RunFolder, first: Link, second: Link) -> bool:
    """Whether the first notebook's artefact was written after the second's."""
    return _artefact(folder, first).stat().st_mtime_ns > _artefact(folder, second).stat().st_mtime_ns


def _fault(folder: RunFolder, link: Link, validate: Validate | None) -> str:
    try:
        if validate is not None:
            validate(folder.path, link.artefact)
    except WiringError as error:
        return error.problem
    return ""


def _how_it_ended(output: Path) -> str:
    """Of a notebook that left no artefact: what its saved copy says about its end; "" where there is none."""
    try:
        told = json.loads(output.read_text(encoding="utf-8"))["metadata"].get("wiring", {})
        return f"it {told['outcome'].replace('_', ' ')}: {told['message']}"[:200] if told else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _times(marker: Path) -> tuple[str, str]:
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        return str(content.get("finished", ""))[:16].replace("T", " "), str(content.get("took", ""))
    except (OSError, ValueError, AttributeError):
        return "", ""
