"""Drafts that SGLang does not load, or loads as another model: by config, tensor names and shapes.

What transformers 5 and SGLang 0.5.23 do with each was tested with AutoConfig, or read in `llama_eagle3.py`, `llama.py`.
"""

from dataclasses import replace

import pytest
import torch
from lint_pairs import IDS, draft, ids, target
from test_lint_plants import DEFAULT, LATER, WIDTH, assert_only, phases, reported, run

from wiring.checkpoints.draft_files import read_draft
from wiring.errors import WiringError


@pytest.mark.parametrize(
    ("config", "under", "engine"),
    [
        ({"eagle_config": {"eagle_config": {IDS: [0, 3, 31]}}}, f"eagle_config.eagle_config.{IDS}", "sglang==0.5.23"),
        (
            {"eagle_config": {}, "aux_hidden_state_layer_ids": [0, 3, 31]},
            "aux_hidden_state_layer_ids",
            "sglang==0.5.23",
        ),
        ({"eagle_config": {"layer_ids": [0, 3, 31]}}, "eagle_config.layer_ids", "sglang==0.5.23"),
        ({"eagle_config": {"layer_ids": [0, 3, 31]}}, "eagle_config.layer_ids", "vllm"),
    ],
)
def test_ids_at_a_place_that_no_engine_reads(tmp_path, config, under, engine):
    result = run(draft(tmp_path / "d", config), engine=engine, trained=None)
    assert phases(result) == (DEFAULT,) * 3 and result.trained.layout is None and under in result.trained.why
    (finding,) = result.findings
    assert (finding.kind, finding.severity) == (1, "warning")
    assert "[0, 3, 31]" in finding.evidence and under in finding.evidence
    hint, why = read_draft(tmp_path / "d").layout_hint(61)  # used by `wiring accuracy`
    assert hint is None and under in why


@pytest.mark.parametrize("config", [{"eagle_config": None}, {"eagle_config": {}}, {"eagle_config": {IDS: None}}])
def test_a_config_without_ids_gives_an_assumption(tmp_path, config):
    folder = draft(tmp_path / "d", config)
    result = run(folder, trained=None)
    assert phases(result) == (DEFAULT,) * 3 and result.trained.layout == DEFAULT
    assert reported(result) == {(0, "note")} and "--trained" in result.findings[0].remedy
    assert run(folder, trained=DEFAULT).findings == ()  # given, so nothing is assumed


@pytest.mark.parametrize(
    ("layer_ids", "why"),
    [
        ((-2, 2, 30), ("(-1, 3, 31)", "boundary -1")),
        ((3, 31, 61), ("(4, 32, 62)", "boundary 62")),
        ((), (f"eagle_config.{IDS}", "empty list")),
    ],
)
def test_ids_that_name_no_boundary(tmp_path, layer_ids, why):
    result = run(draft(tmp_path / "d", ids(*layer_ids)), trained=None)
    assert all(part in result.trained.why for part in why)
    assert (result.trained.layout is None) == bool(layer_ids)
    assert_only(result, 3)


def test_a_note_on_how_ids_are_read_names_no_fault(tmp_path):
    result = run(draft(tmp_path / "d", ids(3, 31, 59)))
    assert {f.kind for f in result.findings if f.severity == "note"} == {0}


def test_a_flat_fc_is_not_a_matrix(tmp_path):
    result = run(draft(tmp_path / "d", edit=lambda t: t.update({"fc.weight": t["fc.weight"].flatten()})))
    assert_only(result, 3)
    assert len(result.findings) == 1 and f"[{WIDTH * 3 * WIDTH}]" in result.findings[0].evidence


@pytest.mark.parametrize(
    ("config", "drop", "values"),
    [
        ({}, ("num_hidden_layers",), ("32", "31")),
        ({"num_hidden_layers": None}, (), ("null",)),
        ({"num_hidden_layers": 2}, (), ("2", "1")),
    ],
)
def test_a_number_of_layers_is_one_finding(tmp_path, config, drop, values):
    result = run(draft(tmp_path / "d", config, drop=drop))
    assert_only(result, 10)
    (finding,) = result.findings
    assert all(value in finding.evidence for value in values) and "num_hidden_layers 1" in finding.remedy
    bare = run(draft(tmp_path / "e", config, drop=drop, weights=False))  # without tensors only a missing number is seen
    assert len(bare.findings) == (0 if config.get("num_hidden_layers") else 1)


# AutoConfig of transformers 5 and SGLang 0.5.23 do not start with any of these.
@pytest.mark.parametrize(
    ("config", "drop", "kind", "field", "value"),
    [
        ({}, ("architectures",), 7, "architectures", ""),
        ({"architectures": []}, (), 7, "architectures", ""),
        ({}, ("model_type",), 7, "model_type", ""),
        ({"rms_norm_eps": 1}, (), 10, "rms_norm_eps", "1"),
        ({"rms_norm_eps": None}, (), 10, "rms_norm_eps", "null"),
        ({"torch_dtype": 5}, (), 11, "torch_dtype", "5"),
        ({"torch_dtype": "int4"}, (), 11, "torch_dtype", "'int4'"),
        ({"dtype": "torch.bfloat16"}, (), 11, "dtype", "'torch.bfloat16'"),
    ],
)
def test_a_config_with_which_sglang_does_not_start(tmp_path, config, drop, kind, field, value):
    result = run(draft(tmp_path / "d", config, drop=drop))
    assert_only(result, kind)
    (finding,) = result.findings
    assert finding.where.endswith(f"config.json: {field}") and value in finding.evidence
    bare = run(draft(tmp_path / "e", config, drop=drop, weights=False)).findings
    assert bare == (replace(finding, where=finding.where.replace("/d/", "/e/")),)


