"""Rules that hold for the package as a whole: names, errors and their wording."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import messages
import pytest

PACKAGE = messages.ROOT / "lib" / "wiring"
FILES = sorted(PACKAGE.rglob("*.py"))


def twice(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_module_name_occurs_twice():
    places = defaultdict(list)
    for path in FILES:
        if not path.stem.startswith("__"):
            places[path.stem].append(str(path.relative_to(PACKAGE)))
    assert twice(places) == {}


def test_no_public_class_name_occurs_twice():
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert twice(places) == {}


def test_every_error_has_a_literal_code_in_kebab_case():
    without = [
        place for place, parts in messages.errors() if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", parts["code"])
    ]
    assert without == []


def test_the_messages_are_those_of_the_snapshot():
    """A message was changed on purpose: read the diff, then run `python tools/messages.py`."""
    assert messages.snapshot() == messages.SNAPSHOT.read_text(encoding="utf-8")


@pytest.mark.parametrize("source", ['WiringError("a", code=f"b-{c}")', 'WiringError("a")', 'Other("a", code="A b")'])
def test_the_collector_sees_errors_without_a_proper_code(tmp_path: Path, source):
    package = tmp_path / "wiring"
    package.mkdir()
    (package / "one.py").write_text(f"class Other(WiringError): ...\ndef f():\n    raise {source}\n")
    ((place, parts),) = messages.errors(package)
    assert place == "wiring/one.py:3"
    assert not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", parts["code"])
