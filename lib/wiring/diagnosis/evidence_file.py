"""An evidence file: JSON text into `Evidence`, or one sentence that says what is wrong with it and where."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from wiring.errors import WiringError
from wiring.logs.evidence import Evidence


def read_evidence(path: str | Path) -> Evidence:
    """Read an evidence file: one JSON object of the shape of `Evidence` (`wiring diagnose --schema` prints it).

    Raises WiringError naming the file and the first field that is not as it should be.
    """
    path = Path(path)
    text = _text(path)
    try:
        json.loads(text, object_pairs_hook=lambda pairs: _each_once(pairs, path))
    except (ValueError, RecursionError):
        pass  # told below, with line and column
    try:
        return Evidence.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        found = "" if first["type"] in ("missing", "json_invalid") else json.dumps(first["input"], default=str)[:120]
        unknown = first["type"] == "extra_forbidden"
        raise WiringError(
            _unknown(first["loc"]) if unknown else first["msg"].removeprefix("Value error, "),
            where=f"{path}, field {field}" if field else path,
            found=found,
            remedy="`wiring diagnose --schema` prints every field",
        ) from None


def _text(path: Path) -> bytes:
    """What the file holds, without a byte order mark. Raises WiringError where it is no UTF-8, or nothing."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise WiringError("the evidence cannot be read", where=path, found=error.strerror or str(error)) from None
    encoding = json.detect_encoding(raw)
    if not encoding.startswith("utf-8"):
        raise WiringError(
            "the evidence is not text in UTF-8", where=path, found=encoding.upper(), remedy="Save it as UTF-8"
        )
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        raise WiringError("the evidence file is empty", where=path, expected="one JSON object")
    return text


def _each_once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """The object of these pairs. JSON readers keep the last of two equal keys, and lose the other without a word."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            both = " and ".join(json.dumps(one)[:60] for one in (found[key], value))
            raise WiringError(
                f"the key {key} stands twice in one object", where=path, found=both, remedy="Keep one of them"
            )
        found[key] = value
    return found


def _unknown(where: tuple[int | str, ...]) -> str:
    """What to say of a field that is none, with the name that it may have been meant for."""
    model: type[BaseModel] = Evidence
    if len(where) > 1:  # a record of a part, or the setting
        part = Evidence.model_fields[str(where[0])].annotation
        model = next(iter(get_args(part)), part)
    near = get_close_matches(str(where[-1]), model.model_fields, 1)
    return "unknown field" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(model.model_fields)}")
