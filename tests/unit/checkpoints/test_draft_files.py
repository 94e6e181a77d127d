"""Flat draft checkpoints: every tensor is accounted for, each fault named with its file, tensor and both sides."""

import json

import pytest
import torch
from safetensors.torch import save_file
from test_draft_producers import SPECFORGE as CONFIG
from test_draft_producers import refusal
from test_draft_producers import tensors as made_tensors

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.vocabulary_map import check_vocabulary_map
from wiring.errors import UnreadForward, WiringError


def write_draft(folder, config=CONFIG, change=lambda tensors: None, shards=False):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: t.bfloat16() if t.is_floating_point() else t for name, t in made_tensors("midlayer.").items()}
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
    assert draft.producer == "specforge" and draft.findings == ()
    assert len(draft.tensors) == len(written)
    for name, tensor in written.items():
        read = draft.tensors[name.replace("midlayer.", "layers.0.")]
        assert torch.equal(read, tensor) and read.dtype == tensor.dtype


def test_a_copy_of_the_embedding_and_a_missing_t2d_are_fine(tmp_path):
    def change(tensors):
        tensors["embed_tokens.weight"] = torch.zeros(40, 16)
        del tensors["t2d"]

    write_draft(tmp_path, change=change)
    assert "embed_tokens.weight" in read_draft(tmp_path).tensors


def set_to(name, value):
    return lambda tensors: tensors.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "kind", "where", "evidence"),
    [
        (lambda t: t.pop("midlayer.mlp.up_proj.weight"), "missing tensor", "midlayer.mlp.up_proj.weight", "[24, 16]"),
        (lambda t: (t.pop("d2t"), t.pop("t2d")), "missing tensor", "d2t", "[10]"),
        (
            set_to("fc.weight", torch.zeros(16, 50)),
            "wrong shape",
            "fc.weight",
            "[16, 48] by the config, found [16, 50]",
        ),
        (
            set_to("lm_head.weight", torch.zeros(40, 16)),
            "wrong shape",
            "lm_head.weight",
            "[10, 16] by the config, found",
        ),
        (set_to("norm.weight", torch.full((16,), float("nan"))), "not finite", "norm.weight", "NaN"),
        (set_to("fc.weight", torch.zeros(16, 48, dtype=torch.float8_e4m3fn)), "number format", "fc.weight", "float8"),
        (set_to("midlayer.self_attn.q_norm.weight", torch.ones(6)), "unused tensor", "q_norm.weight", "[6]"),
        (set_to("layers.0.mlp.up_proj.weight", torch.zeros(24, 16)), "held twice", "up_proj.weight", "layers.0.mlp"),
        (set_to("d2t", torch.arange(10) * 4 + 1), "vocabulary map", "d2t", "target ids, not offsets"),
        (set_to("d2t", torch.arange(10) * 4 - 9), "vocabulary map", "d2t", "2 draft ids reach outside"),
        (set_to("d2t", torch.full((10,), 0.5)), "vocabulary map", "d2t", "fractions"),
        (set_to("t2d", torch.zeros(40, dtype=torch.bool)), "vocabulary map", "d2t", "10 target ids"),
        (
            lambda t: (t.pop("d2t"), t.update(t2d=torch.ones(40, dtype=torch.bool))),
            "vocabulary map",
            "t2d",
            "40 target ids, draft_vocab_size is 10",
        ),
    ],
)
def test_a_fault_in_the_tensors_is_an_error_finding(tmp_path, change, kind, where, evidence):
    write_draft(tmp_path, change=change)
    (error,) = read_draft(tmp_path, strict=False).errors
    assert (error.kind, error.where.startswith(str(tmp_path)), error.where.endswith(where)) == (kind, True, True)
    assert evidence in error.evidence
    with pytest.raises(WiringError) as refused:
        read_draft(tmp_path)
    assert (refused.value.code, refused.value.where) == ("draft-does-not-fit-config", error.where)
    assert error.evidence in refused.value.problem


def test_a_refusal_lists_three_faults_and_counts_the_rest(tmp_path):
    def change(tensors):
        for name in ("up_proj", "gate_proj", "down_proj"):
            del tensors[f"midlayer.mlp.{name}.weight"]
        tensors["norm.weight"] = torch.zeros(3)
        tensors["lm_head.weight"] = torch.zeros(3)

    write_draft(tmp_path, change=change)
    with pytest.raises(WiringError) as refused:
        read_draft(tmp_path)
    assert refused.value.problem.count("found nothing") == 3 and refused.value.problem.endswith("; and 2 more")


