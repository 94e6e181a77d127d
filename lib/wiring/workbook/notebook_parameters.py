"""Read the parameters cell of a notebook without running it, and check values against it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError
from wiring.workbook import notebook_files

if TYPE_CHECKING:
    from nbformat import NotebookNode

TAG = "parameters"
WORDS = {"measure": ("live", "recorded")}  # parameters that take one of a few words
_TYPES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list[int]": list[int],
    "list[float]": list[float],
    "list[str]": list[str],
}


@dataclass(frozen=True)
class Parameter:
    """One line `name: type = default` of the parameters cell; `type` is a key of `_TYPES`."""

    name: str
    type: str
    default: object = None


def open_notebook(path: str | Path) -> NotebookNode:
    """Return the notebook at `path`, valid nbformat 4. Raises WiringError: notebook-missing, not-a-notebook."""
    nbformat = notebook_files.nbformat()
    path = Path(path)
    if not path.is_file():
        raise WiringError("there is no such notebook", code="notebook-missing", where=path)
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        found = str(error).splitlines()[0]
        raise WiringError("not a notebook", code="not-a-notebook", where=path, found=found) from error
    return notebook


def read_parameters(path: str | Path) -> tuple[Parameter, ...]:
    """Return the parameters of the notebook at `path`, in order.

    The notebook must have one code cell with the tag "parameters" that holds nothing but lines `name: type = literal`.
    Raises WiringError: parameters-cell-invalid, parameter-invalid, and as `open_notebook`.
    """
    cells = [
        cell for cell in open_notebook(path).cells if TAG in cell.metadata.get("tags", []) and cell.cell_type == "code"
    ]
    try:
        (cell,) = cells
        lines = ast.parse(cell.source).body
        parameters = tuple(_parameter(line) for line in lines)
    except (ValueError, SyntaxError) as error:
        raise WiringError(
            "the notebook's parameters cannot be read",
            code="parameters-cell-invalid",
            where=path,
            expected=f"one cell tagged {TAG!r} with lines name: type = literal, each name once",
            found=f"{len(cells)} cells" if len(cells) != 1 else str(error),
        ) from error
    parameters = tuple(replace(one, default=check_value(one, one.default, path)) for one in parameters)
    if len({parameter.name for parameter in parameters}) != len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise WiringError("a parameter is declared twice", code="parameters-cell-invalid", where=path, found=names)
    return parameters


def _parameter(line: ast.stmt) -> Parameter:
    if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None):
        raise ValueError(ast.unparse(line))
    kind = ast.unparse(line.annotation)
    if kind not in _TYPES:
        raise ValueError(f"{ast.unparse(line)}: the type is none of {', '.join(_TYPES)}")
    return Parameter(line.target.id, kind, ast.literal_eval(line.value))


def check_value(parameter: Parameter, value: object, where: object = "") -> object:
    """Return `value` if it has the parameter's type; only int becomes float. Raises WiringError: parameter-invalid."""
    from pydantic import TypeAdapter, ValidationError

    expected: object = parameter.type
    try:
        checked = TypeAdapter(_TYPES[parameter.type]).validate_python(value, strict=True)
        if parameter.name in WORDS and checked not in WORDS[parameter.name]:
            expected = " or ".join(map(repr, WORDS[parameter.name]))
        elif not (isinstance(checked, float) and not math.isfinite(checked)):
            return checked
    except ValidationError:
        pass
    raise WiringError(
        f"parameter {parameter.name} has a value that it does not take",
        code="parameter-invalid",
        where=where,
        expected=expected,
        found=f"{value!r} ({type(value).__name__})",
    )


def parse_value(parameter: Parameter, text: str, where: object = "") -> object:
    """Return the value of a command-line `text`: true/false, numbers, text, JSON lists. Raises as `check_value`."""
    if parameter.type == "str":
        return check_value(parameter, text, where)
    try:
        value = json.loads(text.lower() if parameter.type == "bool" else text)
    except ValueError:
        value = text
    return check_value(parameter, value, where)


def resolve_parameters(
    notebooks: Mapping[str, tuple[Parameter, ...]], given: Mapping[str, object], overrides: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """Return the values for each notebook: all of `given`, and those of `overrides` that it declares.

    `notebooks` maps a notebook's name to its parameters. Raises WiringError: parameter-missing (a notebook lacks one of
    `given`), parameter-unknown (no notebook declares an override), parameter-reserved, parameter-invalid.
    """
    resolved: dict[str, dict[str, object]] = {}
    for name, parameters in notebooks.items():
        declared = {parameter.name: parameter for parameter in parameters}
        if missing := [key for key in given if key not in declared]:
            raise WiringError(
                f"the notebook has no parameter {missing[0]}, which every run sets",
                code="parameter-missing",
                where=name,
                found=", ".join(declared),
            )
        values = {**given, **{key: value for key, value in overrides.items() if key in declared}}
        resolved[name] = {key: check_value(declared[key], value, name) for key, value in values.items()}
    known = {parameter.name for parameters in notebooks.values() for parameter in parameters}
    for key in overrides:
        if key not in known:
            raise WiringError(
                f"no notebook has a parameter {key}",
                code="parameter-unknown",
                expected=f"one of {', '.join(sorted(known))}",
                found=key,
            )
        if key in given:
            raise WiringError(
                f"the run sets the parameter {key} itself",
                code="parameter-reserved",
                found=key,
                remedy="Choose another profile or run folder",
            )
    return resolved
