"""Bug 2: CUDA graphs ignore the draft's layer ids (up to SGLang 0.5.10.post1); verify serves the default layers.

`CudaGraphRunner.__init__` (0.4.9 to 0.5.10.post1) and `ModelRunner._dummy_run` (from 0.5.6) call
`set_eagle3_layers_to_capture()` without ids before the graphs are captured; the draft's ids come after. With the edits
both calls get the draft's ids. From 0.5.8 on `ModelRunner.eagle_aux_hidden_state_layer_ids` holds them in time; before,
`ModelRunner.initialize` reads them into a local name after the graphs, and that statement is moved before them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import cast

import libcst as cst

from wiring.patch.source.code_shape import as_ast, digest, find_method, same, with_method
from wiring.patch.source.edit_site import EditResult, Refusal, Site, parse, shown
from wiring.patch.source.known_shapes import DUMMY_CALLS, EARLY_IDS, GRAPH_CALLS, LATE_IDS
from wiring.patch.source.model_edits import NOTE, SETTER, UNKNOWN

RUNNER = "ModelRunner"
IDS = "eagle_aux_hidden_state_layer_ids"
HELD = f"self.{IDS}"
_NONE_YET = f"{HELD} = None"
_KEEP = f"{HELD} = {IDS}"


def edit_graph_call(text: str, site: Site) -> EditResult | Refusal:
    """Edit `cuda_graph_runner.py`: capture the graphs of verify with the draft's ids."""
    return _edit_call(text, site, "CudaGraphRunner", "__init__", f"self.model_runner.{IDS}", GRAPH_CALLS)


def edit_dummy_call(text: str, site: Site) -> EditResult | Refusal:
    """Edit `model_runner.py`: run the warm-up of the kernels with the draft's ids."""
    return _edit_call(text, site, RUNNER, "_dummy_run", HELD, DUMMY_CALLS)


def ids_stand_early(text: str, site: Site) -> bool | Refusal:
    """Return whether `ModelRunner.__init__` reads the draft's ids into an attribute before it calls `initialize`."""
    module = parse(text, site)
    if isinstance(module, Refusal):
        return module
    method = find_method(module, RUNNER, "__init__")
    if method is None:
        return Refusal(site, f"class {RUNNER} has no __init__, or more than one")
    setting = [i for i, s in enumerate(method.body.body) if _assigns(as_ast(s), HELD)]
    calling = [i for i, s in enumerate(method.body.body) if "self.initialize(" in shown(s)]
    if not setting:
        return False
    known = len(setting) == len(calling) == 1 and setting[0] < calling[0]
    statement = method.body.body[setting[0]]
    return True if known and digest(as_ast(statement)) in EARLY_IDS else Refusal(site, UNKNOWN, shown(statement))


def edit_order(text: str, site: Site) -> EditResult | Refusal:
    """Edit `model_runner.py` up to 0.5.7: read, keep and set the draft's ids before the graphs are captured."""
    module = parse(text, site)
    if isinstance(module, Refusal):
        return module
    method = find_method(module, RUNNER, "initialize")
    if method is None:
        return Refusal(site, f"class {RUNNER} has no initialize, or more than one")
    body = list(method.body.body)
    graphs = [i for i, s in enumerate(body) if _calls(as_ast(s), "init_cuda_graphs", "init_device_graphs")]
    ids = [i for i, s in enumerate(body) if _calls(as_ast(s), SETTER)]
    found = "\n".join(shown(body[i]) for i in sorted({*graphs, *ids}))
    moved = body[ids[0]] if len(ids) == 1 else None
    if len(graphs) != 1 or not isinstance(moved, cst.If):
        return Refusal(site, UNKNOWN, found or "no capture of graphs")
    (at,), (late,) = graphs, ids
    back = _OrderBack()
    before = back.visit(as_ast(moved))
    if (digest(as_ast(body[at])), digest(before)) not in LATE_IDS:
        return Refusal(site, UNKNOWN, found)
    if back.count:
        whole = late == at - 1 and late > 0 and _is(as_ast(body[late - 1]), _NONE_YET)
        return EditResult(text, site, already_done=True) if whole else Refusal(site, UNKNOWN, found)
    if late < at:
        return Refusal(site, UNKNOWN, found)
    note = cst.Comment(f"{NOTE} before the graphs are captured, so that verify serves the draft's ids too")
    none_yet = cst.parse_statement(_NONE_YET).with_changes(
        leading_lines=[cst.EmptyLine(indent=False), cst.EmptyLine(comment=note)]
    )
    *reading, setting = cast(Sequence[cst.SimpleStatementLine], moved.body.body)  # LATE_IDS holds no other shape
    keep = cst.parse_statement(_KEEP).with_changes(leading_lines=setting.leading_lines)
    inner = [*reading, keep, setting.with_changes(leading_lines=[])]
    moved = moved.with_changes(body=moved.body.with_changes(body=inner))
    graphs_too = cast(cst.SimpleStatementLine, body[at])  # as above
    if not graphs_too.leading_lines:
        graphs_too = graphs_too.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    new = [*body[:at], none_yet, moved, graphs_too, *body[at + 1 : late], *body[late + 1 :]]
    changed = method.with_changes(body=method.body.with_changes(body=new))
    return EditResult(with_method(module, RUNNER, method, changed).code, site, already_done=False)


