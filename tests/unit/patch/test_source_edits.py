"""The edits as functions from text to text: what the edited code does, what stays as it was, and what is refused."""

import ast
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import FILES, GRAPHS, MODEL, RUNNER, know_the_stand_in, write_tree

from wiring.errors import WiringError
from wiring.patch.source import Refusal, check_sites, needed_edits, prepare, rewrite
from wiring.patch.source.code_shape import digest
from wiring.patch.source.edit_site import Site
from wiring.patch.source.graph_edits import edit_order
from wiring.patch.source.model_edits import edit_capture, edit_setter

SITE = Site("setter", "srt/models/deepseek_v2.py", "DeepseekV2ForCausalLM.set_eagle3_layers_to_capture")


@pytest.fixture(autouse=True)
def known(monkeypatch):
    know_the_stand_in(monkeypatch)


def run(text):
    """A module's names after running it."""
    names = {}
    exec(compile(text, "module", "exec"), names)
    return SimpleNamespace(**names)


def setter(text=MODEL):
    return edit_setter(text, SITE, "DeepseekV2ForCausalLM")


def boundaries(text, ids):
    model = run(text).DeepseekV2ForCausalLM()
    model.model = SimpleNamespace()
    model.set_eagle3_layers_to_capture(ids)
    return model.model.layers_to_capture


@given(st.none() | st.lists(st.integers(-1, 61), max_size=5))
def test_only_lists_with_minus_one_are_read_otherwise(ids):
    edited = setter().new_text
    if ids and -1 in ids:
        assert boundaries(edited, ids) == [id + 1 for id in ids]
    else:
        assert boundaries(edited, ids) == boundaries(MODEL, ids)


def test_the_case_is_served():
    assert boundaries(setter().new_text, [-1, 2, 30]) == [0, 3, 31]


class Vector(list):
    """As much of a tensor as the loop needs: `+` makes a new one, `+=` changes it in place."""

    def __add__(self, other):
        return Vector(a + b for a, b in zip(self, other, strict=True))

    def __iadd__(self, other):
        self[:] = [a + b for a, b in zip(self, other, strict=True)]
        return self

    def clone(self):
        return Vector(self)


def in_place_layer(hidden, residual):
    """As fused norms do: the residual is the first hidden states, and is added to in place."""
    if residual is None:
        residual = hidden
    else:
        residual += hidden
    return Vector([1.0, 2.0]), residual


def captured(text, layers):
    model = run(text).DeepseekV2Model()
    model.layers, model.layers_to_capture = [in_place_layer] * 4, layers
    return model.forward(Vector([10.0, 20.0]))[1]


def test_the_embedding_is_captured_and_stays_what_it_was():
    edited = edit_capture(MODEL, SITE, "DeepseekV2Model").new_text
    assert captured(edited, [0, 1, 3]) == [[10.0, 20.0], [11.0, 22.0], [13.0, 26.0]]
    assert captured(edited, [1, 3]) == captured(MODEL, [1, 3])
    with pytest.raises(TypeError):
        captured(MODEL, [0, 1, 3])


