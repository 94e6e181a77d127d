"""The picker calls its functions with the chosen case and shows the result or the error; the cell is one fixed line."""

from __future__ import annotations

import pytest

from wiring.errors import WiringError
from wiring.figures.picker import Picker


@pytest.fixture
def picker(tmp_path):
    """A picker over two profiles; `picker.calls` is what its functions were called with."""
    calls = []

    def draw(path):
        calls.append(path.name)
        if path.name == "bad.yaml":
            raise WiringError("not readable as YAML", where=path.name)
        return f"steps of {path.name}"

    def write(path, measure):
        calls.append((path.name, measure))
        return "written"

    for name in ("a.yaml", "b.yaml", "c.yaml", "bad.yaml"):
        (tmp_path / name).touch()
    options = {f"{name} ({name}.yaml)": tmp_path / f"{name}.yaml" for name in ("a", "b")}
    made = Picker(options, options["b (b.yaml)"], draw, write)
    made.calls, made.folder = calls, tmp_path
    return made


def shown(output) -> str:
    (one,) = output.outputs
    return one["data"]["text/markdown"]


def test_the_chosen_case_is_shown_at_once_and_at_each_choice(picker):
    assert shown(picker.steps) == "steps of b.yaml"
    picker.case.value = picker.folder / "a.yaml"
    assert shown(picker.steps) == "steps of a.yaml"
    picker.refresh.click()
    assert picker.calls == ["b.yaml", "a.yaml", "a.yaml"]


def test_another_profile_joins_the_choices(picker):
    picker.other.value = str(picker.folder / "c.yaml")
    assert picker.case.value == picker.folder / "c.yaml" and shown(picker.steps) == "steps of c.yaml"
    assert [label for label, _ in picker.case.options] == ["a (a.yaml)", "b (b.yaml)", "c.yaml"]
    picker.other.value = str(picker.folder / "a.yaml")
    assert len(picker.case.options) == 3 and shown(picker.steps) == "steps of a.yaml"
    picker.other.value = str(picker.folder / "none.yaml")
    assert "There is no YAML file" in shown(picker.steps) and picker.case.value == picker.folder / "a.yaml"


def test_an_error_is_shown_in_place_of_the_answer(picker):
    picker.other.value = str(picker.folder / "bad.yaml")
    assert shown(picker.steps) == "**bad.yaml: not readable as YAML.**"


def test_notebooks_are_written_for_the_case_and_the_measure_and_the_state_is_read_again(picker):
    picker.measure.value = "recorded"
    picker.write.click()
    assert picker.calls[-2:] == [("b.yaml", "recorded"), "b.yaml"] and shown(picker.result) == "written"


def test_nothing_is_written_for_a_case_that_is_not_shown(picker):
    picker.write.click()
    (picker.folder / "notes.toml").touch()
    for name in ("none.yaml", "notes.toml", "bad.yaml"):
        picker.other.value = str(picker.folder / name)
        assert picker.write.disabled, name
    assert "notes.toml" not in [label for label, _ in picker.case.options]
    picker.case.value = picker.folder / "a.yaml"
    assert not picker.write.disabled and picker.result.outputs == ()  # what was written was for another case
    picker.other.value = str(picker.folder / "none.yaml")
    picker.other.value = ""
    assert not picker.write.disabled and shown(picker.steps) == "steps of a.yaml"


def test_the_cell_holds_one_fixed_line(picker):
    assert picker._repr_mimebundle_()["text/plain"] == repr(picker)
    assert str(picker.folder) not in repr(picker) and len(repr(picker)) < 110
