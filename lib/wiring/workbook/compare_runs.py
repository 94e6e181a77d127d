"""Compare two runs, for example before and after an upgrade: each row with the conditions that must be equal.

Read as plain JSON, not as artefacts of this release, because one of the runs may be of an older one. A row whose
counting rule, text, target, setting or machine differs is shown and not compared; what could not be read is said.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from wiring.errors import WiringError
from wiring.workbook.artefacts import ARTEFACTS

_END = 2**20  # bytes at the end of a file of weights that tell one training from another


@dataclass(frozen=True)
class Run:
    """A finished run: its folder's name, its artefacts and measurements by file name, its profile ({}: unknown)."""

    name: str
    files: Mapping[str, Mapping[str, Any]]
    profile: Mapping[str, Any]

    def at(self, path: str) -> Any:
        """Return the value at "file.field.field"; None where there is no such field."""
        name, *fields = path.split(".")
        return reduce(_step, fields, self.files.get(name))


@dataclass(frozen=True)
class Difference:
    """A difference between the runs, in words; "not known" where it could not be read."""

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class Row:
    """A figure of both runs as text. `change`: b over a, or b - a; "" where it is not compared.

    `refused`: why it must not be compared; `unchecked`: what could not be held against each other.
    """

    name: str
    a: str
    b: str
    change: str
    refused: str = ""
    unchecked: str = ""


@dataclass(frozen=True)
class Comparison:
    """The comparison of runs a and b. `note` names the differences that can explain a change."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    note: str

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return asdict(self)


def read_run(folder: Path, profile: Path | None = None) -> Run:
    """Return the run in `folder`, made from `profile` (as that file is now).

    Raises WiringError: run-not-finished, run-file-unreadable, run-file-not-object.
    """
    files = {name: _read(folder / f"{name}.json") for name in ARTEFACTS}
    for name in ("01_measured", "05_measured"):
        if (folder / f"{name}.json").is_file():
            files[name] = _read(folder / f"{name}.json")
    return Run(folder.name, files, _profile(profile))


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs, row by row."""
    values = {name: (read(a), read(b)) for name, read in _CONDITIONS.items()}
    differences = tuple(
        Difference(name, *(_said(value) for value in pair)) for name, pair in values.items() if pair[0] != pair[1]
    )
    rows = tuple(_row(row, a, b, values) for row in _ROWS)
    names = (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")
    return Comparison(*names, differences, tuple(row for row in rows if row is not None), _note(differences))


def _machine(run: Run) -> str | None:
    processor, cores = run.at("05_rebenchmark.machine.processor"), run.at("05_rebenchmark.machine.cores")
    return None if processor is None else f"{processor}, {cores} cores"


def _version(package: str) -> Callable[[Run], str | None]:
    return lambda run: run.at(f"05_rebenchmark.machine.versions.{package}")


def _accept_rule(run: Run) -> str | None:
    """Return the counting rule of an accept length without the counter names, which depend on the SGLang release."""
    rule = run.at("05_rebenchmark.accept_rule")
    return None if rule is None else rule.split(", from ")[0]


def _text(run: Run) -> str | None:
    """Return a digest of the prompts and the number of new tokens."""
    prompts, tokens = run.at("05_measured.prompt_ids"), run.at("05_measured.new_tokens")
    if prompts is None:
        return None
    mark = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:8]
    return f"{len(prompts)} prompts ({mark}), {tokens} tokens each"


def _setting(run: Run) -> str | None:
    rows = {row.get("name"): row.get("resolved") for row in run.at("01_throughput.arguments") or ()}
    names = ("steps", "top-k", "draft tokens")
    return ", ".join(f"{name} {rows[name]}" for name in names) if all(name in rows for name in names) else None


def _documents(run: Run) -> str | None:
    states = run.profile.get("states")
    path = states.get("path") if isinstance(states, Mapping) else None
    mark = None if path is None else _mark_of(Path(path))
    return None if mark is None else f"{run.at('02_accuracy.documents')} of {mark}"