@pytest.mark.parametrize(
    ("d2t", "t2d", "severity", "place"),
    [  # three draft ids that reach the target ids 1, 4 and 5 of 9
        ([1, 3, 3], [1, 4, 5], None, ""),
        ([1, 3, 3], None, None, ""),
        (None, [1, 4, 5], None, ""),
        (None, [1, 4], "error", "t2d"),
        ([1, 3, 3], [1, 4], "error", "d2t"),
        ([1, 3, 3], [2, 5, 6], "error", "d2t"),
        ([1, 4, 5], [1, 4, 5], "error", "d2t"),  # target ids, not offsets
        ([0, 1, 2], None, "warning", "d2t"),  # a placeholder, but it reaches 0, 2 and 4
        ([0, 0, 0], None, "warning", "d2t"),
        ([0, 0, 0], [1, 4, 5], "error", "d2t"),
        ([4, 0, 3], None, "warning", "d2t"),  # reaches 4, 1 and 5
        ([1, 0, 3], None, "error", "d2t"),  # reaches 1 twice
        ([1, 3, 7], None, "error", "d2t"),  # reaches 9
        ([-1, 3, 3], None, "error", "d2t"),
        ([1, 3], None, "error", "d2t"),
    ],
)
def test_maps_that_cannot_be_applied_are_errors_and_maps_that_no_trainer_writes_are_warnings(d2t, t2d, severity, place):
    offsets = None if d2t is None else torch.tensor(d2t)
    marks = None if t2d is None else torch.zeros(9, dtype=torch.bool).index_fill(0, torch.tensor(t2d), True)
    found = check_vocabulary_map(offsets, marks, 3, 9)
    assert [(finding.severity, finding.where) for finding in found] == ([(severity, place)] if severity else [])


def test_a_leftover_tensor_is_named_and_kept(tmp_path):
    write_draft(tmp_path, change=set_to("mask_hidden", torch.zeros(16)))
    draft = read_draft(tmp_path)
    (finding,) = draft.findings
    assert (finding.kind, finding.severity) == ("unused tensor", "warning")
    assert finding.where.endswith("model.safetensors: tensor mask_hidden") and "[16]" in finding.evidence


def test_the_width_of_fc_decides_the_slots(tmp_path):
    write_draft(tmp_path, change=set_to("fc.weight", torch.zeros(16, 64)))
    draft = read_draft(tmp_path)
    assert draft.shape.num_slots == 4
    (finding,) = draft.findings
    assert (finding.kind, finding.severity) == ("slot count", "warning")
    assert finding.evidence == "fc takes 4 states of width 16, the config names 3"
    assert draft.layout_hint(12) == (
        None,
        "eagle_config.eagle_aux_hidden_state_layer_ids names 3 layers, fc takes 4 states",
    )


def test_one_vocabulary_map_is_enough(tmp_path):
    written = write_draft(tmp_path / "a", change=lambda t: t.pop("d2t"))
    draft = read_draft(tmp_path / "a")
    assert (torch.arange(10) + draft.tensors["d2t"]).tolist() == written["t2d"].nonzero().flatten().tolist()
    assert [finding.severity for finding in draft.findings] == ["note"]
    written = write_draft(tmp_path / "b", change=lambda t: t.update(d2t=t["d2t"].int(), t2d=t["t2d"].to(torch.uint8)))
    read = read_draft(tmp_path / "b").tensors
    assert (read["d2t"].dtype, read["t2d"].dtype) == (torch.int64, torch.bool)


@pytest.mark.parametrize(
    ("field", "value", "code", "found"),
    [
        ("hidden_size", None, "config-field-missing", ""),
        ("intermediate_size", -3, "config-field-invalid", "-3"),
        ("hidden_size", "64", "config-field-invalid", "'64'"),
        ("num_attention_heads", True, "config-field-invalid", "True"),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, "2"]}, "config-field-invalid", "'2'"),
        ("eagle_config", "on", "config-field-invalid", "'on'"),
        ("num_key_value_heads", 3, "draft-heads-do-not-divide", "4 heads, 3 key-value heads, head_dim 6"),
        ("draft_vocab_size", 41, "draft-vocabulary-too-large", "41"),
        ("rope_scaling", {"type": "longrope", "factor": 40}, "forward-not-implemented", "RoPE scaling = longrope"),
        ("rope_scaling", {"type": "linear"}, "rope-factor-missing", "none"),
        ("rope_scaling", {"type": "linear", "factor": -1}, "config-field-invalid", "-1"),
        ("rope_scaling", {"type": "linear", "factor": float("nan")}, "config-field-invalid", "nan"),
        ("partial_rotary_factor", 0.5, "forward-not-implemented", "partial_rotary_factor = 0.5"),
        ("hidden_act", "mish", "forward-not-implemented", "hidden_act = mish"),
        ("kv_lora_rank", 512, "forward-not-implemented", "multi-head latent attention (kv_lora_rank)"),
        ("architectures", ["Eagle3DeepseekV2ForCausalLM"], "forward-not-implemented", None),
        ("quantization_config", {"quant_method": "fp8"}, "forward-not-implemented", "quantized weights"),
        ("eagle_config", {"use_aux_hidden_state": False}, "forward-not-implemented", None),
        ("eagle_config", {"parallel_draft_step": 4}, "forward-not-implemented", "parallel draft steps"),
    ],
)
def test_a_config_that_asks_for_another_draft_is_refused(tmp_path, field, value, code, found):
    write_draft(tmp_path, CONFIG | {field: value})
    for strict in (True, False):
        with pytest.raises(WiringError) as refused:
            read_draft(tmp_path, strict=strict)
        assert (refused.value.code, refused.value.where) == (code, str(tmp_path / "config.json"))
        assert found is None or refused.value.found == found
    implemented = code.endswith("not-implemented")
    assert isinstance(refused.value, UnreadForward) == implemented


