"""Copies to be run by hand have the case's parameters, work in its run folder, and are never written over."""

from __future__ import annotations

import nbformat
import pytest

from wiring.errors import WiringError
from wiring.workbook.notebook_copies import copy_notebooks
from wiring.workbook.notebook_parameters import read_parameters
from wiring.workbook.run_folder import RunFolder, read_record
from wiring.workbook.run_status import steps


def run_all(path):
    """Run All, in this process: what the notebook's variables are then."""
    scope: dict = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, scope)
    return scope


def test_copies_carry_the_case_and_run_in_its_folder(toy):
    before = {path.name: path.read_bytes() for path in (toy.root / "notebooks").iterdir()}
    copies = copy_notebooks(toy.plan(overrides={"factor": 3}), "recorded")
    assert copies.written == ("01_step", "02_step", "03_step") and copies.kept == ()
    for name in copies.written:
        path = copies.folder / f"{name}.ipynb"
        assert [parameter.name for parameter in read_parameters(path)][0] == "profile"
        scope = run_all(path)
        assert (scope["profile"], scope["run"]) == (str(toy.profile), str(toy.run))
        assert (scope["measure"], scope["factor"]) == ("recorded", 3)
    assert toy.value(3) == 27
    assert [step.state for step in steps(toy.plan())] == ["ran"] * 3
    assert {path.name: path.read_bytes() for path in (toy.root / "notebooks").iterdir()} == before
    assert read_record(toy.run)["profile"] == str(toy.profile)


def test_a_copy_that_is_there_is_the_readers(toy):
    first = copy_notebooks(toy.plan())
    mine = first.folder / "02_step.ipynb"
    mine.write_text("mine")
    (first.folder / "03_step.ipynb").unlink()
    again = copy_notebooks(toy.plan())
    assert (again.written, again.kept) == (("03_step",), ("01_step", "02_step"))
    assert mine.read_text() == "mine"


def test_copies_have_no_outputs_of_another_case(toy):
    path = toy.root / "notebooks" / "01_step.ipynb"
    book = nbformat.read(path, as_version=4)
    book.cells[-1].execution_count = 3
    book.cells[-1].outputs = [nbformat.v4.new_output("stream", text="of the tiny pair")]
    nbformat.write(book, path)
    copied = nbformat.read(copy_notebooks(toy.plan()).folder / path.name, as_version=4)
    nbformat.validate(copied)
    code = [cell for cell in copied.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)


def test_the_record_of_a_run_is_kept_and_the_chain_goes_on_beside_the_copies(toy, in_process):
    toy.chain(overrides={"factor": 3})
    copy_notebooks(toy.plan())
    assert read_record(toy.run)["overrides"] == {"factor": 3}
    assert toy.chain(overrides={"factor": 3}).ran == ()


def test_what_is_not_ours_or_at_work_is_left_alone(toy):
    toy.run.mkdir(parents=True)
    (toy.run / "thesis.txt").write_text("mine")
    with pytest.raises(WiringError) as error:
        copy_notebooks(toy.plan())
    assert error.value.code == "not-a-run-folder"
    (toy.run / "thesis.txt").unlink()
    with RunFolder(toy.run).locked(), pytest.raises(WiringError) as error:
        copy_notebooks(toy.plan())
    assert error.value.code == "run-folder-locked"
    assert not (toy.run / "by-hand").exists()
    with pytest.raises(WiringError) as error:
        copy_notebooks(toy.plan(), "guessed")
    assert error.value.code == "measure-unknown"
