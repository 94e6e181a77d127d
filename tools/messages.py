"""Collect every error that the package can raise, from its syntax tree: the snapshot that pins their wording.

`python tools/messages.py` writes tests/unit/messages.txt again after a message was changed on purpose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = ROOT / "tests" / "unit" / "messages.txt"
PARTS = ("code", "problem", "expected", "remedy")


def error_classes(trees: list[ast.Module]) -> set[str]:
    """Return WiringError and the names of all classes derived from it."""
    names, before = {"WiringError"}, 0
    while len(names) > before:
        before = len(names)
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and names & {getattr(base, "id", "") for base in node.bases}:
                    names.add(node.name)
    return names


def template(node: ast.expr | None) -> str | None:
    """Return a string expression with {…} for what is filled in; None where it is no string at all."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    if isinstance(node, ast.IfExp):
        return f"{template(node.body)} / {template(node.orelse)}"
    return "{…}"


def errors(package: Path = ROOT / "lib" / "wiring") -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield the place (file:line) and the parts of every call that builds an error."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))}
    names = error_classes(list(trees.values()))
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names:
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                given |= {"problem": node.args[0]} if node.args else {}
                parts = {part: template(given.get(part)) for part in PARTS}
                yield f"{path.relative_to(package.parent)}:{node.lineno}", parts


def snapshot() -> str:
    """Return all messages as text: one line an error, sorted, without places."""
    lines = {" | ".join(str(parts[part]) for part in PARTS) for _, parts in errors()}
    return "\n".join(sorted(lines)) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
