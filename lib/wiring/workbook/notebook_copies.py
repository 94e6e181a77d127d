"""Copy the notebooks for one case, to be run by hand: parameters set, no outputs, the originals unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wiring.checkpoints.atomic import write_text
from wiring.errors import WiringError
from wiring.workbook import notebook_files
from wiring.workbook.notebook_parameters import TAG, open_notebook
from wiring.workbook.run_folder import is_run_folder
from wiring.workbook.run_notebooks import RunPlan

FOLDER = "by-hand"


@dataclass(frozen=True)
class Copies:
    """The folder of the copies, the names of those written now and of those that existed and were kept."""

    folder: Path
    written: tuple[str, ...]
    kept: tuple[str, ...]


def copy_notebooks(plan: RunPlan, measure: Literal["live", "recorded"] = "live") -> Copies:
    """Write the plan's notebooks into <run folder>/by-hand; existing copies belong to the user and are kept.

    Each copy has a second parameters cell, as papermill would inject it: the profile, the run folder and `measure`.
    Raises WiringError: measure-unknown, not-a-run-folder, run-folder-locked.
    """
    if measure not in ("live", "recorded"):
        raise WiringError(
            "unknown value", code="measure-unknown", where="measure", expected="live or recorded", found=repr(measure)
        )
    folder, goal = plan.folder, plan.folder.path / FOLDER
    folder.create()
    written, kept = [], []
    with folder.locked():
        if not is_run_folder(folder.path):
            folder.sign(plan.profile, {})
        for step in plan.steps:
            path = goal / f"{step.name}.ipynb"
            if path.exists():
                kept.append(step.name)
                continue
            write_text(path, _copy(plan.sources[step.name], {**plan.values[step.name], "measure": measure}))
            written.append(step.name)
    return Copies(goal, tuple(written), tuple(kept))


def _copy(source: Path, values: dict[str, object]) -> str:
    nbformat = notebook_files.nbformat()
    notebook = open_notebook(source)
    (at,) = (number for number, cell in enumerate(notebook.cells) if TAG in cell.metadata.get("tags", []))
    lines = ["# Set for this case; the cell above holds the defaults", *(f"{k} = {v!r}" for k, v in values.items())]
    cell = nbformat.v4.new_code_cell("\n".join(lines), id="injected-parameters")
    cell.metadata["tags"] = ["injected-parameters"]
    notebook.cells.insert(at + 1, cell)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = None, []
    return nbformat.writes(notebook) + "\n"
