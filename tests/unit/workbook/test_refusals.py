"""Unknown and invalid parameters, and notebooks that cannot take any, are refused before anything runs."""

from __future__ import annotations

import pytest
from papermill import inspect_notebook

from wiring.errors import WiringError
from wiring.workbook.notebook_parameters import Parameter, check_value, parse_value, read_parameters


def refusal(call) -> WiringError:
    with pytest.raises(WiringError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("overrides", "code", "where", "expected"),
    [
        ({"faktor": 3}, "parameter-unknown", "", "one of factor, loud, measure, profile, run"),
        ({"factor": "3"}, "parameter-invalid", "01_step", "int"),
        ({"factor": 3.0}, "parameter-invalid", "01_step", "int"),
        ({"factor": True}, "parameter-invalid", "01_step", "int"),
        ({"loud": "true"}, "parameter-invalid", "01_step", "bool"),
        ({"loud": 1}, "parameter-invalid", "01_step", "bool"),
        ({"run": "/tmp"}, "parameter-reserved", "", ""),
    ],
)
def test_unknown_and_mistyped_parameters(toy, overrides, code, where, expected):
    error = refusal(lambda: toy.chain(overrides=overrides))
    assert (error.code, error.where, error.expected) == (code, where, expected)
    assert toy.executions() == "" and not toy.run.exists()


def test_a_fault_in_the_last_notebook_is_found_before_the_first_runs(toy):
    path = toy.root / "notebooks" / "03_step.ipynb"
    toy.write(3, parameters='profile: str = ""\nrun: str = ""')
    assert (refusal(toy.chain).code, refusal(toy.chain).where) == ("parameter-missing", "03_step")
    toy.write(3, parameters=None)
    assert (refusal(toy.chain).code, refusal(toy.chain).found) == ("parameters-cell-invalid", "0 cells")
    path.unlink()
    assert refusal(toy.chain).code == "notebook-missing"
    path.write_text("{}")
    assert refusal(toy.chain).code == "not-a-notebook"
    assert toy.executions() == ""


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("n: int = 1\nm = 2", "m = 2"),
        ("n: int = 1\nm: int = n * 2", ""),
        ("n: int", "n: int"),
        ("import os", "import os"),
        ("n: int | None = None", "n: int | None = None"),
        ("n: float = float('nan')", ""),
        ("n: int = 1\nn: int = 2", "n, n"),
        ("%matplotlib inline", ""),
    ],
)
def test_parameters_cells_that_are_refused(toy, cell, found):
    error = refusal(lambda: read_parameters(toy.write(1, parameters=cell)))
    assert error.code == "parameters-cell-invalid" and found in error.found


def test_the_parameters_are_those_that_papermill_sees(toy):
    cell = 'a: int = 1  # rows\nb: list[int] = [0, 3]\nc: str = "x"  # a name\nd: bool = False\ne: float = 2'
    path = toy.write(1, parameters=cell)
    mine = read_parameters(path)
    assert mine == (
        Parameter("a", "int", 1),
        Parameter("b", "list[int]", [0, 3]),
        Parameter("c", "str", "x"),
        Parameter("d", "bool", False),
        Parameter("e", "float", 2.0),
    )
    assert [parameter.name for parameter in mine] == list(inspect_notebook(str(path)))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "3", 3),
        ("float", "3", 3.0),
        ("float", "1e-3", 0.001),
        ("bool", "true", True),
        ("bool", "False", False),
        ("str", "3", "3"),
        ("list[int]", "[0, 3, 31]", [0, 3, 31]),
    ],
)
def test_texts_of_the_command_line(kind, text, value):
    parsed = parse_value(Parameter("p", kind, None), text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "3.0"),
        ("int", "x"),
        ("int", "true"),
        ("bool", "yes"),
        ("bool", "1"),
        ("list[int]", "0,3"),
        ("list[int]", "[0.5]"),
        ("float", "NaN"),
        ("float", "Infinity"),
    ],
)
def test_texts_of_another_type(kind, text):
    error = refusal(lambda: parse_value(Parameter("p", kind, None), text))
    assert (error.code, error.expected) == ("parameter-invalid", kind)


def test_values_are_not_converted():
    assert check_value(Parameter("p", "float", None), 1) == 1.0
    for kind, value in (("str", 1), ("list[int]", [1, True])):
        assert refusal(lambda k=kind, v=value: check_value(Parameter("p", k, None), v)).code == "parameter-invalid"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "profile-unreadable"),
        ("a: [1", "profile-unreadable"),
        ("name: ../up\n", "case-name-invalid"),
        ("name: 7\n", "case-name-invalid"),
    ],
)
def test_profiles_that_cannot_be_used(toy, content, code):
    toy.profile.unlink() if content is None else toy.profile.write_text(content)
    assert refusal(toy.chain).code == code


@pytest.mark.parametrize("seconds", [0, -1, 2.5, True])
def test_a_timeout_must_be_seconds(toy, seconds):
    error = refusal(lambda: toy.chain(execution_timeout=seconds))
    assert (error.code, error.found) == ("cell-timeout-invalid", repr(seconds)) and not toy.run.exists()


def test_measure_takes_two_words(toy):
    parameter = Parameter("measure", "str", None)
    for call in (check_value, parse_value):
        error = refusal(lambda c=call: c(parameter, "alive"))
        assert (error.code, error.expected) == ("parameter-invalid", "'live' or 'recorded'")
    cell = 'profile: str = ""\nrun: str = ""\nmeasure: str = "{}"\nmeasure_: str = "alive"'
    assert refusal(lambda: read_parameters(toy.write(1, parameters=cell.format("alive")))).code == "parameter-invalid"
    assert read_parameters(toy.write(1, parameters=cell.format("live")))[-1].default == "alive"
