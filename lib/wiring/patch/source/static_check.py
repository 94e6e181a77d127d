"""Read a patched tree again, by the standard library's syntax tree alone, and say site by site what stands there.

The transforms are written with libcst and compare whole shapes; this check asks the other way round, for the few facts
that make the patch work, and shares no code with them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wiring.patch.source.edit_site import Edit, Site
from wiring.patch.source.sglang_tree import SglangTree

_SETTER = "set_eagle3_layers_to_capture"


@dataclass(frozen=True)
class SiteCheck:
    """Whether the patched form stands at a site, and what was looked for."""

    site: Site
    stands: bool
    text: str


def verify_static(tree: SglangTree, edits: Sequence[Edit]) -> tuple[SiteCheck, ...]:
    """One check per edit, read from the files as they are now; a file that cannot be read does not stand."""
    checks = []
    for edit in edits:
        question, wanted = _QUESTIONS[edit.site.name]
        owner, method = edit.site.where.split(".")
        try:
            function = _find(ast.parse(tree.file(edit.site.path).read_bytes()), owner, method)
            stands = function is not None and question(function)
        except (OSError, SyntaxError, ValueError):
            stands = False
        checks.append(SiteCheck(edit.site, stands, wanted if stands else f"not there: {wanted}"))
    return tuple(checks)


def _find(module: ast.Module, owner: str, method: str) -> ast.FunctionDef | None:
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == owner:
            for inner in statement.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == method:
                    return inner
    return None


def _setter(function: ast.FunctionDef) -> bool:
    """A branch on `-1 in layer_ids` whose body adds one to every id."""
    return any(
        any("val + 1 for val in layer_ids" in code for code in _codes(node.body))
        for node in ast.walk(function)
        if isinstance(node, ast.If) and "-1 in layer_ids" in ast.unparse(node.test)
    )


def _capture(function: ast.FunctionDef) -> bool:
    """Every append of bare hidden states is a clone, and no sum is appended where there may be no residual."""
    appended = [node.args[0] for node in ast.walk(function) if _appends(node)]
    clones = [node for value in appended for node in ast.walk(value) if ast.unparse(node) == "hidden_states.clone()"]
    bare = [value for value in appended if isinstance(value, ast.Name) and value.id == "hidden_states"]
    chosen = [value for value in appended if isinstance(value, ast.IfExp)]
    bare += [v for value in chosen for v in (value.body, value.orelse) if isinstance(v, ast.Name)]
    guarded = {id(n) for i in ast.walk(function) if _guards(i) for s in i.orelse for n in ast.walk(s)}
    sums = [value for value in appended if ast.unparse(value) == "hidden_states + residual"]
    return bool(clones) and not bare and all(id(value) in guarded for value in sums)


def _guards(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "residual is None"


def _appends(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "aux_hidden_states.append" and len(node.args) == 1


def _calls(function: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _SETTER
    ]


def _with_ids(function: ast.FunctionDef) -> bool:
    """The setter is called, and always with the draft's ids."""
    calls = _calls(function)
    return bool(calls) and all(
        len(call.args) == 1 and ast.unparse(call.args[0]).endswith(".eagle_aux_hidden_state_layer_ids")
        for call in calls
    )


def _order(function: ast.FunctionDef) -> bool:
    """The ids are kept and set in a statement before the one that captures the graphs."""
    codes = _codes(function.body)
    setting = [i for i, code in enumerate(codes) if f"{_SETTER}(" in code]
    capture = ("self.init_cuda_graphs()", "self.init_device_graphs()")
    graphs = [i for i, code in enumerate(codes) if any(call in code for call in capture)]
    kept = [i for i, code in enumerate(codes) if "self.eagle_aux_hidden_state_layer_ids = eagle_aux" in code]
    return len(setting) == 1 and setting == kept and bool(graphs) and setting[0] < graphs[0]


def _codes(statements: Sequence[ast.stmt]) -> list[str]:
    return [ast.unparse(statement) for statement in statements]


_QUESTIONS: dict[str, tuple[Callable[[ast.FunctionDef], bool], str]] = {
    "setter": (_setter, "an id -1 makes every id an output id"),
    "capture": (_capture, "the embedding is captured as a clone"),
    "graph": (_with_ids, "graphs are captured on the draft's ids"),
    "dummy": (_with_ids, "the warm-up runs on the draft's ids"),
    "order": (_order, "the draft's ids are set before graphs are captured"),
}
