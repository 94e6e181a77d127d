"""Saving an executed notebook gives the same bytes each time, and nothing at all when a cell fails."""

from __future__ import annotations

import nbformat
import pytest
from hygiene import problems
from nbformat.v4 import new_code_cell, new_notebook

from wiring.errors import WiringError
from wiring.figures.save_reference import main, save_reference

FIGURE = "import plotly.graph_objects as go\ngo.Figure(go.Scatter(y=[rows, 2]))"
WIDGET = "import ipywidgets\nipywidgets.IntSlider(rows)"
PLACE = "import pathlib\nprint(pathlib.Path.cwd().name)"


@pytest.fixture
def path(tmp_path):
    """Return a notebook as an editor saves it: not executed, with metadata of a session."""
    parameters = new_code_cell("rows: int = 3  # how many", id="parameters")
    parameters.metadata.update(tags=["parameters"], execution={"iopub.status.busy": "2026-01-01"}, collapsed=False)
    cells = [
        parameters,
        *(new_code_cell(code, id=name) for name, code in (("figure", FIGURE), ("widget", WIDGET), ("place", PLACE))),
    ]
    book = new_notebook(cells=cells)
    book.metadata.update(kernelspec={"name": "my-venv", "display_name": "mine"}, toc={"base": 1})
    folder = tmp_path / "books"
    folder.mkdir()
    nbformat.write(book, folder / "a.ipynb")
    return folder / "a.ipynb"


def test_same_bytes_twice_and_clean(path):
    assert save_reference(path) is True
    first = path.read_bytes()
    assert save_reference(path) is False
    assert path.read_bytes() == first
    assert problems(path) == []
    book = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
    assert dict(book.metadata) == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    }
    assert dict(book.cells[0].metadata) == {"tags": ["parameters"]}
    figure, widget, place = (cell.outputs for cell in book.cells[1:])
    assert set(figure[0].data) == {"application/vnd.plotly.v1+json"} | set(figure[0].data) & {"text/plain"}
    assert set(widget[0].data) == {"text/plain"}
    assert place[0].text == "books\n"


def test_the_output_of_one_cell_is_joined(path):
    book = nbformat.read(path, as_version=4)
    book.cells[-1].source = "import time\nfor part in 'abc':\n    print(part, end='', flush=True)\n    time.sleep(0.3)"
    nbformat.write(book, path)
    save_reference(path)
    outputs = nbformat.read(path, as_version=4).cells[-1].outputs
    assert [(output.name, output.text) for output in outputs] == [("stdout", "abc")]


def test_a_failing_cell_leaves_the_file_as_it_was(path, capsys):
    book = nbformat.read(path, as_version=4)
    book.cells[-1].source = "raise ValueError('no such thing')"
    nbformat.write(book, path)
    before = path.read_bytes()
    with pytest.raises(WiringError) as error:
        save_reference(path)
    assert (error.value.code, error.value.found) == ("notebook-failed", "ValueError: no such thing")
    assert main([str(path)]) == 1
    assert "no such thing" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_missing_notebook_is_an_error(tmp_path):
    with pytest.raises(WiringError) as error:
        save_reference(tmp_path / "none.ipynb")
    assert error.value.code == "notebook-missing"
