"""Read one SGLang release out of its wheel: its modules as syntax trees, its classes with their bases."""

from __future__ import annotations

import ast
import builtins
import zipfile
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

SETTER = "set_eagle3_layers_to_capture"


class Release:
    """The source of one release. `path` names a file below `sglang/srt/`."""

    def __init__(self, wheel: Path):
        self.wheel = wheel
        self.version = wheel.name.split("-")[1]

    @cached_property
    def names(self) -> frozenset[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return frozenset(archive.namelist())

    def has(self, path: str) -> bool:
        return f"sglang/srt/{path}" in self.names

    def text(self, path: str) -> str:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(f"sglang/srt/{path}").decode("utf-8-sig")

    @lru_cache(maxsize=64)  # noqa: B019 - a release lives as long as the session
    def tree(self, path: str) -> ast.Module:
        return ast.parse(self.text(path))

    def classes(self, module: str) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree(f"models/{module}.py").body if isinstance(node, ast.ClassDef)}

    def method(self, module: str, name: str, method: str) -> ast.FunctionDef | None:
        """A method of a model class, its own or inherited, also from another of SGLang's model files."""
        if not self.has(f"models/{module}.py"):
            return None
        node = self.classes(module).get(name)
        if node is None:
            origin = _imported(self.tree(f"models/{module}.py"), name)
            return self.method(origin, name, method) if origin else None
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == method:
                return part
        for base in node.bases:
            found = self.method(module, ast.unparse(base), method)
            if found is not None:
                return found
        return None


def _imported(tree: ast.Module, name: str) -> str | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.models."):
            if any((alias.asname or alias.name) == name for alias in node.names):
                return node.module.rpartition(".")[2]
    return None


def function(node: ast.FunctionDef, **known: Any) -> FunctionType:
    """The release's own function, ready to run; global names not `known` are stand-ins that accept anything."""
    plain = ast.parse(ast.unparse(node)).body[0]
    plain.decorator_list, plain.returns = [], None
    for argument in (*plain.args.args, *plain.args.kwonlyargs):
        argument.annotation = None
    scope: dict[str, Any] = {}
    code = compile(ast.Module([plain], []), node.name, "exec")
    for name in _globals(code):
        if name in known or not hasattr(builtins, name):
            scope[name] = known.get(name) or MagicMock(name=name)
    exec(code, scope)
    return scope[node.name]


def _globals(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals(constant)
    return names


def run_block(node: ast.stmt, **known: Any) -> SimpleNamespace:
    """Run one statement of the release with these names, and return what the names hold afterwards."""
    scope = dict(known)
    exec(compile(ast.Module([node], []), "block", "exec"), {}, scope)
    return SimpleNamespace(**scope)
