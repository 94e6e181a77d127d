"""What a committed notebook must be: executed from top to bottom, without traces of a session, readable.

nbval compares nothing where a cell was never executed, so a stripped notebook would pass it; here it does not.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

from wiring.errors import WiringError
from wiring.workbook.notebook_parameters import Parameter, open_notebook, read_parameters

LONGEST_CELL = 25
LARGEST_BYTES = 300_000
KERNEL = "python3"
_RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4})*|[0-9]+")
_STRAY_CELL_METADATA = ("execution", "papermill", "widgets")
_STRAY_METADATA = ("widgets", "papermill", "language_info", "wiring")


def problems(path: str | Path) -> list[str]:
    """Everything that is wrong with the notebook at `path`, in words; an empty list where nothing is."""
    path = Path(path)
    try:
        notebook = open_notebook(path)
    except WiringError as error:
        return [str(error)]
    found = []
    if path.stat().st_size >= LARGEST_BYTES:
        found.append(f"{path.stat().st_size} bytes, {LARGEST_BYTES} or more")
    name = notebook.metadata.get("kernelspec", {}).get("name")
    if name != KERNEL:
        found.append(f"kernel {name!r} instead of {KERNEL!r}")
    found += [f"metadata {key!r}" for key in _STRAY_METADATA if key in notebook.metadata]
    found += _parameters(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"execution counts are {counts}, not 1 to {len(code)}: run all cells of a fresh kernel")
    if not any(cell.outputs for cell in code):
        found.append("no cell has an output: nbval would compare nothing")
    found += _ids(path)
    for cell in notebook.cells:
        found += [f"cell {cell.id}: {fault}" for fault in _faults(cell)]
    return found


def _ids(path: Path) -> list[str]:
    """Ids that are missing or not unique. From the file itself: nbformat gives new ones in silence."""
    ids = Counter(cell.get("id") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
    missing = [f"{ids.pop(None)} cells without an id"] if None in ids else []
    return missing + [f"{count} cells with the id {name}" for name, count in ids.items() if count > 1]


def _parameters(path: Path) -> list[str]:
    """Parameters that papermill does not see as they are declared: name, type, default, and a word of help."""
    try:
        declared = read_parameters(path)
    except WiringError as error:
        return [str(error)]
    from papermill import inspect_notebook

    seen = inspect_notebook(str(path))
    names = [parameter.name for parameter in declared]
    if names != list(seen):
        return [f"papermill sees the parameters {list(seen)}, the cell declares {names}"]
    return [fault for parameter in declared for fault in _misread(parameter, seen[parameter.name])]


def _misread(parameter: Parameter, seen: dict) -> list[str]:
    faults = []
    if seen["inferred_type_name"] != parameter.type:
        faults.append(f"papermill sees {parameter.name} as {seen['inferred_type_name']}, not {parameter.type}")
    try:
        same = ast.literal_eval(seen["default"]) == parameter.default
    except (SyntaxError, ValueError):
        same = False
    if not same:
        faults.append(f"papermill sees {parameter.name} = {seen['default']}, not {parameter.default!r}")
    if not seen["help"].strip():
        faults.append(f"parameter {parameter.name} has no comment, which is papermill's help")
    return faults


def _faults(cell) -> list[str]:
    faults = []
    if _RANDOM_ID.fullmatch(cell.id):
        faults.append("the id says nothing; give it a word")
    faults += [f"metadata {key!r}" for key in _STRAY_CELL_METADATA if key in cell.metadata]
    lines = cell.source.count("\n") + 1
    if lines > LONGEST_CELL:
        faults.append(f"{lines} lines, more than {LONGEST_CELL}")
    if cell.cell_type != "code":
        return faults
    if not cell.source.strip():
        faults.append("empty")
    for output in cell.outputs:
        if output.output_type == "error":
            faults.append(f"error output {output.ename}")
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
            faults.append("a widget's id in its output")
        if re.search(r"(?<![\w.])/(home|root|Users|tmp)/", json.dumps(output)):
            faults.append("a path of one machine in its output")
    return faults