WRITTEN_ANEW = {
    "aux_hidden_states.append(hidden_states + residual)  # the input of layer i",  # one level deeper
    "if layer_ids and layer_ids[0] == 1:",
    "self.model_runner.model.set_eagle3_layers_to_capture()",
    "self.model.set_eagle3_layers_to_capture()",
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_other_line_stays_with_its_comments_spaces_and_end(tmp_path, newline):
    tree = write_tree(tmp_path, {path: text.replace("\n", newline) for path, text in FILES.items()})
    gone = set()
    for file in prepare(tree, "deepseek_v2").files:
        before, after = file.before.decode().split(newline), file.after.decode().split(newline)
        assert not any("\r" in line or "\n" in line for line in after)
        gone |= {line.strip() for line in before if line not in after}
    assert gone == WRITTEN_ANEW


@pytest.mark.parametrize(
    ("head", "encoding"), [("# -*- coding: latin-1 -*-\n# é\n", "latin-1"), ("# é 雪\n", "utf-8-sig")]
)
def test_the_encoding_stays(tmp_path, head, encoding):
    tree = write_tree(tmp_path)
    path = tree.file("srt/models/deepseek_v2.py")
    path.write_bytes((head + MODEL).encode(encoding))
    (file, *_) = prepare(tree, "deepseek_v2").files
    assert file.after.startswith((head + MODEL)[:60].encode(encoding))
    assert "-1 in layer_ids" in file.after.decode(encoding)


def test_all_five_edits_are_needed_and_each_is_done_once(tmp_path):
    tree = write_tree(tmp_path)
    edits = needed_edits(tree, "DeepseekV3ForCausalLM")
    assert [edit.site.name for edit in edits] == ["setter", "capture", "graph", "order", "dummy"]
    assert not any(check.stands for check in check_sites(tree, edits))
    for file in rewrite(tree, edits):
        tree.file(file.path).write_bytes(file.after)
    assert all(check.stands for check in check_sites(tree, edits))
    again = rewrite(tree, needed_edits(tree, "DeepseekV3ForCausalLM"))
    assert all(file.before == file.after for file in again)
    assert {site.name for file in again for site in file.done} == {"setter", "capture", "graph", "order", "dummy"}


def serve(files, draft):
    """Start the stand-in server: the boundaries that its graphs, and then its eager forwards, capture."""
    model = run(files["srt/models/deepseek_v2.py"]).DeepseekV2ForCausalLM()
    model.model = SimpleNamespace(layers_to_capture=[])
    runner_class = run(files["srt/model_executor/model_runner.py"]).ModelRunner
    graph_class = run(files["srt/model_executor/cuda_graph_runner.py"]).CudaGraphRunner

    class Runner(runner_class):
        device, speculates = "cuda", True

        def start(self):
            self.model = model

        def init_device_graphs(self):
            self._dummy_run()
            self.graphs = graph_class(self).captured_on

        def finish(self): ...

    runner = Runner(draft)
    return runner.graphs, model.model.layers_to_capture


@pytest.mark.parametrize("draft", [{"ids": [-1, 2, 30]}, {"ids": [3, 31, 59]}, {}])
def test_graphs_of_verify_are_captured_on_the_drafts_ids(tmp_path, draft):
    before, eager_before = serve(FILES, draft)
    files = prepare(write_tree(tmp_path), "deepseek_v2").files
    after, eager_after = serve({file.path: file.after.decode() for file in files}, draft)
    assert before == [2]  # the disease: the default, whatever the draft's config says
    assert after == eager_after
    assert eager_after == ([0, 3, 31] if -1 in draft.get("ids", ()) else eager_before)


def changed(old, new):
    assert old in MODEL
    return MODEL.replace(old, new)


SUM = "hidden_states + residual)"
UNKNOWN = {
    "another setter": (changed("layer_ids[0] == 1", "layer_ids[0] == 2"), "layer_ids[0] == 2"),
    "a setter patched by hand": (changed("if layer_ids and", "if -1 in layer_ids or layer_ids and"), "-1 in layer_ids"),
    "another capture": (changed(SUM, "hidden_states * residual)"), "hidden_states * residual"),
    "half a patch": (changed(SUM, "hidden_states.clone())"), "clone"),
    "no setter": (changed("def set_eagle3", "def set_eagle2"), "no method"),
    "two setters": (MODEL + "\n\n" + MODEL[MODEL.index("class DeepseekV2ForCausalLM") :], "more than one"),
    "no Python": (MODEL + "\nif:\n", "not Python"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown_code_is_refused_with_what_was_found_and_nothing_is_edited(tmp_path, what):
    text, found = UNKNOWN[what]
    refusal = needed_edits(write_tree(tmp_path, {**FILES, "srt/models/deepseek_v2.py": text}), "deepseek_v2")
    assert isinstance(refusal, Refusal) and found in str(refusal)
    assert "srt/models/deepseek_v2.py: DeepseekV2" in str(refusal)
    with pytest.raises(WiringError) as error:
        prepare(write_tree(tmp_path, {**FILES, "srt/models/deepseek_v2.py": text}), "deepseek_v2")
    assert error.value.code == "source-edit-refused" and error.value.found == str(refusal)


@pytest.mark.parametrize(
    ("module", "old", "new", "site"),
    [
        ("cuda_graph_runner", "model_runner.speculates", "model_runner.other", "CudaGraphRunner.__init__"),
        ("model_runner", 'self.device == "cuda"', 'self.device == "npu"', "ModelRunner.initialize"),
        ("model_runner", "return self.model", "self.model.set_eagle3_layers_to_capture()", "model_runner.py"),
        ("model_runner", "except KeyError", "except ValueError", "ModelRunner.initialize"),
    ],
)
def test_an_unknown_graph_site_refuses_the_model_edits_too(tmp_path, module, old, new, site):
    path = f"srt/model_executor/{module}.py"
    assert old in FILES[path]
    refusal = needed_edits(write_tree(tmp_path, {**FILES, path: FILES[path].replace(old, new)}), "deepseek_v2")
    assert isinstance(refusal, Refusal) and site in str(refusal) and refusal.found


@pytest.mark.parametrize("graphs", [GRAPHS, GRAPHS.replace(".set_eagle3_layers_to_capture()", ".go()")])
def test_a_default_that_is_set_in_an_unknown_place_is_refused(tmp_path, graphs):
    files = {**FILES, "srt/model_executor/cuda_graph_runner.py": graphs}
    files["srt/model_executor/a_runner.py"] = "def warm_up(model):\n    model.set_eagle3_layers_to_capture()\n"
    refusal = needed_edits(write_tree(tmp_path, files), "deepseek_v2")
    assert isinstance(refusal, Refusal) and "a_runner.py" in str(refusal)


def test_ids_that_are_kept_and_still_set_late_are_no_known_order():
    setting = "            self.model.set"
    kept = "            self.eagle_aux_hidden_state_layer_ids = eagle_aux_hidden_state_layer_ids\n"
    assert setting in RUNNER
    assert isinstance(edit_order(RUNNER.replace(setting, kept + setting, 1), SITE), Refusal)


def test_families_and_releases_without_an_edit_say_why(tmp_path):
    tree = write_tree(tmp_path, version="0.5.4.post1")
    assert "before SGLang 0.5.4.post2" in str(needed_edits(tree, "DeepseekV3ForCausalLM"))
    assert "families only: apertus" in str(needed_edits(tree, "gemma3_causal"))
    assert "not in the tree" in str(needed_edits(tree, "llama"))


def test_the_shape_leaves_out_layout_comments_and_annotations_alone():
    one = ast.parse("def f(a: int = 1) -> int:\n    # why\n    return (a +\n            2)\n").body[0]
    two = ast.parse("def f(a: float = 1):\n    return a + 2\n").body[0]
    other = ast.parse("def f(a=1):\n    return a + 3\n").body[0]
    assert digest(one) == digest(two) != digest(other)