def _checkpoint(field: str) -> Callable[[Run], str | None]:
    return lambda run: _mark_of(Path(run.profile[field])) if run.profile.get(field) else None


def _mark_of(folder: Path) -> str | None:
    """Return the folder's name and a digest of its files: names, sizes, and the ends of config and weights."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        return None
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        if path.parent == folder and (path.suffix == ".safetensors" or path.name == "config.json"):
            with path.open("rb") as content:
                content.seek(max(0, path.stat().st_size - _END))
                found.update(content.read())
    return f"{folder.name} ({found.hexdigest()[:8]})"


def _engine(run: Run) -> str | None:
    if not run.profile:
        return None
    engine = run.profile.get("engine") or {}
    flags = " ".join(engine.get("extra_flags") or ())
    return f"{engine.get('device', 'cpu')} {engine.get('dtype', 'float32')} {flags}".strip()


def _of_profile(*fields: str) -> Callable[[Run], Any]:
    return lambda run: {name: run.profile.get(name) for name in fields} if run.profile else None


_CONDITIONS: dict[str, Callable[[Run], Any]] = {
    "machine": _machine,
    "SGLang": _version("sglang"),
    "torch": _version("torch"),
    "transformers": _version("transformers"),
    "workbook": _version("eagle3-wiring-workbook"),
    "target": _checkpoint("target"),
    "draft": _checkpoint("draft"),
    "precision and flags": _engine,
    "rule of rates": lambda run: run.at("05_rebenchmark.rate_rule"),
    "rule of accept lengths": _accept_rule,
    "rule of accuracies": lambda run: run.at("02_accuracy.accuracy_rule"),
    "text": _text,
    "resolved setting": _setting,
    "documents": _documents,
    "bounds of the checks": _of_profile("expected", "validation_accuracy"),
    "form of the cure": lambda run: run.at("05_rebenchmark.form"),
}
# What may be the very thing that is compared; anything else of _CONDITIONS must be equal where a row needs it.
_SUBJECTS = ("SGLang", "torch", "transformers", "draft", "precision and flags", "form of the cure")
_RATE = ("machine", "target", "rule of rates", "text")
_DRAFTED = (*_RATE, "resolved setting")
_COUNTED = ("rule of accuracies", "documents")
_ACCEPT = ("target", "rule of accept lengths", "text", "resolved setting")


@dataclass(frozen=True)
class _Wanted:
    """A row: the path of its figure, its format, and the conditions that must be equal."""

    name: str
    path: str
    needs: tuple[str, ...]
    form: str = ""


_ROWS = (
    _Wanted("plain, tokens / s", "05_rebenchmark.plain.tok_per_s", _RATE, ".2f"),
    _Wanted("as served, tokens / s", "05_rebenchmark.as_served.tok_per_s", _DRAFTED, ".2f"),
    _Wanted("cured, tokens / s", "05_rebenchmark.cured.tok_per_s", _DRAFTED, ".2f"),
    _Wanted("as served, speed-up", "05_rebenchmark.as_served.speedup", _DRAFTED, ".2f"),
    _Wanted("cured, speed-up", "05_rebenchmark.cured.speedup", _DRAFTED, ".2f"),
    _Wanted("cured, predicted speed-up", "05_rebenchmark.prediction.speedup", _DRAFTED, ".2f"),
    _Wanted("price of a round, plain steps", "05_rebenchmark.prediction.break_even", _DRAFTED, ".2f"),
    _Wanted("as served, accept length", "05_rebenchmark.as_served.accept_length", _ACCEPT, ".2f"),
    _Wanted("cured, accept length", "05_rebenchmark.cured.accept_length", _ACCEPT, ".2f"),
    _Wanted("cured, acceptance by position", "05_rebenchmark.cured.acceptance_by_position", _ACCEPT, ".2f"),
    _Wanted("accuracy, trained layout", "02_accuracy.trained.depths.0.accuracy", _COUNTED, ".3f"),
    _Wanted("accuracy, served layout", "02_accuracy.served.depths.0.accuracy", _COUNTED, ".3f"),
    _Wanted("trained layout", "03_layout.trained", ()),
    _Wanted("as served, fed in prefill", "03_layout.captured.prefill", ("target",)),
    _Wanted("as served, fed in verify", "03_layout.captured.verify", ("target",)),
    _Wanted("faults named as served", "05_rebenchmark.verdict.named", ("workbook",)),
    _Wanted("faults named once cured", "05_rebenchmark.verdict_cured.named", ("workbook",)),
    *(
        _Wanted(f"checks that hold, notebook {name[:2]}", f"{name}.conclusions", ("workbook", "bounds of the checks"))
        for name in ARTEFACTS
    ),
)


def _row(wanted: _Wanted, a: Run, b: Run, values: Mapping[str, tuple[Any, Any]]) -> Row | None:
    found = a.at(wanted.path), b.at(wanted.path)
    if found == (None, None):
        return None
    said = [_figure(value, wanted) for value in found]
    other = [name for name in wanted.needs if None not in values[name] and values[name][0] != values[name][1]]
    unknown = [name for name in wanted.needs if None in values[name]]
    refused = f"other {' and other '.join(other)}" if other else ""
    change = "" if other or None in found else _change(*found, wanted)
    unchecked = f"not known whether alike: {', '.join(unknown)}" if unknown and not other else ""
    return Row(wanted.name, said[0], said[1], change, refused, unchecked)


def _figure(value: Any, wanted: _Wanted) -> str:
    if value is None:
        return "-"
    if wanted.path.endswith(".conclusions"):
        return f"{sum(bool(claim.get('holds')) for claim in value)} of {len(value)}"
    if isinstance(value, list):
        return f"({', '.join(format(one, wanted.form) for one in value)})"
    return format(value, wanted.form)


def _change(a: Any, b: Any, wanted: _Wanted) -> str:
    """Return the ratio of rates, speed-ups and costs, the difference of other numbers, else "same" or "other"."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        ratio = "rule of rates" in wanted.needs and a
        return f"x {b / a:.2f}" if ratio else f"{b - a:+{wanted.form}}"
    if wanted.form and isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return f"({', '.join(f'{y - x:+{wanted.form}}' for x, y in zip(a, b, strict=True))})"
    return "same" if _figure(a, wanted) == _figure(b, wanted) else "other"


