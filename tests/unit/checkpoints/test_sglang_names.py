"""Which names SGLang finds a place for: its own `load_weights`, cut out of the installed file and run, against ours."""

import ast
from importlib.metadata import distribution
from types import SimpleNamespace

import pytest
import torch

from wiring.checkpoints.draft_producers import loaded_by_sglang

SOURCE = distribution("sglang").locate_file("sglang/srt/models/llama_eagle3.py")
LAYER = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj", "hidden_norm")
PLACES = [
    "lm_head.weight",
    "model.fc.weight",
    "model.norm.weight",
    "model.embed_tokens.weight",
    "model.fc_norm.1.weight",
    *(f"model.layers.0.{name}.weight" for name in LAYER),
]
NAMES = [
    "lm_head.weight",
    "fc.weight",
    "norm.weight",
    "aux_norm_mid.weight",
    "midlayer.self_attn.q_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "midlayer.hidden_norm.weight",
    "embed_tokens.weight",
]


def loaded(names):
    """What SGLang's method writes where: (place, value) in order, the value being the number of the name."""
    tree = ast.parse(open(SOURCE, encoding="utf-8").read())
    (method,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "load_weights"]
    method.returns, method.args.args[1].annotation = None, None
    scope: dict = {"torch": torch, "default_weight_loader": None}
    exec(compile(ast.Module([method], []), str(SOURCE), "exec"), scope)
    written = []

    def place(name):
        return SimpleNamespace(weight_loader=lambda param, value, *shard: written.append((name, *shard, value)))

    model = SimpleNamespace(named_parameters=lambda: [(name, place(name)) for name in PLACES], hot_token_id=None)
    scope["load_weights"](model, [(name, torch.tensor([i])) for i, name in enumerate(names)])
    return written, model.hot_token_id


@pytest.mark.parametrize("prefix", ["", "model.", "draft_model."])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_loaded_or_dropped_as_said(prefix, name):
    assert bool(loaded([prefix + name])[0]) == loaded_by_sglang(prefix + name)


@pytest.mark.parametrize("prefix", ["", "model.", "draft_model."])
def test_the_map_is_found_behind_any_prefix(prefix):
    written, offsets = loaded([f"{prefix}t2d", f"{prefix}d2t"])
    assert written == [] and offsets is not None
    assert loaded_by_sglang(f"{prefix}d2t") and loaded_by_sglang(f"{prefix}t2d")


def test_of_two_names_with_one_place_the_last_stays():
    written, _ = loaded(["layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight"])
    assert [place for place, _ in written] == ["model.layers.0.hidden_norm.weight"] * 2 and int(written[-1][1]) == 1
