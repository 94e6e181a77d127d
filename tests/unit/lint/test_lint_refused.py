"""Drafts that a newcomer may bring and that no server takes, or takes for another: by config, names and shapes.

What transformers 5 and SGLang 0.5.23 do with each was tried with AutoConfig, or read in `llama_eagle3.py`, `llama.py`.
"""

import re

import pytest
import torch
from lint_pairs import IDS, draft, ids, target
from test_lint_plants import DEFAULT, LATER, WIDTH, assert_only, phases, run, told

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
def test_ids_at_a_place_that_nobody_reads(tmp_path, config, under, engine):
    result = run(draft(tmp_path / "d", config), engine=engine, trained=None)
    assert phases(result) == (DEFAULT,) * 3 and result.trained.layout is None and under in result.trained.why
    (finding,) = result.findings
    assert (finding.kind, finding.severity) == (1, "warning")
    assert f"ids [0, 3, 31] stand under {under}, which" in finding.evidence and "default layers" in finding.evidence
    hint, why = read_draft(tmp_path / "d").layout_hint(61)  # what `wiring accuracy` goes by
    assert hint is None and f"stand under {under}" in why


@pytest.mark.parametrize("config", [{"eagle_config": None}, {"eagle_config": {}}, {"eagle_config": {IDS: None}}])
def test_a_config_without_ids_is_told_to_be_an_assumption(tmp_path, config):
    folder = draft(tmp_path / "d", config)
    result = run(folder, trained=None)
    assert phases(result) == (DEFAULT,) * 3 and result.trained.layout == DEFAULT
    assert told(result) == {(0, "note")}
    assert "is an assumption" in result.findings[0].evidence and "--trained" in result.findings[0].remedy
    assert run(folder, trained=DEFAULT).findings == ()  # said, so nothing is assumed


@pytest.mark.parametrize(
    ("layer_ids", "meant", "none"),
    [
        ((-2, 2, 30), (-1, 3, 31), -1),
        ((3, 31, 61), (4, 32, 62), 62),
    ],
)
def test_boundaries_that_do_not_exist_are_not_called_trained(tmp_path, layer_ids, meant, none):
    result = run(draft(tmp_path / "d", ids(*layer_ids)), trained=None)
    assert result.trained.layout is None
    assert f"would be boundaries {meant}" in result.trained.why and f"no boundary {none}" in result.trained.why
    assert_only(result, 3)


def test_an_empty_list_of_ids_is_not_called_missing(tmp_path):
    result = run(draft(tmp_path / "d", ids()), trained=None)
    assert f"eagle_config.{IDS} is an empty list" in result.trained.why
    assert_only(result, 3)


def test_a_note_on_how_ids_are_read_names_no_fault(tmp_path):
    result = run(draft(tmp_path / "d", ids(3, 31, 59)))
    assert {f.kind for f in result.findings if f.severity == "note"} == {0}


def test_a_flat_fc_is_no_matrix(tmp_path):
    result = run(draft(tmp_path / "d", edit=lambda t: t.update({"fc.weight": t["fc.weight"].flatten()})))
    assert_only(result, 3)
    assert len(result.findings) == 1 and f"[{WIDTH * 3 * WIDTH}]" in result.findings[0].evidence


@pytest.mark.parametrize(
    ("config", "drop", "words", "remedy"),
    [
        (
            {},
            ("num_hidden_layers",),
            "transformers fills in 32, .* and 31 of them are never loaded",
            "num_hidden_layers 1",
        ),
        ({"num_hidden_layers": None}, (), "is null, which transformers refuses", "num_hidden_layers 1"),
        ({"num_hidden_layers": 2}, (), "is 2, the file holds 1: the rest", "num_hidden_layers 1; or export"),
    ],
)
def test_a_number_of_layers_is_one_finding(tmp_path, config, drop, words, remedy):
    result = run(draft(tmp_path / "d", config, drop=drop))
    assert_only(result, 10)
    (finding,) = result.findings
    assert re.search(words, finding.evidence) and remedy in finding.remedy
    bare = run(draft(tmp_path / "e", config, drop=drop, weights=False))  # without tensors, what the config lacks alone
    assert len(bare.findings) == (0 if config.get("num_hidden_layers") else 1)


# As AutoConfig of transformers 5 and SGLang 0.5.23 answer to them: each ends the start.
@pytest.mark.parametrize(
    ("config", "drop", "kind", "words"),
    [
        ({}, ("architectures",), 7, "names no architecture"),
        ({"architectures": []}, (), 7, "names no architecture"),
        ({}, ("model_type",), 7, "names no model_type"),
        ({"rms_norm_eps": 1}, (), 10, "rms_norm_eps is 1,"),
        ({"rms_norm_eps": None}, (), 10, "rms_norm_eps is null"),
        ({"torch_dtype": 5}, (), 11, "torch_dtype is 5,"),
        ({"torch_dtype": "int4"}, (), 11, "torch_dtype is 'int4'"),
        ({"dtype": "torch.bfloat16"}, (), 11, "dtype is 'torch.bfloat16'"),
    ],
)
def test_a_config_with_which_sglang_stops_at_its_start(tmp_path, config, drop, kind, words):
    result = run(draft(tmp_path / "d", config, drop=drop))
    assert_only(result, kind)
    (finding,) = result.findings
    assert words in finding.evidence and "SGLang stops at its start" in finding.evidence
    assert run(draft(tmp_path / "e", config, drop=drop, weights=False)).findings == (
        finding.__class__(
            finding.kind, finding.severity, finding.where.replace("/d/", "/e/"), finding.evidence, finding.remedy
        ),
    )


