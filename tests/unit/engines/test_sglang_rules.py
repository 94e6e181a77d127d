"""The rules against SGLang's own code: its setter is cut out of the installed file and run."""

import ast
from importlib.metadata import distribution
from types import SimpleNamespace

import pytest

from wiring.engines import resolve as served
from wiring.engines.sglang import SUPPORTED, Speculation, requested_ids, resolve_speculation
from wiring.errors import WiringError

DEEPSEEK, LAYERS = "DeepseekV3ForCausalLM", 61
FILES = {DEEPSEEK: "deepseek_v2.py", "LlamaForCausalLM": "llama.py", "Qwen3ForCausalLM": "qwen3.py"}


def sglang_captures(architecture: str, ids: list[int] | None) -> list[int]:
    """Run SGLang's own `set_eagle3_layers_to_capture` of this architecture and return what it would capture."""
    source = distribution("sglang").locate_file(f"sglang/srt/models/{FILES[architecture]}")
    setters = [
        node
        for node in ast.walk(ast.parse(open(source, encoding="utf-8").read()))
        if isinstance(node, ast.FunctionDef) and node.name == "set_eagle3_layers_to_capture"
    ]
    setter = setters[-1]  # the outermost model's, where an inner one has it too
    setter.returns, setter.args.args[1].annotation = None, None
    scope: dict = {}
    exec(compile(ast.Module([setter], []), str(source), "exec"), scope)
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=LAYERS),
        model=SimpleNamespace(),
    )
    scope["set_eagle3_layers_to_capture"](model, ids)
    return sorted(set(model.model.layers_to_capture))


def served_layout(architecture, num_layers, draft_config, **settings):
    """The rule of the installed release, for a target of this architecture and depth."""
    target = {"architectures": [architecture], "num_hidden_layers": num_layers}
    return served.served_layout("sglang", SUPPORTED, target, draft_config, **settings)


def config(ids):
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


def test_the_rules_are_of_the_installed_release():
    assert distribution("sglang").version == SUPPORTED


@pytest.mark.parametrize("architecture", FILES)
@pytest.mark.parametrize("ids", [None, [3, 31, 59], [2, 30, 58], [1, 29, 57], [58, 30, 2], [1, 30, 58]])
def test_served_layout_is_what_sglang_captures(architecture, ids):
    found = served_layout(architecture, LAYERS, config(ids) if ids else {})
    assert list(found.prefill) == list(found.verify) == list(found.draft_extend) == sglang_captures(architecture, ids)


def test_the_embedding_is_boundary_0_on_deepseek_and_id_minus_1_on_llama():
    assert served_layout(DEEPSEEK, LAYERS, config([0, 3, 31])).verify == (0, 3, 31)
    assert sglang_captures(DEEPSEEK, [0, 3, 31]) == [0, 3, 31]
    assert served_layout("LlamaForCausalLM", LAYERS, config([-1, 2, 30])).verify == (0, 3, 31)
    assert sglang_captures("LlamaForCausalLM", [-1, 2, 30]) == [0, 3, 31]


def test_minus_1_on_deepseek_loses_a_state_unless_the_plugin_reads_it():
    bare = served_layout(DEEPSEEK, LAYERS, config([-1, 2, 30]))
    assert bare.prefill is None and "only 2 of 3" in str(bare.notes[-1])
    assert served_layout(DEEPSEEK, LAYERS, config([-1, 2, 30]), embedding_plugin=True).verify == (0, 3, 31)


def test_duplicate_ids_collapse():
    assert served_layout(DEEPSEEK, LAYERS, config([2, 2, 30])).prefill is None
    assert sglang_captures(DEEPSEEK, [2, 2, 30]) == [2, 30]


def test_a_key_at_the_top_level_is_ignored_and_said():
    found = served_layout(DEEPSEEK, LAYERS, {"eagle_aux_hidden_state_layer_ids": [0, 3, 31]})
    assert found.verify == (2, 30, 58)
    assert "top level" in str(found.notes[0])
    assert requested_ids({"eagle_aux_hidden_state_layer_ids": [0, 3, 31]}) is None


def test_a_chain_verifies_one_token_more_than_it_drafts():
    assert resolve_speculation(Speculation(5, 1, 8)) == Speculation(5, 1, 6)
    assert resolve_speculation(Speculation(5, 1, 6)) == Speculation(5, 1, 6)
    assert resolve_speculation(Speculation(3, 4, 8)) == Speculation(3, 4, 8)


def test_speculation_needs_positive_numbers():
    with pytest.raises(WiringError) as caught:
        Speculation(1, 0, 1)
    assert (caught.value.code, caught.value.where, caught.value.found) == ("speculation-not-positive", "topk", "0")