@pytest.mark.parametrize(
    ("producer", "meaning", "flag", "expected"),
    [  # head_norm, norm_output
        ("specforge", "", None, (True, False)),
        ("specforge", "", True, (True, False)),
        ("specforge", "", False, (False, False)),
        ("sglang", "", None, (True, False)),
        ("sglang", "", True, (True, True)),
        ("specforge", "feedback", True, (True, True)),
        ("specforge", "feedback", False, (True, False)),
        ("sglang", "head", False, (False, False)),
    ],
)
def test_norm_output_means_what_its_reader_means(producer, meaning, flag, expected):
    config = CONFIG | ({} if flag is None else {"norm_output": flag})
    shape = Eagle3Config.from_dict(config, producer=producer, norm_output=meaning)
    assert (shape.head_norm, shape.norm_output) == expected
    assert ("norm.weight" in shape.required_shapes()) == any(expected)


def test_what_readers_take_differently_is_a_warning(tmp_path):
    changes = {
        "norm_output": True,
        "norm_before_residual": True,
        "rope_theta": 5.0,
        "attention_bias": True,
        "rope_parameters": {"rope_theta": 6.0, "rope_type": "default"},
    }
    write_draft(tmp_path, CONFIG | changes)
    draft = read_draft(tmp_path)
    assert {(f.kind, f.severity) for f in draft.findings} == {
        ("norm_output", "warning"),
        ("norm_before_residual", "warning"),
        ("rope", "warning"),
        ("bias", "note"),
    }
    assert draft.shape.rope.theta == 6.0 and not draft.shape.norm_before_residual and not draft.shape.attention_bias
    assert "norm_output" not in {f.kind for f in read_draft(tmp_path, norm_output="head").findings}
    for option, code in (("producer", "producer-unknown"), ("norm_output", "norm-output-meaning-unknown")):
        with pytest.raises(WiringError) as refused:
            read_draft(tmp_path, **{option: "another"})
        assert (refused.value.code, refused.value.found) == (code, "another")


def test_defaults_and_spellings_of_the_config():
    bare = {k: CONFIG[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")}
    shape = Eagle3Config.from_dict(bare)
    assert (shape.num_kv_heads, shape.head_dim, shape.draft_vocab_size, shape.num_slots) == (4, 4, 40, 3)
    assert (shape.rope.theta, shape.target_hidden_size, shape.has_vocab_map) == (10000.0, 16, False)
    new_spelling = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert Eagle3Config.from_dict(bare | new_spelling).rope.theta == 5e5
    old = {"rope_theta": 7e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = Eagle3Config.from_dict(bare | new_spelling | old).rope  # transformers lets rope_scaling replace the other
    assert (rope.type, rope.theta, rope.factor, rope.flavour) == ("linear", 7e5, 2.0, "specforge")
    assert Eagle3Config.from_dict(bare | {"rope_theta": 1e6, "rope_scaling": None}).rope.theta == 1e6
    four = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3]}}
    assert Eagle3Config.from_dict(bare | four).num_slots == 4
    assert Eagle3Config.from_dict(bare | four | {"num_aux_hidden_states": 2}).num_slots == 2


def test_files_that_are_missing_or_damaged(tmp_path):
    assert refusal(tmp_path).code == "json-missing"
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    error = refusal(tmp_path)
    assert error.code == "weights-missing" and {"model.safetensors", "training_state.pt"} <= {
        *error.expected.split(", ")
    }
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("file-damaged", str(tmp_path / "pytorch_model.bin"))
    (tmp_path / "pytorch_model.bin").unlink()
    write_draft(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("file-damaged", str(tmp_path / "model.safetensors"))


def test_index_and_shards_that_disagree(tmp_path):
    write_draft(tmp_path, shards=True)
    (tmp_path / "model-2.safetensors").rename(tmp_path / "elsewhere")
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("file-missing", str(tmp_path / "model-2.safetensors"))
    write_draft(tmp_path, shards=True)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["norm.weight"] = "model-1.safetensors"
    for code, shard in (("tensor-not-in-shard", "model-1.safetensors"), ("tensor-not-in-index", "model-2.safetensors")):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        error = refusal(tmp_path)
        assert (error.code, error.where) == (code, str(tmp_path / shard)) and "norm.weight" in error.problem
        index["weight_map"].pop("norm.weight", None)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"eagle_config": ' + "9" * 5000 + "}"])
def test_json_that_python_cannot_read_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("json-unreadable", str(tmp_path / "config.json"))
