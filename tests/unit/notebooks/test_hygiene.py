"""The committed notebooks are executed and clean, and a stripped or careless one would not pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from hygiene import problems
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from wiring.workbook.run_notebooks import WORKBOOK

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))


def test_the_index_and_the_five_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["00_index", *(link.name for link in WORKBOOK)]


def test_the_index_links_to_the_five_in_order():
    index = nbformat.read(NOTEBOOKS[0], as_version=4)
    text = "".join(cell.source for cell in index.cells if cell.cell_type == "markdown")
    assert re.findall(r"\]\((\w+\.ipynb)\)", text) == [f"{link.name}.ipynb" for link in WORKBOOK]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_is_executed_and_clean(path):
    assert problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_stripped_copy_would_not_pass(path, tmp_path):
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = None, []
    nbformat.write(book, tmp_path / path.name)
    found = problems(tmp_path / path.name)
    assert any("execution counts" in text for text in found)
    assert any("nbval would compare nothing" in text for text in found)


@pytest.fixture
def book():
    """A notebook with nothing wrong."""
    parameters = new_code_cell("rows: int = 3  # how many", id="parameters", execution_count=1)
    parameters.metadata.tags = ["parameters"]
    result = new_output("execute_result", {"text/plain": "6"}, execution_count=2)
    cells = [parameters, new_code_cell("rows * 2", id="double", execution_count=2, outputs=[result])]
    book = new_notebook(cells=cells)
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


@pytest.fixture
def check(tmp_path):
    """Write a notebook and look at it."""

    def look(book) -> list[str]:
        nbformat.write(book, tmp_path / "book.ipynb")
        return problems(tmp_path / "book.ipynb")

    return look


def test_a_clean_notebook_passes(book, check):
    assert check(book) == []


def _strip(book):
    for cell in book.cells:
        cell.execution_count, cell.outputs = None, []


def _out_of_order(book):
    book.cells[0].execution_count, book.cells[1].execution_count = 2, 3


def _error(book):
    book.cells[1].outputs.append(new_output("error", ename="ValueError", evalue="no", traceback=[]))


def _widget_state(book):
    book.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}


def _widget_view(book):
    book.cells[1].outputs[0].data["application/vnd.jupyter.widget-view+json"] = {"model_id": "7f"}


def _papermill_times(book):
    book.cells[1].metadata.papermill = {"duration": 1.0}


def _second_parameters_cell(book):
    book.cells[1].metadata.tags = ["parameters"]


def _unseen_by_papermill(book):
    book.cells[0].source = 'rows: str = "a=b"'


def _without_help(book):
    book.cells[0].source = "rows: int = 3"


def _help_cut_in_the_value(book):
    book.cells[0].source = 'rows: str = "a # b"  # how many'


def _long_prose(book):
    book.cells.append(new_markdown_cell("\n".join(["word"] * 26), id="prose"))


def _kernel(book):
    book.metadata.kernelspec["name"] = "my-gpu"


def _long(book):
    book.cells[1].source = "\n".join(["rows"] * 26)


def _large(book):
    book.cells[1].outputs[0].data["text/plain"] = "x" * 300_000


def _random_id(book):
    book.cells[1].id = "3f2a9c1b"


def _machine_path(book):
    book.cells[1].outputs[0].data["text/plain"] = "PosixPath('/home/me/workbook')"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_strip, "execution counts are [None, None], not 1 to 2"),
        (_out_of_order, "execution counts are [2, 3]"),
        (_error, "cell double: error output ValueError"),
        (_widget_state, "metadata 'widgets'"),
        (_widget_view, "cell double: a widget's id"),
        (_papermill_times, "cell double: metadata 'papermill'"),
        (_second_parameters_cell, "2 cells"),
        (_unseen_by_papermill, "papermill sees the parameters [], the cell declares ['rows']"),
        (_without_help, "parameter rows has no comment"),
        (_help_cut_in_the_value, "papermill sees rows = \"a, not 'a # b'"),
        (_long_prose, "cell prose: 26 lines, more than 25"),
        (_kernel, "kernel 'my-gpu' instead of 'python3'"),
        (_long, "cell double: 26 lines, more than 25"),
        (_large, "300000 or more"),
        (_random_id, "cell 3f2a9c1b: the id says nothing"),
        (_machine_path, "cell double: a path of one machine"),
    ],
)
def test_each_fault_is_seen(book, check, spoil, said):
    spoil(book)
    assert any(said in text for text in check(book)), check(book)


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")
def test_two_cells_of_one_id_are_seen_although_nbformat_mends_them_in_silence(book, tmp_path):
    book.cells[1].id = book.cells[0].id
    (tmp_path / "book.ipynb").write_text(json.dumps(book))
    assert "2 cells with the id parameters" in problems(tmp_path / "book.ipynb")


def test_a_file_that_is_no_notebook_is_a_problem(tmp_path):
    (tmp_path / "x.ipynb").write_text("{}")
    assert "not a notebook" in problems(tmp_path / "x.ipynb")[0]
