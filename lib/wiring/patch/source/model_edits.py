"""The two edits of a model's file: the setter accepts the id -1, and the layer loop captures the embedding.

The setter (SGLang 0.5.13 on, `deepseek_v2.py` and `glm4_moe_lite.py`) takes ids as boundaries unless the first is 1;
with the edit an id -1 among them also makes every id an output id, so that [-1, 2, 30] serves (0, 3, 31).

The loop (SGLang up to 0.5.20, by family) captures `hidden_states + residual`, and before layer 0 there is no residual.
With the edit it captures a clone of the hidden states there: layer 0 makes this tensor the residual, and the norms
of all later layers add to it in place.

Both are pure functions from text to text, by syntax tree; formatting and comments are kept.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst

from wiring.patch.source.code_shape import as_ast, digest, find_method, same, same_cst, with_method
from wiring.patch.source.edit_site import EditResult, Refusal, Site, parse, shown
from wiring.patch.source.known_shapes import CAPTURES, MARKING, SETTERS, Capture, Rule

SETTER = "set_eagle3_layers_to_capture"
UNKNOWN = "this code is not one of the known shapes"
NOTE = "# eagle3-wiring:"

_FIRST_IS_ONE = "layer_ids and layer_ids[0] == 1"
_FIRST_IS_ONE_OR_EMBEDDING = "layer_ids and (layer_ids[0] == 1 or -1 in layer_ids)"
_BARE = "aux_hidden_states.append(hidden_states + residual)"
_NO_RESIDUAL = "residual is None"
_CLONE = "aux_hidden_states.append(hidden_states.clone())"


@dataclass(frozen=True)
class SetterKind:
    """How a setter reads ids; whether it is edited already; whether it marks layers singly (`known_shapes.MARKING`)."""

    rule: Rule
    done: bool
    marking: bool


def setter_kind(text: str, site: Site, class_name: str) -> SetterKind | Refusal:
    """Return how a class's setter reads layer ids."""
    found = _method(text, site, class_name, SETTER)
    if isinstance(found, Refusal):
        return found
    _, method = found
    tree, done = _unpatched(as_ast(method), _SetterBack())
    shape = digest(tree)
    if shape not in SETTERS:
        return Refusal(site, UNKNOWN, shown(method))
    return SetterKind(SETTERS[shape], done > 0, shape in MARKING)


def edit_setter(text: str, site: Site, class_name: str) -> EditResult | Refusal:
    """Add the id -1 to a setter of rule FIRST_IS_ONE; a config without -1 takes the same branch as before."""
    kind = setter_kind(text, site, class_name)
    if isinstance(kind, Refusal):
        return kind
    if kind.done:
        return EditResult(text, site, already_done=True)
    if kind.rule is not Rule.FIRST_IS_ONE:
        return Refusal(site, f"this setter needs no edit: {kind.rule.value}")
    found = _method(text, site, class_name, SETTER)
    if isinstance(found, Refusal):
        return found
    module, method = found
    return EditResult(with_method(module, class_name, method, method.visit(_SetterOn())).code, site, False)


def capture_kind(text: str, site: Site, class_name: str) -> tuple[Capture, bool] | Refusal:
    """Return what a model's forward does when boundary 0 is requested, and whether it is edited already."""
    found = _method(text, site, class_name, "forward")
    if isinstance(found, Refusal):
        return found
    _, method = found
    # The method as a whole: a partly edited loop has no known shape.
    whole, done = _unpatched(as_ast(method), _CaptureBack())
    assert isinstance(whole, ast.FunctionDef)  # as `method`
    statements = capturing(whole)
    kind = CAPTURES.get(digest(statements))
    if kind is None:
        code = "\n".join(shown(s) for s in method.body.body if "layers_to_capture" in shown(s))
        return Refusal(site, UNKNOWN, code or "no statement that captures layers")
    return kind, done > 0


def capturing(forward: ast.FunctionDef) -> list[ast.stmt]:
    """Return the statements of a forward's body that concern captured layers: the shape that is compared."""
    names = {"layers_to_capture", "aux_hidden_states"}
    return [
        statement
        for statement in forward.body
        if any(isinstance(node, ast.Attribute) and node.attr == "layers_to_capture" for node in ast.walk(statement))
        or (isinstance(statement, ast.For) and names & {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)})
    ]


