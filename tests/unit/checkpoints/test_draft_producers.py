"""Drafts in each producer's own layout: names, config defaults, storage, and the layout that each records."""

import argparse
import json

import pytest
import torch
from safetensors.torch import save_file

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.draft_files import read_draft
from wiring.errors import UnreadForward, WiringError
from wiring.model.torchvision_operators import declare_torchvision_operators

FLAT = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": 40,
    "draft_vocab_size": 10,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
SPECFORGE = FLAT | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True},
}
SAFEAILAB = FLAT | {"architectures": ["LlamaForCausalLM"]}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "draft_vocab_size": 10,
    "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 40,
    },
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "there"}},
}


def qwen3(**changes):
    layer = SPECULATORS["transformer_layer_config"] | {"model_type": "qwen3"} | changes
    return SPECULATORS | {"transformer_layer_config": layer}


def layer_tensors(prefix, first=True):
    reads = 32 if first else 16
    shapes = {
        "self_attn.q_proj.weight": (24, reads),
        "self_attn.k_proj.weight": (12, reads),
        "self_attn.v_proj.weight": (12, reads),
        "self_attn.o_proj.weight": (16, 24),
        "mlp.gate_proj.weight": (24, 16),
        "mlp.up_proj.weight": (24, 16),
        "mlp.down_proj.weight": (16, 24),
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
    } | ({"hidden_norm.weight": (16,)} if first else {})
    return {prefix + name: shape for name, shape in shapes.items()}


def tensors(prefix, *, maps=("d2t", "t2d"), embedding=False, extra=(), vocab=10):
    """A draft as its producer's module would hold it."""
    g = torch.Generator().manual_seed(0)
    shapes = {"fc.weight": (16, 48), **layer_tensors(prefix), "norm.weight": (16,), "lm_head.weight": (vocab, 16)}
    shapes |= {"embed_tokens.weight": (40, 16)} if embedding else {}
    made = {name: torch.randn(shape, generator=g) for name, shape in (shapes | dict(extra)).items()}
    ids = torch.arange(10) * 4 + 1
    known = {"d2t": ids - torch.arange(10), "t2d": torch.zeros(40, dtype=torch.bool).scatter(0, ids, True)}
    return made | {name: known[name] for name in maps}


def write(folder, config, **files):
    """config.json and the files given: safetensors of tensors, or torch files of anything."""
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        if name == "safetensors":
            save_file(content, folder / "model.safetensors")
        else:
            torch.save(content, folder / {"bin": "pytorch_model.bin", "state": "training_state.pt"}[name])
    return folder


def refusal(folder):
    with pytest.raises(WiringError) as caught:
        read_draft(folder)
    return caught.value


def test_safeailab_in_half_precision_as_a_torch_file(tmp_path):
    half = {n: t.half() if t.is_floating_point() else t for n, t in tensors("midlayer.").items()}
    draft = read_draft(write(tmp_path, SAFEAILAB, bin=half))
    assert (draft.producer, draft.findings) == ("safeailab", ())
    assert draft.tensors["fc.weight"].dtype == torch.float16
    assert torch.equal(draft.tensors["layers.0.mlp.up_proj.weight"], half["midlayer.mlp.up_proj.weight"])
    assert draft.layout_hint(32)[0] == (2, 16, 29)  # the common default
    theta = read_draft(write(tmp_path, SAFEAILAB | {"rope_theta": 5e5}))
    assert [(f.kind, f.severity) for f in theta.findings] == [("rope", "note")] and theta.shape.rope.theta == 5e5


