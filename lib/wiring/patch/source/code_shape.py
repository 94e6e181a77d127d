"""Digests of the shape of a piece of code: its syntax tree without comments, layout and annotations.

Known shapes are stored as digests, so that no code of SGLang is in this repository. The digest is computed from the
syntax tree by field names, and not from `ast.dump` or `ast.unparse`, whose output differs between Python releases.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import lru_cache

import libcst as cst

# Fields without influence on what the code does, or filled in by some Python releases only.
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_params", "annotation", "returns"})


def digest(nodes: ast.AST | Iterable[ast.AST]) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of one node, or of several in their order."""
    several = [nodes] if isinstance(nodes, ast.AST) else list(nodes)
    return hashlib.sha256(repr([_canonical(node) for node in several]).encode()).hexdigest()[:12]


def _canonical(value: object) -> object:
    if isinstance(value, ast.AST):
        fields = [(name, _canonical(field)) for name, field in ast.iter_fields(value) if name not in _IGNORED]
        return [type(value).__name__, [(name, field) for name, field in fields if field not in ("None", [])]]
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return repr(value)


def as_ast(node: cst.CSTNode) -> ast.stmt:
    """Convert a libcst statement to the standard library's syntax tree."""
    return ast.parse(cst.Module(body=[]).code_for_node(node)).body[0]


def same(node: ast.AST, code: str) -> bool:
    """Whether an expression has the shape of `code`."""
    return digest(node) == _expression(code)


@lru_cache
def _expression(code: str) -> str:
    return digest(ast.parse(code, mode="eval").body)


def same_cst(node: cst.BaseExpression, code: str) -> bool:
    """Whether a libcst expression has the shape of `code`, however it is broken into lines."""
    return same(ast.parse(f"({cst.Module(body=[]).code_for_node(node)})", mode="eval").body, code)


def find_class(module: cst.Module, name: str) -> cst.ClassDef | None:
    """The class of this name at the top of a module, None where it is missing or defined twice."""
    return _only(s for s in module.body if isinstance(s, cst.ClassDef) and s.name.value == name)


def find_method(module: cst.Module, class_name: str, name: str) -> cst.FunctionDef | None:
    """The method of a class at the top of a module, None where it is missing or defined twice."""
    owner = find_class(module, class_name)
    if owner is None or not isinstance(owner.body, cst.IndentedBlock):
        return None
    return _only(s for s in owner.body.body if isinstance(s, cst.FunctionDef) and s.name.value == name)


def with_method(module: cst.Module, class_name: str, old: cst.FunctionDef, new: object) -> cst.Module:
    """The module with one method exchanged; every other byte stays."""
    owner = find_class(module, class_name)
    assert owner is not None  # it holds `old`
    body = tuple(new if statement is old else statement for statement in owner.body.body)
    changed = owner.with_changes(body=owner.body.with_changes(body=body))
    return module.with_changes(body=tuple(changed if s is owner else s for s in module.body))


def _only(found: Iterable):
    several = list(found)
    return several[0] if len(several) == 1 else None
