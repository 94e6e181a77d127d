"""Draft checkpoints: every tensor is accounted for, and each fault is named with its file, tensor and both sides."""

import json

import pytest
import torch
from safetensors.torch import save_file

from wiring.errors import WiringError
from wiring.files.draft import read_draft
from wiring.files.draft_config import Eagle3Config

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 40, "draft_vocab_size": 10,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
}  # fmt: skip
SHAPES = {  # written out by hand: q 4 x 6, k and v 2 x 6, from twice the width; fc from three states
    "fc.weight": (16, 48), "midlayer.self_attn.q_proj.weight": (24, 32), "midlayer.self_attn.k_proj.weight": (12, 32),
    "midlayer.self_attn.v_proj.weight": (12, 32), "midlayer.self_attn.o_proj.weight": (16, 24),
    "midlayer.mlp.gate_proj.weight": (24, 16), "midlayer.mlp.up_proj.weight": (24, 16),
    "midlayer.mlp.down_proj.weight": (16, 24), "midlayer.input_layernorm.weight": (16,),
    "midlayer.hidden_norm.weight": (16,), "midlayer.post_attention_layernorm.weight": (16,), "norm.weight": (16,),
    "lm_head.weight": (10, 16),
}  # fmt: skip


def write_draft(folder, config=CONFIG, change=lambda tensors: None, shards=False):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    g = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=g).bfloat16() for name, shape in SHAPES.items()}
    ids = torch.arange(10) * 4 + 1
    tensors["d2t"], tensors["t2d"] = ids - torch.arange(10), torch.zeros(40, dtype=torch.bool).scatter(0, ids, True)
    change(tensors)
    if not shards:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[:6], "model-2.safetensors": names[6:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


@pytest.mark.parametrize("shards", [False, True])
def test_reads_every_tensor_as_stored(tmp_path, shards):
    written = write_draft(tmp_path, shards=shards)
    draft = read_draft(tmp_path)
    assert draft.folder == tmp_path and draft.config == CONFIG
    assert draft.tensors.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(draft.tensors[name], tensor) and draft.tensors[name].dtype == tensor.dtype


def test_a_copy_of_the_embedding_and_a_missing_t2d_are_fine(tmp_path):
    def change(tensors):
        tensors["embed_tokens.weight"] = torch.zeros(40, 16)
        del tensors["t2d"]

    write_draft(tmp_path, change=change)
    assert "embed_tokens.weight" in read_draft(tmp_path).tensors


def set_to(name, value):
    return lambda tensors: tensors.__setitem__(name, value)


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.pop("midlayer.mlp.up_proj.weight"),
     r"midlayer\.mlp\.up_proj\.weight is missing.*expected \[24, 16\], found nothing"),
    (lambda t: t.pop("d2t"), r"d2t is missing from the draft \(expected \[10\]"),
    (set_to("layers.0.mlp.up_proj.weight", torch.zeros(24, 16)),
     r"model\.safetensors: tensor layers\.0\.mlp\.up_proj\.weight is unknown.*found .*\[24, 16\]"),
    (set_to("fc.weight", torch.zeros(16, 64)),
     r"fc\.weight has the wrong shape.*expected \[16, 48\], found \[16, 64\].*3 states of width 16"),
    (set_to("lm_head.weight", torch.zeros(40, 16)), r"lm_head\.weight.*expected \[10, 16\], found \[40, 16\]"),
    (set_to("norm.weight", torch.full((16,), float("nan"))), r"norm\.weight holds NaN"),
    (set_to("d2t", torch.arange(10) * 4 + 1),
     r"d2t maps a draft id outside.*expected target ids 0\.\.39, found draft id 8 -> 41"),
    (set_to("t2d", torch.zeros(40, dtype=torch.bool)), r"t2d and d2t disagree.*found 10 ids differ"),
])  # fmt: skip
def test_a_fault_in_the_tensors_is_named(tmp_path, change, message):
    write_draft(tmp_path, change=change)
    with pytest.raises(WiringError, match=message):
        read_draft(tmp_path)


@pytest.mark.parametrize(("field", "value", "message"), [
    ("hidden_size", None, r"config\.json: the draft's hidden_size is not a size.*found None"),
    ("intermediate_size", -3, "intermediate_size is not a size"),
    ("num_key_value_heads", 3, "heads do not divide"),
    ("num_hidden_layers", 2, "not implemented here.*num_hidden_layers = 2"),
    ("rope_scaling", {"type": "yarn", "factor": 40}, "RoPE scaling = yarn"),
    ("fc_norm", True, "fc_norm = True"),
    ("norm_before_residual", True, "norm_before_residual = True"),
    ("hidden_act", "gelu", "hidden_act = gelu"),
])  # fmt: skip
def test_a_config_that_asks_for_another_draft_is_refused(tmp_path, field, value, message):
    write_draft(tmp_path, CONFIG | {field: value})
    with pytest.raises(WiringError, match=message):
        read_draft(tmp_path)


def test_defaults_and_spellings_of_the_config():
    bare = {k: CONFIG[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")}
    shape = Eagle3Config.from_dict(bare)
    assert (shape.num_kv_heads, shape.head_dim, shape.draft_vocab_size, shape.num_slots) == (4, 4, 40, 3)
    assert (shape.rope_theta, shape.target_hidden_size, shape.has_vocab_map) == (10000.0, 16, False)
    new_spelling = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert Eagle3Config.from_dict(bare | new_spelling).rope_theta == 5e5
    assert Eagle3Config.from_dict(bare | {"rope_theta": 1e6, "rope_scaling": None}).rope_theta == 1e6
    four = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3]}}
    assert Eagle3Config.from_dict(bare | four).num_slots == 4
    assert Eagle3Config.from_dict(bare | four | {"num_aux_hidden_states": 2}).num_slots == 2


def test_files_that_are_not_there_or_not_whole(tmp_path):
    with pytest.raises(WiringError, match="config is missing"):
        read_draft(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WiringError, match="cannot be read as JSON"):
        read_draft(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WiringError, match=r"no safetensors here.*Convert pytorch_model\.bin to safetensors"):
        read_draft(tmp_path)
    write_draft(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WiringError, match=r"model\.safetensors: not a whole safetensors file"):
        read_draft(tmp_path)


def test_index_and_shards_that_disagree(tmp_path):
    write_draft(tmp_path, shards=True)
    (tmp_path / "model-2.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(WiringError, match=r"model-2\.safetensors: a safetensors shard is missing"):
        read_draft(tmp_path)
    write_draft(tmp_path, shards=True)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["norm.weight"] = "model-1.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WiringError, match=r"model-1\.safetensors: the index promises tensor norm\.weight"):
        read_draft(tmp_path)
    del index["weight_map"]["norm.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WiringError, match=r"model-2\.safetensors: the shard holds tensor norm\.weight"):
        read_draft(tmp_path)