@pytest.mark.parametrize("eps", ["1e-6", float("nan"), float("inf")])
def test_an_epsilon_that_is_no_number_is_refused(tmp_path, eps):
    with pytest.raises(WiringError, match="rms_norm_eps cannot be read"):
        run(draft(tmp_path / "d", {"rms_norm_eps": eps}))


def test_names_that_sglang_does_not_look_for(tmp_path):
    """`load_weights` looks a name up as it is and behind `model.`: there lies everything but the head."""

    def behind(prefix):
        return lambda t: [t.update({prefix + name: t.pop(name)}) for name in list(t)]

    folder = draft(tmp_path / "d", edit=behind("model."))
    result = run(folder)
    assert_only(result, 9)
    (finding,) = result.findings
    assert "drops model.lm_head.weight" in finding.evidence and "looks for lm_head.weight" in finding.evidence
    unused = draft(tmp_path / "u", edit=lambda t: t.update({"x.embed_tokens.weight": torch.zeros(4, 4)}))
    assert not [found for found in run(unused).errors if "drops" in found.evidence]  # the target's would overwrite it
    later = draft(tmp_path / "v", ids(*LATER), edit=behind("model."))
    assert run(later, engine="vllm", trained=LATER).findings == ()
    wrapped = run(draft(tmp_path / "e", edit=behind("draft_model.")))
    assert_only(wrapped, 10)
    assert len(wrapped.findings) == 1 and "d2t" not in wrapped.findings[0].evidence
    assert "draft_model.fc.weight" in wrapped.findings[0].evidence


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        (0, "warning", "are the same"),
        (1, "error", "10 of them differ"),
    ],
)
def test_one_layer_under_two_names(tmp_path, change, severity, words):
    def both(tensors):
        old = {n.replace("midlayer", "layers.0"): t + change for n, t in tensors.items() if "midlayer" in n}
        tensors |= old

    (finding,) = run(draft(tmp_path / "d", edit=both)).findings
    assert (finding.kind, finding.severity) == (10, severity)
    assert "10 tensors" in finding.evidence and words in finding.evidence
    assert "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight" in finding.evidence
    assert "midlayer.hidden_norm.weight, wins" in finding.evidence  # read in the order of names


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (("midlayer.self_attn.q_proj.bias",), "No flag makes SGLang read it:"),
        (("midlayer.mlp.up_proj.bias",), "No flag makes SGLang read it:"),
        (("fc.bias",), "an o_proj.bias too, which the file lacks"),
        (("fc.bias", "midlayer.self_attn.o_proj.bias"), "Write bias true into the config"),
        (("midlayer.self_attn.o_proj.bias",), "Write attention_bias true into the config"),
        (("input_norm.weight",), "Write norm_before_fc true into the config"),
        (("aux_norm_low.weight",), "Write fc_norm true into the config"),
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
        ({}, ("draft_vocab_size",), "is not in the config, so that SGLang stops at its start"),
        ({"draft_vocab_size": None}, (), "is null"),
        ({"draft_vocab_size": 100}, (), "is 100"),
    ],
)
def test_a_draft_vocabulary_that_head_and_map_contradict_is_one_finding(tmp_path, config, drop, said):
    result = run(draft(tmp_path / "d", config, drop=drop))
    assert_only(result, 9)
    (finding,) = result.findings
    assert finding.evidence.startswith(f"draft_vocab_size {said}") and "d2t, lm_head.weight" in finding.evidence
    assert finding.remedy.startswith("Write draft_vocab_size 88")


def test_without_weights_a_missing_draft_vocabulary_is_told_too(tmp_path):
    result = run(draft(tmp_path / "d", drop=("draft_vocab_size",), weights=False))
    assert_only(result, 9)
    assert "draft_vocab_size is not in the config" in result.findings[0].evidence
    latent = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 32}  # whose class does without
    assert run(draft(tmp_path / "e", latent, drop=("draft_vocab_size",), weights=False)).errors == ()


def test_tensorrt_llm_cannot_capture_the_embedding(tmp_path):
    result = run(draft(tmp_path / "d"), engine="tensorrt-llm")
    assert_only(result, 1)
    assert all("embedding" in finding.remedy for finding in result.findings if finding.kind == 1)
    assert "id -1 is the state after the final norm" in result.errors[0].remedy


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_weights_that_are_a_broken_link(tmp_path, name):
    folder = draft(tmp_path / "d", weights=False)
    (folder / name).symlink_to("../../blobs/0123abc")
    with pytest.raises(WiringError, match=f"{name}: the weights are a broken link .*blobs/0123abc"):
        run(folder)
    with pytest.raises(WiringError, match="broken link"):
        read_draft(folder)


def test_a_target_whose_weights_are_gone_is_read_by_its_config(tmp_path):
    folder = target(tmp_path / "t", weights=False)
    (folder / "model.safetensors").symlink_to("gone")
    result = run(draft(tmp_path / "d"), of=folder)
    assert phases(result) == phases(run(draft(tmp_path / "e")))
    assert any("holds no safetensors" in gap.why for gap in result.not_checked)


def test_a_prefix_that_nobody_knows(tmp_path):
    def behind(tensors):
        for name in ("norm.weight", "midlayer.hidden_norm.weight"):
            tensors[f"draft.{name}"] = tensors.pop(name)

    result = run(draft(tmp_path / "d", edit=behind))
    assert_only(result, 10)
    named = [finding for finding in result.findings if "draft." in finding.where]
    assert [finding.evidence.partition(": it ")[2] for finding in named] == [
        "looks for layers.0.hidden_norm.weight, which the file does not have",
        "looks for norm.weight, which the file does not have",
    ] and all("prefix" in finding.remedy for finding in named)
