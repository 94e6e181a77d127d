"""What a release does around its setter: which ids it reads, when graphs are captured, how wide `fc` is built."""

from __future__ import annotations

import ast
from functools import cache
from types import SimpleNamespace
from typing import Any

from captured_states import Outcome, Server
from release_source import SETTER, Release, run_block

KEY = "eagle_aux_hidden_state_layer_ids"
_READERS = ("model_executor/model_runner_components/spec_aux_hidden_state.py", "model_executor/model_runner.py")
_GRAPHS = "model_executor/cuda_graph_runner.py"
_DRAFT = "models/llama_eagle3.py"

Layout = tuple[int, ...] | None


def read_ids(release: Release, draft_config: dict[str, Any]) -> Any:
    """The ids that the release's own block reads from a draft's config; None where it has no such block."""
    node = _reader(release)
    if node is None:
        return None
    holder = SimpleNamespace()
    draft = SimpleNamespace(hf_config=SimpleNamespace(**draft_config))
    after = run_block(node, draft_model_config=draft, self=holder, config=holder)
    return getattr(after, KEY, getattr(holder, KEY, None))


@cache
def _reader(release: Release) -> ast.Try | None:
    for path in _READERS:
        for node in ast.walk(release.tree(path)) if release.has(path) else ():
            if isinstance(node, ast.Try) and KEY in ast.unparse(node):
                return node
    return None


@cache
def default_calls(release: Release) -> list[str]:
    """Where the CUDA graph runner sets the layers without naming any: the methods that do."""
    if not release.has(_GRAPHS):
        return []
    found = []
    for method in ast.walk(release.tree(_GRAPHS)):
        if isinstance(method, ast.FunctionDef):
            for node in ast.walk(method):
                named = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f".{SETTER}")
                if named and not node.args and not node.keywords:
                    found.append(method.name)
    return found


def ids_after_graphs(release: Release) -> bool | None:
    """Whether the model runner sets the ids below the line that captures its graphs; None where the lines are apart."""
    for method in ast.walk(release.tree("model_executor/model_runner.py")):
        if not isinstance(method, ast.FunctionDef) or method.name != "initialize":
            continue
        calls = [(node.lineno, ast.unparse(node.func)) for node in ast.walk(method) if isinstance(node, ast.Call)]
        ids = [line for line, name in calls if name.endswith(f".{SETTER}")]
        graphs = [line for line, name in calls if name.endswith(("init_cuda_graphs", "init_device_graphs"))]
        if ids and graphs:
            return min(ids) > min(graphs)
    return None


def fc_states(release: Release, draft_config: dict[str, Any]) -> int:
    """For how many states the release builds the draft's `fc`: its own lines, run on this config."""
    blocks = _fc_blocks(release)
    if blocks is None:
        return 3
    holder = SimpleNamespace()
    for block in blocks:
        run_block(block, self=holder, config=SimpleNamespace(**draft_config))
    return holder.num_aux_hidden_states


@cache
def _fc_blocks(release: Release) -> tuple[ast.stmt, ...] | None:
    """The lines that work out the number of states; None where the width is three states as written."""
    tree = release.tree(_DRAFT)
    widths = [
        ast.unparse(node.value.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "self.fc"
        and isinstance(node.value, ast.Call)
    ]
    if all("num_aux_hidden_states" not in width for width in widths):
        assert {width.rpartition("* ")[2] for width in widths} == {"3"}, widths
        return None
    inits = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return tuple(
        part
        for node in inits
        for part in node.body
        if ast.unparse(part).startswith(("self.num_aux_hidden_states =", "if self.num_aux_hidden_states is None"))
    )


@cache
def fc_skipped_when_as_wide(release: Release) -> bool:
    """Whether the draft applies `fc` only where its input is not as wide as its embedding."""
    tests = [ast.unparse(node.test) for node in ast.walk(release.tree(_DRAFT)) if isinstance(node, ast.If)]
    return "hidden_states.shape[-1] != embeds.shape[-1]" in tests


def served(release: Release, architecture: str, num_layers: int, draft_config: dict, *, cuda_graphs: bool):
    """Prefill and decode as this release's own code serves them, and whether the embedding is handed on uncopied."""
    server = Server(release, architecture, num_layers)
    ids = read_ids(release, draft_config)
    wanted = len(draft_config.get("eagle_config", {}).get(KEY) or ()) or 3  # a draft whose fc agrees with its config
    built = fc_states(release, draft_config)
    if not server.supported or built != wanted:
        return None, None, False
    decode = None
    try:
        if cuda_graphs and default_calls(release):
            server.set_layers()
            decode = server.capture()
        server.set_layers(*([] if ids is None else [ids]))
    except (IndexError, TypeError):
        return None, None, False  # raised in the setter: the server does not start
    prefill = server.capture()
    decode = prefill if decode is None else decode
    skips = fc_skipped_when_as_wide(release)
    fed = _layout(prefill, built, skips)
    return fed, _layout(decode, built, skips), prefill.alias and fed is not None


def _layout(outcome: Outcome, built: int, skips: bool) -> Layout:
    count = len(outcome.boundaries)
    fits = count == built or (count == 1 and skips)
    return outcome.boundaries if fits and not outcome.error else None