@pytest.mark.parametrize("eps", ["1e-6", float("nan"), float("inf")])
def test_an_epsilon_that_is_not_a_number_is_refused(tmp_path, eps):
    with pytest.raises(WiringError) as error:
        run(draft(tmp_path / "d", {"rms_norm_eps": eps}))
    assert error.value.found == repr(eps)


def behind(prefix):
    return lambda t: [t.update({prefix + name: t.pop(name)}) for name in list(t)]


def test_names_that_sglang_does_not_look_for(tmp_path):
    """`load_weights` looks a name up as it is and behind `model.`, which finds everything but the head."""
    result = run(draft(tmp_path / "d", edit=behind("model.")))
    assert_only(result, 9)
    (finding,) = result.findings
    assert "model.lm_head.weight" in finding.evidence and " lm_head.weight" in finding.evidence
    unused = draft(tmp_path / "u", edit=lambda t: t.update({"x.embed_tokens.weight": torch.zeros(4, 4)}))
    assert run(unused).errors == ()  # the target's would replace it
    later = draft(tmp_path / "v", ids(*LATER), edit=behind("model."))
    assert run(later, engine="vllm", trained=LATER).findings == ()
    wrapped = run(draft(tmp_path / "e", edit=behind("draft_model.")))
    assert_only(wrapped, 10)
    (finding,) = wrapped.findings
    assert "d2t" not in finding.evidence and "draft_model.fc.weight" in finding.evidence


@pytest.mark.parametrize(("change", "severity"), [(0, "warning"), (1, "error")])
def test_one_layer_under_two_names(tmp_path, change, severity):
    def both(tensors):
        tensors |= {n.replace("midlayer", "layers.0"): t + change for n, t in tensors.items() if "midlayer" in n}

    (finding,) = run(draft(tmp_path / "d", edit=both)).findings
    assert (finding.kind, finding.severity) == (10, severity) and "10 tensors" in finding.evidence
    assert "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight" in finding.evidence
    assert "last, midlayer.hidden_norm.weight" in finding.evidence  # read in the order of names


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (("midlayer.self_attn.q_proj.bias",), "No flag"),
        (("midlayer.mlp.up_proj.bias",), "No flag"),
        (("fc.bias",), "o_proj.bias too"),
        (("fc.bias", "midlayer.self_attn.o_proj.bias"), "Write bias true"),
        (("midlayer.self_attn.o_proj.bias",), "Write attention_bias true"),
        (("input_norm.weight",), "Write norm_before_fc true"),
        (("aux_norm_low.weight",), "Write fc_norm true"),
    ],
)
def test_the_remedy_names_a_flag_only_where_sglang_has_one(tmp_path, names, remedy):
    result = run(draft(tmp_path / "d", edit=lambda t: t.update({name: torch.ones(WIDTH) for name in names})))
    assert_only(result, 10)
    (finding,) = [finding for finding in result.findings if finding.where.endswith(names[0])]
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("config", "drop", "said"),
    [
        ({}, ("draft_vocab_size",), "is not in the config"),
        ({"draft_vocab_size": None}, (), "is null"),
        ({"draft_vocab_size": 100}, (), "is 100"),
    ],
)
def test_a_draft_vocabulary_that_head_and_map_contradict_is_one_finding(tmp_path, config, drop, said):
    result = run(draft(tmp_path / "d", config, drop=drop))
    assert_only(result, 9)
    (finding,) = result.findings
    assert f"draft_vocab_size {said}" in finding.evidence and "d2t, lm_head.weight" in finding.evidence
    assert "draft_vocab_size 88" in finding.remedy


def test_a_missing_draft_vocabulary_is_reported_without_weights(tmp_path):
    result = run(draft(tmp_path / "d", drop=("draft_vocab_size",), weights=False))
    assert_only(result, 9)
    assert result.findings[0].where.endswith(": draft_vocab_size")
    latent = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 32}  # its class does not need it
    assert run(draft(tmp_path / "e", latent, drop=("draft_vocab_size",), weights=False)).errors == ()


def test_tensorrt_llm_cannot_capture_the_embedding(tmp_path):
    result = run(draft(tmp_path / "d"), engine="tensorrt-llm")
    assert_only(result, 1)
    assert all("embedding" in finding.remedy for finding in result.findings if finding.kind == 1)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_weights_that_are_a_broken_link(tmp_path, name):
    folder = draft(tmp_path / "d", weights=False)
    (folder / name).symlink_to("../../blobs/0123abc")
    for read in (run, read_draft):
        with pytest.raises(WiringError) as error:
            read(folder)
        assert error.value.where.endswith(name) and "blobs/0123abc" in str(error.value)


def test_a_target_without_its_weights_is_read_by_its_config(tmp_path):
    folder = target(tmp_path / "t", weights=False)
    (folder / "model.safetensors").symlink_to("gone")
    result = run(draft(tmp_path / "d"), of=folder)
    assert phases(result) == phases(run(draft(tmp_path / "e")))
    assert {gap.check for gap in result.not_checked} >= {"embedding", "head"}


def test_an_unknown_prefix(tmp_path):
    names = ("layers.0.hidden_norm.weight", "norm.weight")

    def prefixed(tensors):
        for name in ("norm.weight", "midlayer.hidden_norm.weight"):
            tensors[f"draft.{name}"] = tensors.pop(name)

    result = run(draft(tmp_path / "d", edit=prefixed))
    assert_only(result, 10)
    found = [finding for finding in result.findings if "draft." in finding.where]
    assert len(found) == 2 and all(f" {name}," in f.evidence for name, f in zip(names, found, strict=True))
    assert all("prefix" in finding.remedy for finding in found)
