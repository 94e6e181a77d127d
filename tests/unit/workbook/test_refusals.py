"""Unknown and mistyped parameters, and notebooks that cannot take any, are refused before anything runs."""

from __future__ import annotations

import pytest
from papermill import inspect_notebook

from wiring.errors import WiringError
from wiring.workbook.notebook_parameters import Parameter, check_value, parse_value, read_parameters


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"faktor": 3}, "no notebook has a parameter faktor .*one of factor, loud, measure, profile, run"),
        ({"factor": "3"}, "01_step: parameter factor has a value of the wrong type .expected int, found '3' .str"),
        ({"factor": 3.0}, "expected int"),
        ({"factor": True}, "expected int"),
        ({"loud": "true"}, "01_step: parameter loud .*expected bool, found 'true' .str"),
        ({"loud": 1}, "expected bool"),
        ({"run": "/tmp"}, "the chain sets the parameter run itself"),
    ],
)
def test_unknown_and_mistyped_parameters(toy, overrides, message):
    with pytest.raises(WiringError, match=message):
        toy.chain(overrides=overrides)
    assert toy.executions() == ""
    assert not toy.run.exists()


def test_a_fault_in_the_last_notebook_is_found_before_the_first_runs(toy):
    toy.write(3, parameters='profile: str = ""\nrun: str = ""')
    with pytest.raises(WiringError, match="03_step: the notebook has no parameter measure, which the chain sets"):
        toy.chain()
    toy.write(3, parameters=None)
    with pytest.raises(WiringError, match="needs exactly one code cell with the tag 'parameters' .found 0"):
        toy.chain()
    (toy.root / "notebooks" / "03_step.ipynb").unlink()
    with pytest.raises(WiringError, match="there is no such notebook"):
        toy.chain()
    (toy.root / "notebooks" / "03_step.ipynb").write_text("{}")
    with pytest.raises(WiringError, match="this is not a notebook"):
        toy.chain()
    assert toy.executions() == ""


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("n: int = 1\nm = 2", "holds more than parameters .expected name: type = literal, found m = 2"),
        ("n: int = 1\nm: int = n * 2", "default must be a literal"),
        ("n: int", "holds more than parameters"),
        ("import os", "holds more than parameters"),
        ("n: int | None = None", "a type that the chain does not check"),
        ("n: int = 'a'", "expected int, found 'a'"),
        ("n: float = float('nan')", "must be a literal"),
        ("n: int = 1\nn: int = 2", "declared twice"),
        ("%matplotlib inline", "not plain Python"),
    ],
)
def test_parameters_cells_that_cannot_be_trusted(toy, cell, message):
    path = toy.write(1, parameters=cell)
    with pytest.raises(WiringError, match=message):
        read_parameters(path)


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
        ("bool", "yes"),
        ("bool", "1"),
        ("list[int]", "0,3"),
        ("list[int]", "[0.5]"),
        ("float", "NaN"),
        ("float", "Infinity"),
        ("int", "true"),
    ],
)
def test_texts_of_another_type(kind, text):
    with pytest.raises(WiringError, match="wrong type"):
        parse_value(Parameter("p", kind, None), text)


def test_values_are_not_converted():
    assert check_value(Parameter("p", "float", None), 1) == 1.0
    with pytest.raises(WiringError):
        check_value(Parameter("p", "str", None), 1)
    with pytest.raises(WiringError):
        check_value(Parameter("p", "list[int]", None), [1, True])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the profile cannot be read"),
        ("a: [1", "the profile is not YAML"),
        ("name: ../up\n", "cannot name a folder"),
        ("name: 7\n", "cannot name a folder"),
    ],
)
def test_profiles_that_cannot_be_used(toy, content, message):
    toy.profile.unlink() if content is None else toy.profile.write_text(content)
    with pytest.raises(WiringError, match=message):
        toy.chain()


@pytest.mark.parametrize("seconds", [0, -1, 2.5, True])
def test_a_timeout_must_be_seconds(toy, seconds):
    with pytest.raises(WiringError, match="whole number of seconds"):
        toy.chain(execution_timeout=seconds)
    assert not toy.run.exists()


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [("measure", "alive", "'live' or 'recorded'")],
)
def test_words_that_nothing_knows(toy, name, word, expected):
    parameter = Parameter(name, "str", None)
    told = f"parameter {name} knows no such word .expected {expected}, found '{word}'"
    for call in (check_value, parse_value):
        with pytest.raises(WiringError, match=told):
            call(parameter, word)
    with pytest.raises(WiringError, match=told):
        read_parameters(toy.write(1, parameters=f'{name}: str = "{word}"'))
    toy.write(1, parameters=f'profile: str = ""\nrun: str = ""\nmeasure: str = "live"\n{name}_: str = "{word}"')
    assert [p.default for p in read_parameters(toy.root / "notebooks" / "01_step.ipynb")][-1] == word
