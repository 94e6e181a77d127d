"""nbval under this repository's settings: a changed result fails, a changed figure or warning does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).parents[3]
FIGURE = "import plotly.graph_objects as go\ngo.Figure(go.Scatter(y=[1, 2]))"
WARNING = "import sys\nprint('took 1.234 s', file=sys.stderr)"


def verdict(folder: Path, printed: str) -> subprocess.CompletedProcess:
    """Run nbval on a notebook whose saved outputs are `printed`, an old figure and an old warning."""
    figure = new_output(
        "execute_result", {"application/vnd.plotly.v1+json": {"data": [], "layout": {}}}, execution_count=2
    )
    cells = [
        new_code_cell("print(6 * 7)", execution_count=1, outputs=[new_output("stream", name="stdout", text=printed)]),
        new_code_cell(FIGURE, execution_count=2, outputs=[figure]),
        new_code_cell(WARNING, execution_count=3, outputs=[new_output("stream", name="stderr", text="took 9 s\n")]),
    ]
    book = new_notebook(cells=cells)
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, folder / "book.ipynb")
    shutil.copy(ROOT / "conftest.py", folder)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--nbval",
        "--nbval-current-env",
        "-q",
        "book.ipynb",
    ]
    environment = {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("printed", "status", "summary"), [("42\n", 0, "3 passed"), ("41\n", 1, "1 failed, 2 passed")])
def test_results_are_compared_and_figures_are_not(tmp_path, printed, status, summary):
    ran = verdict(tmp_path, printed)
    assert ran.returncode == status, ran.stdout + ran.stderr
    assert summary in ran.stdout