def test_torch_files_in_shards(tmp_path):
    whole = tensors("midlayer.")
    names = sorted(whole)
    parts = {"pytorch_model-1.bin": names[:5], "pytorch_model-2.bin": names[5:]}
    write(tmp_path, SAFEAILAB)
    for file, held in parts.items():
        torch.save({name: whole[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert len(read_draft(tmp_path).tensors) == len(whole)
    del index["weight_map"]["norm.weight"]
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    error = refusal(tmp_path)
    assert error.code == "tensor-not-in-index" and "norm.weight" in error.problem
    (tmp_path / "pytorch_model-1.bin").unlink()
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("file-missing", str(tmp_path / "pytorch_model-1.bin"))


def test_specforges_export_and_its_training_checkpoint(tmp_path):
    exported = tensors("midlayer.", embedding=True)
    draft = read_draft(write(tmp_path / "hf", SPECFORGE, safetensors=exported))
    assert (draft.producer, draft.findings) == ("specforge", ()) and "embed_tokens.weight" in draft.tensors
    assert draft.layout_hint(12) == (
        (2, 6, 9),
        "eagle_config.eagle_aux_hidden_state_layer_ids [1, 5, 8], output ids as SpecForge writes them",
    )
    state = {
        "draft_state_dict": tensors("midlayer."),
        "global_step": 3,
        "run_id": "r",
        "strategy": "eagle3",
        "replicated_optimizer_state": {"exp_avg": [torch.zeros(4)], "lr": 1e-3},
    }
    folder = write(tmp_path / "run-step3", None, state=state)
    assert refusal(folder).code == "training-state-without-config"
    (tmp_path / "config.json").write_text(json.dumps(SPECFORGE))
    read = read_draft(folder, config_file=tmp_path / "config.json")
    write(folder, SPECFORGE)
    for other in (read_draft(folder), read_draft(folder / "training_state.pt")):
        assert other.producer == read.producer == "specforge" and other.folder == folder
        assert other.tensors.keys() == read.tensors.keys() == draft.tensors.keys() - {"embed_tokens.weight"}
        assert torch.equal(other.tensors["fc.weight"], draft.tensors["fc.weight"])
    error = refusal(tmp_path)
    assert (error.code, error.found) == ("weights-missing", "training checkpoints run-step3")


def test_pickled_objects_stay_closed(tmp_path):
    marker = tmp_path / "ran"

    class Runs:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    for number, odd in enumerate((argparse.Namespace(lr=1), Runs())):
        state = {"draft_state_dict": tensors("midlayer."), "optimizer": odd}
        folder = write(tmp_path / str(number), SPECFORGE, state=state)
        error = refusal(folder)
        assert (error.code, error.where) == ("file-holds-objects", str(folder / "training_state.pt"))
    assert not marker.exists()
    error = refusal(write(tmp_path / "c", SPECFORGE, state={"global_step": 1}))
    assert (error.code, error.found) == ("training-state-without-draft", "global_step")
    error = refusal(write(tmp_path / "d", SPECFORGE, bin={"fc.weight": torch.zeros(2), "step": 4}))
    assert error.code == "not-a-state-dict" and "step" in error.found


def test_speculators_nested_config(tmp_path):
    draft = read_draft(write(tmp_path, SPECULATORS, safetensors=tensors("layers.0.", embedding=True)))
    assert (draft.producer, draft.findings) == ("speculators", ())
    shape = draft.shape
    assert shape.norm_before_residual and not shape.norm_output and shape.head_norm and not shape.qk_norm
    assert (shape.rms_norm_eps, shape.rope.theta, shape.rope.flavour) == (1e-6, 10000.0, "transformers")
    assert draft.layout_hint(12)[0] == (2, 6, 9)
    older = read_draft(write(tmp_path, SPECULATORS | {"speculators_version": "0.3.0"}))
    assert older.layout_hint(12)[0] == (3, 7, 10)
    silent = {k: v for k, v in SPECULATORS.items() if k != "norm_before_residual"}
    draft = read_draft(write(tmp_path, silent))
    assert not draft.shape.norm_before_residual
    assert [(f.kind, f.severity) for f in draft.findings] == [("norm_before_residual", "warning")]


def test_speculators_flags_and_qwen3_layers(tmp_path):
    extra = {
        "input_norm.weight": (48,),
        "layers.0.self_attn.q_norm.weight": (6,),
        "layers.0.self_attn.k_norm.weight": (6,),
    }
    extra |= layer_tensors("layers.1.", first=False)
    extra |= {"layers.1.self_attn.q_norm.weight": (6,), "layers.1.self_attn.k_norm.weight": (6,)}
    config = qwen3(
        num_hidden_layers=2,
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["full_attention", "sliding_attention"],
    )
    config |= {"norm_before_fc": True, "norm_output": True}
    draft = read_draft(write(tmp_path, config, safetensors=tensors("layers.0.", extra=extra)))
    shape = draft.shape
    assert draft.findings == () and shape.qk_norm and shape.norm_before_fc and shape.norm_output
    assert (shape.num_layers, shape.deeper_norm, shape.windows) == (2, "input_layernorm", (None, 7))
    unused = read_draft(write(tmp_path, config | {"norm_before_fc": False}))
    assert [(f.kind, f.where.split()[-1]) for f in unused.findings] == [("unused tensor", "input_norm.weight")]
    assert refusal(write(tmp_path, config | {"fc_norm": True})).code == "draft-norms-exclude-each-other"


@pytest.mark.parametrize(
    ("config", "code", "found"),
    [
        (
            SPECULATORS | {"speculators_model_type": "dflash"},
            "forward-not-implemented",
            "a speculators file of type dflash",
        ),
        (
            {k: v for k, v in SPECULATORS.items() if k != "transformer_layer_config"},
            "forward-not-implemented",
            "None",
        ),
        (SPECULATORS | {"transformer_layer_config": {"model_type": "gpt_oss"}}, "forward-not-implemented", "'gpt_oss'"),
    ],
)
def test_speculators_files_of_another_kind_are_refused(tmp_path, config, code, found):
    error = refusal(write(tmp_path, config, safetensors=tensors("layers.0.")))
    assert (type(error), error.code, error.found) == (UnreadForward, code, found)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_missing_fields_of_a_layer_config_are_its_classs_defaults(kind):
    declare_torchvision_operators()
    from transformers import LlamaConfig, Qwen3Config

    whole = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind]()
    shape = Eagle3Config.from_dict(SPECULATORS | {"transformer_layer_config": {"model_type": kind}})
    assert (shape.hidden_size, shape.intermediate_size) == (whole.hidden_size, whole.intermediate_size)
    assert (shape.num_heads, shape.num_kv_heads) == (whole.num_attention_heads, whole.num_key_value_heads)
    assert (shape.head_dim, shape.vocab_size, shape.hidden_act) == (whole.head_dim, whole.vocab_size, whole.hidden_act)
    assert (shape.num_layers, shape.rms_norm_eps) == (whole.num_hidden_layers, whole.rms_norm_eps)
    assert shape.rope.max_position_embeddings == whole.max_position_embeddings
    assert shape.rope.theta == whole.rope_parameters["rope_theta"]
    assert (shape.attention_bias, shape.mlp_bias) == (whole.attention_bias, getattr(whole, "mlp_bias", False))
    assert shape.windows == (None,) * whole.num_hidden_layers
    without = {k: v for k, v in SPECULATORS.items() if k != "draft_vocab_size"}
    assert (
        Eagle3Config.from_dict(without | {"transformer_layer_config": {"model_type": kind}}).draft_vocab_size == 32000
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 9},
        {"sliding_window": 9},
        {"layer_types": ["sliding_attention"] * 3, "sliding_window": 9},
        {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 9,
            "use_sliding_window": True,
        },
    ],
)
def test_windows_are_those_of_the_config_class(changes):
    declare_torchvision_operators()
    from transformers import Qwen3Config

    whole = Qwen3Config(num_hidden_layers=3, **changes)
    expected = tuple(whole.sliding_window if kind == "sliding_attention" else None for kind in whole.layer_types)
    assert Eagle3Config.from_dict(qwen3(num_hidden_layers=3, **changes)).windows == expected


