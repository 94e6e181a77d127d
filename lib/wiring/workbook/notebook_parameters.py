"""The parameters cell of a notebook, read without running it, and values held against it.

papermill only warns about a parameter that the notebook does not have, and passes a string where the
notebook expects a number. Here both are refused, before anything runs, and so is a misspelt word.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from wiring.errors import WiringError
from wiring.workbook import notebook_files as files_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

TYPES = ("bool", "int", "float", "str", "list[int]", "list[float]", "list[str]")
TAG = "parameters"


class Choices(BaseModel):
    """The parameters that take one of a few words, and which; all others are held against their type alone."""

    model_config = ConfigDict(frozen=True)

    measure: Literal["live", "recorded"] = "live"


@dataclass(frozen=True)
class Parameter:
    """One line `name: type = default` of the parameters cell; `type` is one of TYPES."""

    name: str
    type: str
    default: object


def open_notebook(path: str | Path) -> NotebookNode:
    """The notebook at `path`, valid nbformat 4; WiringError where it is missing or no notebook."""
    nbformat = files_notebook.nbformat()
    path = Path(path)
    if not path.is_file():
        raise WiringError("there is no such notebook", where=path)
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise WiringError("this is not a notebook", where=path, found=str(error).splitlines()[0]) from error
    return notebook


def read_parameters(path: str | Path) -> tuple[Parameter, ...]:
    """The parameters of the notebook at `path`, in order.

    Raises WiringError unless exactly one cell is tagged `parameters` and holds nothing but lines
    `name: type = literal` with a type of TYPES and a default of that type.
    """
    notebook = open_notebook(path)
    cells = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", []) and cell.cell_type == "code"]
    if len(cells) != 1:
        raise WiringError(
            f"a notebook of the chain needs exactly one code cell with the tag {TAG!r}", where=path, found=len(cells)
        )
    try:
        lines = ast.parse(cells[0].source).body
    except SyntaxError as error:
        raise WiringError("the parameters cell is not plain Python", where=path, found=error.msg) from error
    parameters = tuple(_parameter(line, path) for line in lines)
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        raise WiringError("a parameter is declared twice", where=path, found=", ".join(names))
    return parameters


def _parameter(line: ast.stmt, path: str | Path) -> Parameter:
    source = ast.unparse(line)
    if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None):
        raise WiringError(
            "the parameters cell holds more than parameters", where=path, expected="name: type = literal", found=source
        )
    annotation = ast.unparse(line.annotation)
    if annotation not in TYPES:
        raise WiringError(
            f"parameter {line.target.id} has a type that the chain does not check",
            where=path,
            expected=" or ".join(TYPES),
            found=annotation,
        )
    try:
        default = ast.literal_eval(line.value)
    except ValueError:
        raise WiringError("a parameter's default must be a literal", where=path, found=source) from None
    return Parameter(
        line.target.id, annotation, check_value(Parameter(line.target.id, annotation, None), default, path)
    )


def check_value(parameter: Parameter, value: object, where: object = "") -> object:
    """`value` where it is of the parameter's type, with no conversion but int to float; else WiringError.

    So is a word that `Choices` does not know for this parameter.
    """
    if _is(value, parameter.type):
        if parameter.name in Choices.model_fields:
            _check_word(parameter.name, value, where)
        return float(value) if parameter.type == "float" else value  # type: ignore[arg-type]
    raise WiringError(
        f"parameter {parameter.name} has a value of the wrong type",
        where=where,
        expected=parameter.type,
        found=f"{value!r} ({type(value).__name__})",
    )


def _check_word(name: str, value: object, where: object) -> None:
    try:
        Choices.model_validate({name: value})
    except ValidationError as error:
        expected = error.errors()[0]["ctx"]["expected"]
        raise WiringError(
            f"parameter {name} knows no such word", where=where, expected=expected, found=repr(value)
        ) from None


def _is(value: object, kind: str) -> bool:
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(item, kind[5:-1]) for item in value)
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return type(value).__name__ == kind


def parse_value(parameter: Parameter, text: str, where: object = "") -> object:
    """The value that `text` from a command line stands for: true/false, numbers, text, JSON lists."""
    if parameter.type == "str":
        return check_value(parameter, text, where)
    try:
        value = json.loads(text.lower() if parameter.type == "bool" else text)
    except ValueError:
        value = text
    return check_value(parameter, value, where)


def settle(
    notebooks: Mapping[str, tuple[Parameter, ...]], given: Mapping[str, object], overrides: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """The values for each notebook: all of `given`, and those of `overrides` that it declares.

    `notebooks` maps a notebook's name to its parameters. WiringError where a notebook lacks one of
    `given`, where no notebook declares an override, or where a value is of the wrong type.
    """
    settled: dict[str, dict[str, object]] = {}
    for name, parameters in notebooks.items():
        declared = {parameter.name: parameter for parameter in parameters}
        missing = [key for key in given if key not in declared]
        if missing:
            raise WiringError(
                f"the notebook has no parameter {missing[0]}, which the chain sets",
                where=name,
                found=", ".join(declared),
            )
        values = {**given, **{key: value for key, value in overrides.items() if key in declared}}
        settled[name] = {key: check_value(declared[key], value, name) for key, value in values.items()}
    known = {parameter.name for parameters in notebooks.values() for parameter in parameters}
    for key in overrides:
        if key not in known:
            raise WiringError(
                f"no notebook has a parameter {key}", expected=f"one of {', '.join(sorted(known))}", found=key
            )
        if key in given:
            raise WiringError(
                f"the chain sets the parameter {key} itself", remedy="Choose another profile or run folder"
            )
    return settled
