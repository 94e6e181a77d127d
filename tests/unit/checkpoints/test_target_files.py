"""Target folders: sizes from the top level or nested, and single tensors without the model."""

import json

import pytest
import torch
from safetensors.torch import save_file

from wiring.checkpoints.target_files import read_target_config, read_tensor
from wiring.errors import WiringError

SIZES = {"num_hidden_layers": 61, "hidden_size": 64, "vocab_size": 320}


def write(folder, config, tensors=None):
    (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file(tensors, folder / "model.safetensors")


def refusal(read, *arguments):
    with pytest.raises(WiringError) as caught:
        read(*arguments)
    return caught.value


def test_sizes_at_the_top_and_nested(tmp_path):
    write(tmp_path, {"architectures": ["DeepseekV3ForCausalLM"], **SIZES})
    config = read_target_config(tmp_path)
    assert (config.architecture, config.num_layers, config.hidden_size, config.vocab_size) == (
        "DeepseekV3ForCausalLM",
        61,
        64,
        320,
    )
    assert config.folder == tmp_path and config.raw["hidden_size"] == 64
    write(tmp_path, {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": SIZES, "hidden_size": 1})
    assert read_target_config(tmp_path).hidden_size == 64


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (SIZES, "target-architecture-missing"),
        ({"architectures": ["A"], **SIZES, "hidden_size": "64"}, "config-field-invalid"),
        ({"architectures": "A", **SIZES}, "config-field-invalid"),
        ({"architectures": ["A"], "text_config": SIZES | {"vocab_size": 0}}, "config-field-invalid"),
        ({"architectures": ["A"], "hidden_size": 64, "vocab_size": 3}, "config-field-missing"),
    ],
)
def test_a_config_without_its_facts_is_an_error(tmp_path, config, code):
    write(tmp_path, config)
    error = refusal(read_target_config, tmp_path)
    assert (error.code, error.where) == (code, str(tmp_path / "config.json"))


def test_one_tensor_by_its_plain_name(tmp_path):
    weight = torch.randn(6, 4).bfloat16()
    write(tmp_path, {}, {"model.embed_tokens.weight": weight, "model.norm.weight": torch.ones(4)})
    assert torch.equal(read_tensor(tmp_path, "model.embed_tokens.weight"), weight)
    error = refusal(read_tensor, tmp_path, "lm_head.weight")
    assert (error.code, error.found) == ("tensor-missing", "2 tensors such as model.embed_tokens.weight")


def test_a_tied_head_and_a_wrapped_model(tmp_path):
    weight = torch.randn(6, 4)
    write(tmp_path, {"tie_word_embeddings": True}, {"language_model.model.embed_tokens.weight": weight})
    assert torch.equal(read_tensor(tmp_path, "model.embed_tokens.weight"), weight)
    assert torch.equal(read_tensor(tmp_path, "lm_head.weight"), weight)


def test_one_tensor_needs_only_its_own_shard(tmp_path):
    write(tmp_path, {})
    save_file({"model.norm.weight": torch.arange(4.0)}, tmp_path / "a.safetensors")
    index = {"weight_map": {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_tensor(tmp_path, "model.norm.weight").tolist() == [0, 1, 2, 3]
    error = refusal(read_tensor, tmp_path, "lm_head.weight")
    assert (error.code, error.where) == ("file-missing", str(tmp_path / "b.safetensors"))


def test_a_folder_that_does_not_exist(tmp_path):
    assert refusal(read_target_config, tmp_path / "no").code == "json-missing"
    assert refusal(read_tensor, tmp_path / "no", "x").code == "model-folder-missing"