def _note(differences: Sequence[Difference]) -> str:
    names = [one.what for one in differences if one.what in _SUBJECTS]
    if not names:
        return "SGLang, draft and cure are the same in both: a change is noise, or a thing that no run writes down."
    if len(names) == 1:
        return f"One thing differs that can be the reason for a change: {names[0]}."
    return f"{', '.join(names)} differ at once: no change below can be put down to one of them alone."


def _said(value: Any) -> str:
    return "not known" if value is None else value if isinstance(value, str) else json.dumps(value)


def _step(value: Any, field: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(field)
    if isinstance(value, list) and field.isdigit() and int(field) < len(value):
        return value[int(field)]
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WiringError(
            "run is not finished",
            code="run-not-finished",
            where=path,
            expected="a file",
            found="none",
            remedy="`wiring resume` it",
        ) from None
    except (OSError, ValueError) as error:
        raise WiringError(
            "run file cannot be read as JSON", code="run-file-unreadable", where=path, found=error
        ) from None
    if not isinstance(value, dict):
        raise WiringError(
            "run file is not a JSON object", code="run-file-not-object", where=path, found=type(value).__name__
        )
    return value


def _profile(path: Path | None) -> dict[str, Any]:
    """Return the profile's fields with absolute paths; {} where it cannot be read."""
    if path is None:
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    if not isinstance(found, dict):
        return {}
    for name in ("target", "draft"):
        if isinstance(found.get(name), str):
            found[name] = str((path.parent / Path(found[name]).expanduser()).resolve())
    states = found.get("states")
    if isinstance(states, dict) and isinstance(states.get("path"), str):
        states["path"] = str((path.parent / Path(states["path"]).expanduser()).resolve())
    return found