def edit_capture(text: str, site: Site, class_name: str) -> EditResult | Refusal:
    """Make a loop capture a clone of the embedding where there is no residual yet."""
    known = capture_kind(text, site, class_name)
    if isinstance(known, Refusal):
        return known
    kind, done = known
    if done:
        return EditResult(text, site, already_done=True)
    if kind is Capture.SERVED:
        return Refusal(site, f"this forward needs no edit: {kind.value}")
    found = _method(text, site, class_name, "forward")
    if isinstance(found, Refusal):
        return found
    module, method = found
    return EditResult(with_method(module, class_name, method, method.visit(_CaptureOn())).code, site, False)


def _method(text: str, site: Site, class_name: str, name: str) -> tuple[cst.Module, cst.FunctionDef] | Refusal:
    module = parse(text, site)
    if isinstance(module, Refusal):
        return module
    method = find_method(module, class_name, name)
    if method is None:
        return Refusal(site, f"class {class_name} has no method {name} of its own, or more than one")
    return module, method


def _unpatched(tree: ast.AST, back: _Back) -> tuple[ast.AST, int]:
    """Return the tree without our edit, and the number of edited places."""
    return back.visit(tree), back.count


_Node = TypeVar("_Node", bound=ast.AST)


class _Back(ast.NodeTransformer):
    count = 0

    def undone(self, node: _Node) -> _Node:
        self.count += 1
        return node


class _SetterBack(_Back):
    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if same(node.test, _FIRST_IS_ONE_OR_EMBEDDING):
            node.test = self.undone(ast.parse(_FIRST_IS_ONE, mode="eval").body)
        return node


class _SetterOn(cst.CSTTransformer):
    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        if not same_cst(original_node.test, _FIRST_IS_ONE):
            return updated_node
        note = cst.EmptyLine(comment=cst.Comment(f"{NOTE} id -1 is the embedding, and then each id is an output id"))
        return updated_node.with_changes(
            test=cst.parse_expression(_FIRST_IS_ONE_OR_EMBEDDING), leading_lines=[*updated_node.leading_lines, note]
        )


def _is_append(node: ast.AST | None, code: str) -> bool:
    return isinstance(node, ast.Expr) and same(node.value, code)


class _CaptureBack(_Back):
    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        ours = same(node.test, _NO_RESIDUAL) and len(node.body) == len(node.orelse) == 1
        if ours and _is_append(node.body[0], _CLONE) and _is_append(node.orelse[0], _BARE):
            return self.undone(node.orelse[0])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        only = node.args[0] if len(node.args) == 1 else None
        if isinstance(only, ast.IfExp) and same(node.func, "aux_hidden_states.append"):
            for side in ("body", "orelse"):
                if same(getattr(only, side), "hidden_states.clone()"):
                    setattr(only, side, self.undone(ast.parse("hidden_states", mode="eval").body))
        return node


class _CaptureOn(cst.CSTTransformer):
    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        only = original_node.body[0]
        if len(original_node.body) != 1 or not isinstance(only, cst.Expr) or not same_cst(only.value, _BARE):
            return updated_node
        note = cst.EmptyLine(comment=cst.Comment(f"{NOTE} the embedding; later layers add to this tensor in place"))
        clone = cst.parse_statement(_CLONE).with_changes(leading_lines=[note])
        return cst.If(
            test=cst.parse_expression(_NO_RESIDUAL),
            body=cst.IndentedBlock([clone]),
            orelse=cst.Else(cst.IndentedBlock([updated_node.with_changes(leading_lines=[])])),
            leading_lines=updated_node.leading_lines,
        )

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        chosen = updated_node.args[0].value if len(updated_node.args) == 1 else None
        if not isinstance(chosen, cst.IfExp) or not same_cst(original_node.func, "aux_hidden_states.append"):
            return updated_node
        sides = {side: getattr(chosen, side) for side in ("body", "orelse")}
        cloned = {
            side: cst.parse_expression("hidden_states.clone()")
            for side, value in sides.items()
            if isinstance(value, cst.Name) and value.value == "hidden_states"
        }
        argument = updated_node.args[0].with_changes(value=chosen.with_changes(**cloned))
        return updated_node.with_changes(args=[argument])
