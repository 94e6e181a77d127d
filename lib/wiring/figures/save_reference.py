"""`python -m wiring.figures.save_reference notebooks/*.ipynb`: execute notebooks in place and save them normalized.

The saved notebook holds nothing that changes from run to run (times, widget state, session ids): two runs on one
machine give the same bytes, so a diff in git is a change of the notebook's results.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wiring.checkpoints.atomic import write_text
from wiring.errors import WiringError
from wiring.workbook import notebook_files
from wiring.workbook.notebook_page import WIDGET

if TYPE_CHECKING:
    from nbformat import NotebookNode

_CELL_TIMEOUT_S = 600
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def save_reference(path: Path) -> bool:
    """Execute the notebook with its own parameters in its own folder and save it; return whether its bytes changed.

    Raises WiringError if the file does not exist or a cell fails; the file is then unchanged.
    """
    nbformat = notebook_files.nbformat()
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    if not path.is_file():
        raise WiringError("there is no such notebook", code="notebook-missing", where=path)
    before = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(before, as_version=4)
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # "python3" is the kernel of this environment, not the user's
    client = NotebookClient(
        notebook,
        timeout=_CELL_TIMEOUT_S,
        iopub_timeout=60,  # seconds to wait for output; later output is dropped silently
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,  # on a busy machine the output of one cell arrives in several parts
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
        raise WiringError(
            "the notebook failed and was not saved", code="notebook-failed", where=path, found="".join(lines[-1:])
        ) from error
    after = nbformat.writes(normalize(notebook)) + "\n"
    if after != before:
        write_text(path, after)
    return after != before


def normalize(notebook: NotebookNode) -> NotebookNode:
    """Keep only kernel and tags of the metadata, and of widgets only their text."""
    notebook.metadata = type(notebook.metadata)(kernelspec=dict(KERNEL))
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = type(cell.metadata)({"tags": tags} if tags else {})
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.pop(WIDGET, None)
            if "metadata" in output:
                output.metadata = {key: value for key, value in output.metadata.items() if key in data}
    return notebook


def main(paths: Sequence[str]) -> int:
    """Execute and save each notebook, and return the exit status: 1 after the first one that fails."""
    for path in map(Path, paths):
        print(f"{path}: executing", flush=True)
        try:
            print(f"{path}: {'saved' if save_reference(path) else 'unchanged'}", flush=True)
        except WiringError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
