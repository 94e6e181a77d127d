"""Read an evidence file into `Evidence`, and list the parts of the evidence that nothing reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from wiring.engines.resolve import served_layout
from wiring.errors import WiringError
from wiring.logs import GIVEN, scan, understood
from wiring.logs.evidence import Evidence, Setting

_SCRAPE = re.compile(r"# (?:HELP|TYPE) |(?:vllm|sglang|llamacpp):\w")  # start of a line of Prometheus text
_ABOUT = re.compile(r"accept|spec", re.IGNORECASE)  # lines to show first among those that are not understood
_SHOWN = 80  # characters of a line


def read_evidence(path: str | Path) -> Evidence:
    """Read an evidence file: one JSON object of the schema that `wiring diagnose --schema` prints.

    Raises WiringError with the file and the first wrong field.
    """
    path = Path(path)
    text = _text(path)
    try:
        json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except (ValueError, RecursionError):
        pass  # reported below, with line and column
    try:
        return Evidence.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        where, remedy = f"{path}, field {field}" if field else path, "`wiring diagnose --schema` prints every field"
        found = "" if first["type"] in ("missing", "json_invalid") else json.dumps(first["input"], default=str)[:120]
        if first["type"] == "extra_forbidden":
            expected = _near(first["loc"])
            raise WiringError(
                "unknown field",
                code="evidence-field-unknown",
                where=where,
                expected=expected,
                found=found,
                remedy=remedy,
            ) from None
        problem = str(first.get("ctx", {})["error"]) if first["type"] == "value_error" else first["msg"]
        raise WiringError(problem, code="evidence-field-wrong", where=where, found=found, remedy=remedy) from None


def _text(path: Path) -> bytes:
    """The content without a byte order mark."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        found = error.strerror or str(error)
        raise WiringError("the evidence cannot be read", code="evidence-unreadable", where=path, found=found) from None
    encoding = json.detect_encoding(raw)
    if not encoding.startswith("utf-8"):
        raise WiringError(
            "the evidence is not UTF-8 text",
            code="evidence-not-utf8",
            where=path,
            found=encoding.upper(),
            remedy="Save it as UTF-8",
        )
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        raise WiringError("the evidence file is empty", code="evidence-empty", where=path, expected="one JSON object")
    return text


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """The object of these pairs; JSON readers silently drop the first of two equal keys."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise WiringError(
                f"the key {key} occurs twice in one object",
                code="evidence-key-twice",
                where=path,
                found=" and ".join(json.dumps(one)[:60] for one in (found[key], value)),
                remedy="Keep one of them",
            )
        found[key] = value
    return found


def _near(where: Sequence[int | str]) -> str:
    """The field that an unknown name may stand for, or all fields of its object."""
    model: Any = Evidence
    if len(where) > 1:  # a record of a part, or the setting
        part = Evidence.model_fields[str(where[0])].annotation
        model = next(iter(get_args(part)), part)
    near = get_close_matches(str(where[-1]), model.model_fields, 1)
    return near[0] if near else ", ".join(model.model_fields)


def ignored_inputs(evidence: Evidence) -> tuple[str, ...]:
    """Return a sentence for each part of the evidence that was not understood or not checked.

    Raises WiringError as the readers of log lines do.
    """
    return (*_ignored_lines(evidence), *_ignored_configs(evidence.setting))


def _ignored_lines(evidence: Evidence) -> Iterator[str]:
    lines = [line for line in evidence.log if line.strip()]
    if not lines:
        return
    context = scan(lines, **{name: getattr(evidence.setting, name) for name in GIVEN})
    lost = [line for line, known in zip(lines, understood(lines, context), strict=True) if not known]
    if not lost:
        return
    shown = next(filter(_ABOUT.search, lost), lost[0]).strip()[:_SHOWN]
    text = f"{len(lines) - len(lost)} of {len(lines)} log lines were understood; not, for example: {shown!r}"
    if any(map(_SCRAPE.match, lost)):
        text += ". Prometheus text is read from a file: `wiring read-log FILE --json` converts it to evidence"
    yield text


def _ignored_configs(setting: Setting) -> Iterator[str]:
    """Why the two config.json do not give a layout."""
    if setting.draft_config is None:
        return
    if setting.target_config is None or setting.engine is None:
        missing = [f"setting.{name}" for name in ("target_config", "engine") if getattr(setting, name) is None]
        yield f"setting.draft_config is not checked: the layer rule also needs {' and '.join(missing)}"
        return
    try:
        served_layout(setting.engine, setting.version, setting.target_config, setting.draft_config)
    except WiringError as error:
        yield f"setting.draft_config is not checked: {str(error).rstrip('.')}"