def test_modelopt_without_embedding_and_t2d(tmp_path):
    config = SPECFORGE | {
        "attention_bias": True,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "rope_theta": 1e4},
        "num_hidden_layers": 2,
    }
    extra = {f"layers.0.self_attn.{n}_proj.bias": (w,) for n, w in (("q", 24), ("k", 12), ("v", 12), ("o", 16))}
    extra |= {name.replace("layers.0", "layers.1"): shape for name, shape in extra.items()}
    extra |= layer_tensors("layers.1.", first=False)
    draft = read_draft(write(tmp_path, config, safetensors=tensors("layers.0.", maps=["d2t"], extra=extra)))
    assert draft.producer == "modelopt" and draft.shape.attention_bias and draft.shape.output_bias
    assert draft.shape.deeper_norm == "input_layernorm" and draft.shape.rope.flavour == "transformers"
    assert [(f.kind, f.severity) for f in draft.findings] == [("rope", "note"), ("double norm", "note")]
    assert draft.layout_hint(12)[0] == (2, 6, 9)
    served = read_draft(tmp_path, producer="sglang", strict=False)  # which builds no biases for q, k and v
    assert [f.where.split()[-1] for f in served.errors] == ["layers.1.hidden_norm.weight"]  # SGLang leaves it at ones
    unused = {f.where.split()[-1] for f in served.findings if f.kind == "unused tensor"}
    assert {name for name in unused if name.endswith("bias")} == {
        f"layers.{i}.self_attn.{n}_proj.bias" for i in range(2) for n in "qkv"
    }
    assert served.layout_hint(12)[0] is None