def calls_setter(text: str, class_name: str = "", method: str = "") -> bool:
    """Return whether a module, or one method of one of its classes, calls the setter."""
    module = ast.parse(text)
    inside = [f for f in _methods(module, class_name) if f.name == method] if class_name else [module]
    return any(_calls(tree, SETTER) for tree in inside)


def calls_without_ids(text: str) -> int:
    """Return the number of calls of the setter without ids in a module."""
    return sum(1 for call in _setter_calls(ast.parse(text)) if not call.args and not call.keywords)


def has_method(text: str, class_name: str, name: str) -> bool:
    """Return whether a top-level class of a module defines a method."""
    return any(method.name == name for method in _methods(ast.parse(text), class_name))


def _methods(module: ast.Module, class_name: str) -> Iterator[ast.FunctionDef]:
    for owner in module.body:
        if isinstance(owner, ast.ClassDef) and owner.name == class_name:
            yield from (statement for statement in owner.body if isinstance(statement, ast.FunctionDef))


def _edit_call(
    text: str, site: Site, class_name: str, method_name: str, ids: str, known: frozenset[str]
) -> EditResult | Refusal:
    module = parse(text, site)
    if isinstance(module, Refusal):
        return module
    method = find_method(module, class_name, method_name)
    if method is None:
        return Refusal(site, f"class {class_name} has no {method_name}, or more than one")
    tree = as_ast(method)
    calls = list(_setter_calls(tree))
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and any(_calls(s, SETTER) for s in n.body)]
    found = "\n".join(ast.unparse(guard) for guard in guards) or "no call of the setter"
    if len(calls) != 1 or len(guards) != 1:
        return Refusal(site, UNKNOWN, found)
    done = len(calls[0].args) == 1 and same(calls[0].args[0], ids)
    if done:
        calls[0].args.clear()
    if digest(guards[0]) not in known:
        return Refusal(site, UNKNOWN, found)
    if done:
        return EditResult(text, site, already_done=True)
    changed = method.visit(_GiveIds(ids))
    return EditResult(with_method(module, class_name, method, changed).code, site, already_done=False)


class _GiveIds(cst.CSTTransformer):
    def __init__(self, ids: str):
        super().__init__()
        self._ids = cst.Arg(cst.parse_expression(ids))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        name = updated_node.func
        called = isinstance(name, cst.Attribute) and name.attr.value == SETTER
        return updated_node.with_changes(args=[self._ids]) if called else updated_node


class _OrderBack(ast.NodeTransformer):
    count = 0

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        if not _is(node, _KEEP):
            return node
        self.count += 1
        return None


def _is(node: ast.AST, statement: str) -> bool:
    return digest(node) == digest(ast.parse(statement).body[0])


def _assigns(tree: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Assign) and any(same(t, name) for t in n.targets) for n in ast.walk(tree))


def _calls(tree: ast.AST, *names: str) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        for node in ast.walk(tree)
    )


def _setter_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == SETTER:
            yield node
