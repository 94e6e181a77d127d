"""Notebooks stay thin: at most six import lines from wiring, and cells of at most 25 lines."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_and_few_lines_import_from_wiring(path):
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    imports = [line for cell in cells for line in cell.splitlines() if re.match(r"\s*(from|import) wiring\b", line)]
    assert len(imports) <= 6
    assert max(len(cell.splitlines()) for cell in cells) <= 25
