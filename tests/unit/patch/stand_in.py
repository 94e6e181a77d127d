"""A tiny package `sglang` of our own: the sites of the source edits in the shape of a forward, and nothing else."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from wiring.patch.source import graph_edits
from wiring.patch.source import model_edits as edits_module
from wiring.patch.source.code_shape import digest
from wiring.patch.source.edit_site import Edit, EditResult, Site
from wiring.patch.source.known_shapes import Capture, Rule
from wiring.patch.source.model_edits import capturing
from wiring.patch.source.needed_edits import rewrite
from wiring.patch.source.sglang_tree import find_tree
from wiring.patch.source.source_change import Change

MODEL = '''"""A target."""


class DeepseekV2Model:
    def forward(self, hidden_states):   # two spaces too many, and they stay
        residual = None
        aux_hidden_states = []
        for i, layer in enumerate(self.layers):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)  # the input of layer i
            hidden_states, residual = layer(hidden_states, residual)
        return hidden_states, aux_hidden_states


class DeepseekV2ForCausalLM:
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            self.model.layers_to_capture = [2]
        else:
            # how ids are read
            if layer_ids and layer_ids[0] == 1:
                self.model.layers_to_capture = [val + 1 for val in layer_ids]
            else:
                self.model.layers_to_capture = list(layer_ids)
'''

GRAPHS = """class CudaGraphRunner:
    def __init__(self, model_runner):
        self.model_runner = model_runner
        if model_runner.speculates:
            self.model_runner.model.set_eagle3_layers_to_capture()
        self.captured_on = list(model_runner.model.model.layers_to_capture)
"""

RUNNER = """class ModelRunner:
    def __init__(self, draft):
        self.draft = draft
        self.initialize()

    def initialize(self):
        self.start()
        if self.device == "cuda":
            self.init_device_graphs()

        # the draft's ids
        if self.speculates:
            try:
                eagle_aux_hidden_state_layer_ids = self.draft["ids"]
            except KeyError:
                eagle_aux_hidden_state_layer_ids = None

            self.model.set_eagle3_layers_to_capture(eagle_aux_hidden_state_layer_ids)
        self.finish()

    def _dummy_run(self):
        if self.speculates:
            self.model.set_eagle3_layers_to_capture()
        return self.model
"""

FILES = {
    "srt/models/deepseek_v2.py": MODEL,
    "srt/model_executor/cuda_graph_runner.py": GRAPHS,
    "srt/model_executor/model_runner.py": RUNNER,
}


def write_tree(folder: Path, files: dict[str, str] = FILES, version: str = "0.5.7"):
    """A tree at `folder`/sglang; return it as `find_tree` finds it."""
    package = folder / "sglang"
    for path, text in {**files, "version.py": f'__version__ = "{version}"\n', "__init__.py": ""}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_bytes(text.encode())
    return find_tree(folder)


def method(text: str, owner: str, name: str) -> ast.FunctionDef:
    (found,) = [
        inner
        for outer in ast.parse(text).body
        if isinstance(outer, ast.ClassDef) and outer.name == owner
        for inner in outer.body
        if isinstance(inner, ast.FunctionDef) and inner.name == name
    ]
    return found


def guard(text: str, owner: str, name: str) -> ast.stmt:
    """The statement of a method that calls the setter."""
    (found,) = [s for s in method(text, owner, name).body if "set_eagle3" in ast.unparse(s)]
    return found


def know_the_stand_in(monkeypatch) -> None:
    """Let the edits take the stand-in's shapes for known ones, as they take SGLang's."""
    setter = method(MODEL, "DeepseekV2ForCausalLM", "set_eagle3_layers_to_capture")
    forward = capturing(method(MODEL, "DeepseekV2Model", "forward"))
    (graphs,) = [s for s in method(RUNNER, "ModelRunner", "initialize").body if "graphs" in ast.unparse(s)]
    monkeypatch.setattr(edits_module, "SETTERS", {digest(setter): Rule.FIRST_IS_ONE})
    monkeypatch.setattr(edits_module, "CAPTURES", {digest(forward): Capture.RAISES})
    monkeypatch.setattr(graph_edits, "GRAPH_CALLS", {digest(guard(GRAPHS, "CudaGraphRunner", "__init__"))})
    monkeypatch.setattr(graph_edits, "DUMMY_CALLS", {digest(guard(RUNNER, "ModelRunner", "_dummy_run"))})
    monkeypatch.setattr(graph_edits, "LATE_IDS", {(digest(graphs), digest(guard(RUNNER, "ModelRunner", "initialize")))})


def simple_change(tree, extra: str = "patched = True\n") -> Change:
    """A change of all three files that needs no known shape: a line is added at the end of each."""

    def edit(path):
        site = Site("setter", path, "Any.where")

        def transform(text):
            done = text.endswith(extra)
            return EditResult(text if done else text + extra, site, done)

        return Edit(site, (), "a line at the end", transform)

    edits = tuple(edit(path) for path in FILES)
    return Change(tree, edits, rewrite(tree, edits))


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder, byte code left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
