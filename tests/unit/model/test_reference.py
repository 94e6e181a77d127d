"""Every boundary of tiny random models against transformers' own list and against the layers run one by one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from wiring.errors import WiringError
from wiring.model.target_reference import ReferenceTarget
from wiring.model.torchvision_operators import declare_torchvision_operators

ARCHITECTURES = ("llama", "qwen3", "deepseek")
SIZES = dict(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    tie_word_embeddings=False,
)


def save_model(folder, architecture):
    declare_torchvision_operators()
    import transformers as tf

    if architecture == "llama":
        model = tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES))
    elif architecture == "qwen3":
        model = tf.Qwen3ForCausalLM(tf.Qwen3Config(**SIZES, head_dim=8))
    else:
        rope = {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
        config = tf.DeepseekV3Config(
            **SIZES | {"num_key_value_heads": 4},
            moe_intermediate_size=16,
            n_shared_experts=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=3,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            rope_parameters=rope,
        )
        model = tf.DeepseekV3ForCausalLM(config)
    with torch.no_grad():
        for i, weight in enumerate(model.parameters()):
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
            weight.copy_(1 + 0.2 * noise if weight.dim() == 1 else 0.3 * noise)
    model.to(torch.bfloat16).save_pretrained(folder)
    if architecture == "deepseek":  # a key of DeepSeek's own config files that transformers does not know
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"moe_layer_freq": 1}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: save_model(tmp_path_factory.mktemp(name), name) for name in ARCHITECTURES}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def target(request, folders):
    return ReferenceTarget.load(folders[request.param])


TOKENS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(3))


def test_weights_are_the_stored_ones_widened(target, folders):
    name = next(n for n in ARCHITECTURES if n in type(target.model).__name__.lower())
    stored = load_file(folders[name] / "model.safetensors")
    assert target.head.weight.dtype == torch.float32
    assert torch.equal(target.head.weight, stored["lm_head.weight"].float())
    assert torch.equal(target.decoder.embed_tokens.weight, stored["model.embed_tokens.weight"].float())


def test_boundaries_agree_with_transformers_where_it_gives_them(target):
    seen = target.forward(TOKENS)
    theirs = target.model(input_ids=TOKENS, output_hidden_states=True, use_cache=False)
    depth = target.num_layers
    assert seen.boundaries.shape == (depth + 1, 2, 9, 32)
    assert torch.equal(seen.boundaries[0], target.decoder.embed_tokens(TOKENS))
    for b in range(depth):
        assert torch.equal(seen.boundaries[b], theirs.hidden_states[b]), b
    assert torch.equal(seen.last_hidden, theirs.hidden_states[-1])  # the last entry is normed
    assert not torch.allclose(seen.boundaries[depth], theirs.hidden_states[-1], atol=1e-2)
    assert torch.equal(seen.logits, theirs.logits)


def test_boundaries_follow_from_one_another_layer_by_layer(target):
    seen = target.forward(TOKENS)
    positions = torch.arange(9)[None]
    rotation = target.decoder.rotary_emb(seen.boundaries[0], position_ids=positions)
    causal = torch.full((9, 9), float("-inf")).triu(1)[None, None]
    for b, layer in enumerate(target.layers):
        out = layer(
            seen.boundaries[b],
            attention_mask=causal,
            position_ids=positions,
            position_embeddings=rotation,
            use_cache=False,
        )
        out = out[0] if isinstance(out, tuple) else out
        assert torch.allclose(out, seen.boundaries[b + 1], atol=1e-4), b
    normed = target.decoder.norm(seen.boundaries[-1])
    assert torch.allclose(normed, seen.last_hidden, atol=1e-5)
    assert torch.allclose(normed @ target.head.weight.T, seen.logits, atol=1e-4)


def test_padding_on_the_right_does_not_reach_back(target):
    whole, cut = target.forward(TOKENS), target.forward(TOKENS[:, :6])
    assert torch.allclose(whole.boundaries[:, :, :6], cut.boundaries, atol=1e-4)


def test_greedy_takes_the_first_choice_of_a_pass_without_a_cache(target):
    prompt = TOKENS[0, :4].tolist()
    new = target.greedy(prompt, 12)
    ids = list(prompt)
    for token in new:
        assert token == int(target.forward(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert len(new) == 12
    end = new[3]
    assert target.greedy(prompt, 12, eos_id=end) == new[: new.index(end) + 1]


def test_hooks_are_gone_after_a_pass(target):
    def hooks():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in [*target.layers, target.head])

    before = hooks()  # transformers leaves hooks of its own
    target.forward(TOKENS)
    assert hooks() == before


def test_missing_weights_are_an_error_not_random_numbers(folders, tmp_path):
    tensors = load_file(folders["llama"] / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folders["llama"] / "config.json").read_text())
    with pytest.raises(WiringError) as error:
        ReferenceTarget.load(tmp_path)
    assert error.value.code == "target-tensors-unusable"
    assert error.value.found == "1 such as model.layers.2.mlp.up_proj.weight"


def test_the_bar_of_transformers_is_drawn_in_a_terminal_only(folders, capfd, monkeypatch):
    from transformers.utils import logging

    def drawn(in_a_terminal):
        monkeypatch.setattr("sys.stderr.isatty", lambda: in_a_terminal, raising=False)
        ReferenceTarget.load(folders["llama"])
        assert logging.is_progress_bar_enabled()  # a bar of the reader's own is drawn as before
        return "Loading weights" in capfd.readouterr().err

    assert drawn(True) and not drawn(False)


def test_a_folder_that_is_no_model_is_an_error(tmp_path):
    with pytest.raises(WiringError) as error:
        ReferenceTarget.load(tmp_path / "nothing")
    assert error.value.code == "target-config-missing"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(WiringError) as error:
        ReferenceTarget.load(tmp_path)
    assert error.value.code == "target-unloadable"