def test_full_vocabulary_may_share_the_targets_head(tmp_path):
    whole = tensors("layers.0.", maps=(), vocab=40)
    del whole["lm_head.weight"]
    draft = read_draft(write(tmp_path, SPECFORGE | {"draft_vocab_size": None}, safetensors=whole))
    assert ("missing tensor", "note") in {(f.kind, f.severity) for f in draft.findings}


def test_norms_of_the_slots_under_both_names(tmp_path):
    old = {f"aux_norm_{n}.weight": (16,) for n in ("low", "mid", "high")}
    draft = read_draft(write(tmp_path, SPECFORGE | {"use_aux_norm": True}, safetensors=tensors("midlayer.", extra=old)))
    assert draft.shape.fc_norm and draft.findings == ()
    assert {name for name in draft.tensors if name.startswith("fc_norm")} == {f"fc_norm.{i}.weight" for i in range(3)}
    nested = SPECFORGE | {"eagle_config": SPECFORGE["eagle_config"] | {"norm_before_fc": True}}
    names = tensors("midlayer.", extra={"input_norm.weight": (48,)})
    for config in (nested, SPECFORGE | {"norm_before_fc": True}):
        assert read_draft(write(tmp_path, config, safetensors=names)).shape.norm_before_fc


def test_an_engines_prefix_is_taken_off(tmp_path):
    wrapped = {name if name == "lm_head.weight" else f"model.{name}": t for name, t in tensors("midlayer.").items()}
    draft = read_draft(write(tmp_path, SPECFORGE, safetensors=wrapped))
    assert draft.findings == () and "layers.0.mlp.up_proj.weight" in draft.tensors


def test_a_wider_target_and_four_slots_without_ids(tmp_path):
    config = {k: v for k, v in SPECFORGE.items() if k != "eagle_config"} | {"target_hidden_size": 20}
    whole = tensors("midlayer.") | {"fc.weight": torch.zeros(16, 80)}
    draft = read_draft(write(tmp_path, config, safetensors=whole))
    assert (draft.shape.num_slots, draft.shape.target_hidden_size) == (4, 20)
    assert [f.kind for f in draft.findings] == ["slot count"]
    hint, why = draft.layout_hint(12)
    assert hint is None and "no default for 4 slots" in why


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"draft_vocab_size": 10, "rope_scaling": {"type": "linear", "factor": 4}}, "the whole number 4"),
        ({"draft_vocab_size": 10, "rope_parameters": {"rope_type": "linear", "factor": 4}}, "the whole number 4"),
        ({"vocab_size": 10}, "draft_vocab_size is not in the config"),
    ],
)
def test_what_sglang_does_not_load(tmp_path, changes, evidence):
    """As seen on its CPU server: "'int' object is not iterable", "no attribute 'draft_vocab_size'"."""
    config = {k: v for k, v in SPECFORGE.items() if k != "draft_vocab_size"} | changes
    write(tmp_path, config, safetensors=tensors("midlayer.", maps=()) | {"d2t": torch.zeros(10, dtype=torch.int64)})
    (error,) = read_draft(tmp_path, producer="sglang", strict=False).errors
    assert error.kind == "not loaded" and evidence in error.evidence
    assert read_draft(tmp_path, producer="specforge").errors == ()
    loaded = {"draft_vocab_size": None if "vocab_size" in changes else 10}
    loaded |= {name: value | {"factor": 4.0} for name, value in changes.items() if isinstance(value, dict)}
    write(tmp_path, config | loaded)
    assert read_draft(tmp_path, producer="sglang").errors == ()
