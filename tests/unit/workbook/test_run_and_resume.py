"""The chain runs in order, and on the next call runs exactly what its keys say has changed."""

from __future__ import annotations

import json

import nbformat
import pytest

from wiring.errors import WiringError

ALL = ("01_step", "02_step", "03_step")


def test_runs_in_order_and_then_resumes(toy):
    first = toy.chain()
    assert (first.run, first.ran, first.resumed) == (toy.run, ALL, ())
    assert toy.executions() == "123"
    assert [toy.value(number) for number in (1, 2, 3)] == [2, 4, 8]
    assert json.loads((toy.run / "01_value.json").read_text())["measure"] == "live"
    assert toy.markers() == ["01.done.json", "02.done.json", "03.done.json"]
    assert set(toy.statuses(2).values()) == {"completed"}
    assert (toy.run / "logs" / "02_step.log").stat().st_size > 0

    second = toy.chain()
    assert (second.ran, second.resumed) == ((), ALL)
    assert toy.executions() == "123"


@pytest.fixture
def done(toy, in_process):
    toy.chain()
    return toy


def test_a_changed_parameter_runs_all_that_declare_it_and_those_behind(done):
    assert done.chain(overrides={"factor": 3}).ran == ALL
    assert done.value(3) == 27
    assert done.chain(overrides={"factor": 3}).ran == ()
    done.write(2, parameters=f"{done.parameters}\nonly_here: int = 0")
    done.chain()
    assert done.chain(overrides={"only_here": 1}).ran == ALL[1:]


def test_without_resume_all_run_again(done):
    assert done.chain(resume=False).ran == ALL
    assert done.executions() == "123" * 2


def test_changed_code_runs_from_there_on(done):
    done.write(2, extra="value += 1")
    assert done.chain().ran == ALL[1:]
    assert done.value(3) == 10


def test_changed_prose_runs_nothing(done):
    path = done.root / "notebooks" / "02_step.ipynb"
    book = nbformat.read(path, as_version=4)
    book.cells[0].source = "# Another title"
    book.cells[-1].execution_count = 7
    nbformat.write(book, path)
    assert done.chain().ran == ()


@pytest.mark.parametrize("changed", ["library/code.py", "input/data.txt", "toy.yaml"])
def test_changed_library_input_or_profile_runs_all(done, changed):
    path = done.root / changed
    path.write_text(path.read_text() + "# more\n")
    assert done.chain().ran == ALL


def test_moved_checkout_does_not_run_again(done, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere") / "checkout"
    done.root.rename(moved)
    assert type(done)(moved).chain().ran == ()


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "02_value.json").write_text('{"value": 5}'),
        lambda run: (run / "02_value.json").unlink(),
        lambda run: (run / "02.done.json").unlink(),
        lambda run: (run / "02.done.json").write_text("{"),
        lambda run: (run / "notebooks" / "02_step.ipynb").unlink(),
    ],
    ids=["artefact edited", "artefact gone", "marker gone", "marker cut", "executed notebook gone"],
)
def test_a_damaged_result_does_not_stand(done, damage):
    damage(done.run)
    result = done.chain()
    assert result.ran[0] == "02_step"
    assert done.value(3) == 8
    assert len(done.markers()) == 3


def test_same_artefact_again_leaves_those_behind_it_standing_but_a_new_one_does_not(toy, in_process):
    toy.write(
        1, write='import os\npathlib.Path(run, "{artefact}.json").write_text(json.dumps({{"value": os.getpid()}}))'
    )
    toy.chain()
    (toy.run / "01.done.json").unlink()
    assert toy.chain().ran == ALL


def test_an_artefact_that_does_not_validate_is_no_result(toy, in_process):
    def validate(run, name):
        if json.loads((run / f"{name}.json").read_text())["value"] > 4:
            raise WiringError("too large", code="too-large", where=name)

    with pytest.raises(WiringError) as error:
        toy.chain(validate=validate)
    assert (error.value.code, error.value.where) == ("artefact-invalid", "03_step")
    assert toy.markers() == ["01.done.json", "02.done.json"]


def test_a_notebook_that_leaves_no_artefact_is_told(toy, in_process):
    toy.write(2, write="pass")
    with pytest.raises(WiringError) as error:
        toy.chain()
    assert (error.value.code, error.value.where) == ("artefact-missing", "02_step")
    assert toy.markers() == ["01.done.json"]


def test_finish_is_called_when_something_ran_or_its_results_are_gone(toy, in_process):
    calls = []

    def finish(run):
        calls.append(sorted(path.name for path in run.glob("*.done.json")))
        for name in ("summary.json", "report.html"):
            (run / name).write_text("x")

    toy.chain(finish=finish)
    assert calls == [["01.done.json", "02.done.json", "03.done.json"]]
    toy.chain(finish=finish)
    assert len(calls) == 1
    (toy.run / "report.html").unlink()
    toy.chain(finish=finish)
    assert len(calls) == 2


def test_results_go_away_before_a_rerun(toy, in_process):
    toy.chain()
    (toy.run / "summary.json").write_text("{}")
    toy.write(3, extra="raise ValueError('no')")
    with pytest.raises(ValueError):
        toy.chain()
    assert not (toy.run / "summary.json").exists()
    assert toy.markers() == ["01.done.json", "02.done.json"]
    assert not (toy.run / "03_value.json").exists()


def test_a_folder_that_no_run_made_is_left_alone(toy):
    toy.run.mkdir(parents=True)
    (toy.run / "thesis.txt").write_text("mine")
    with pytest.raises(WiringError) as error:
        toy.chain()
    assert error.value.code == "not-a-run-folder"
    assert [path.name for path in toy.run.iterdir()] == ["thesis.txt"]


def test_what_a_cell_prints_is_one_output_however_it_arrives(toy):
    toy.write(1, extra="import time\nfor part in 'abc':\n    print(part, end='', flush=True)\n    time.sleep(0.3)")
    toy.chain(1)
    outputs = next(cell["outputs"] for cell in toy.executed(1)["cells"] if cell["id"] == "extra")
    assert [(output["name"], "".join(output["text"])) for output in outputs] == [("stdout", "abc")]
