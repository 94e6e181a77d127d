"""Healthy drafts of each producer have no finding; on an engine that reads them differently they have the expected one.

Targets are config files of several families. Layouts are derived by hand: SpecForge and Model Optimizer write output
ids (boundary = id + 1), SafeAILab and speculators input ids; the default is (2, L // 2, L - 3).
"""

import json

import pytest
from lint_pairs import IDS, TINY, draft, ids, llama_target
from lint_pairs import target as tiny_target
from safetensors.torch import load_file
from test_draft_producers import SAFEAILAB, SPECFORGE, SPECULATORS, tensors, write

from wiring.engines.resolve import parse_engine
from wiring.errors import WiringError
from wiring.lint import ServerView, lint
from wiring.lint.config_checks import context_length

DEFAULT = (2, 6, 9)  # of 12 layers


@pytest.fixture
def target(tmp_path):
    return llama_target(tmp_path / "target")


def check(folder, target, engine, **others):
    return lint(folder, target, parse_engine(engine), **others)


def kinds(result):
    return {finding.kind for finding in result.errors}


def warned(result):
    return {finding.kind for finding in result.findings if finding.severity == "warning"}


def layouts(result):
    return {result.served.prefill, result.served.verify, result.served.draft_extend}


def with_the_targets_embedding(target, prefix):
    rows = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    return tensors(prefix) | {"embed_tokens.weight": rows}


def test_specforge(tmp_path, target):
    folder = write(tmp_path / "d", SPECFORGE, safetensors=with_the_targets_embedding(target, "midlayer."))
    for engine in ("sglang==0.5.23", "sglang==0.5.9", "vllm==0.11.1"):  # there the nested key is not read: the default
        result = check(folder, target, engine)
        assert layouts(result) == {DEFAULT} and result.trained.layout == DEFAULT
        assert result.findings == (), engine
    newer = check(folder, target, "vllm==0.22.0")
    assert layouts(newer) == {(1, 5, 8)} and kinds(newer) == set() and warned(newer) == {2}
    assert any(
        "(1, 5, 8)" in f.evidence and "assumed" in f.evidence and "--trained" in f.remedy for f in newer.findings
    )
    assert kinds(check(folder, target, "vllm==0.22.0", trained=DEFAULT)) == {2}
    assert check(folder, target, "tensorrt-llm", engine_ids=(1, 5, 8)).findings == ()
    deeper = check(folder, target, "tensorrt-llm", engine_ids=(2, 6, 9))
    assert layouts(deeper) == {(3, 7, 10)} and warned(deeper) == {2}


def test_model_optimizer(tmp_path, target):
    folder = write(tmp_path / "d", SPECFORGE, safetensors=tensors("layers.0.", maps=["d2t"]))
    assert check(folder, target, "sglang==0.5.23").findings == ()
    assert check(folder, target, "tensorrt-llm", engine_ids=(1, 5, 8)).findings == ()


def test_safeailab(tmp_path, target):
    folder = write(tmp_path / "d", SAFEAILAB, bin=tensors("midlayer."))
    result = check(folder, target, "vllm")
    assert result.findings == () and layouts(result) == {DEFAULT}
    assert kinds(check(folder, target, "sglang==0.5.23")) == {7}  # its architecture is that of a whole Llama model
    renamed = write(tmp_path / "e", SAFEAILAB | {"architectures": ["LlamaForCausalLMEagle3"]}, bin=tensors("midlayer."))
    served = check(renamed, target, "sglang==0.5.23")  # now it may as well be a SpecForge draft that lost its ids
    assert layouts(served) == {DEFAULT} and [(f.kind, f.severity) for f in served.findings] == [(0, "note")]


def test_speculators(tmp_path, target):
    folder = write(tmp_path / "d", SPECULATORS, safetensors=with_the_targets_embedding(target, "layers.0."))
    result = check(folder, target, "vllm")
    assert result.findings == () and layouts(result) == {DEFAULT}
    served = check(folder, target, "sglang==0.5.23")
    assert kinds(served) == {10}
    assert any("norm_before_residual" in finding.where for finding in served.errors)
    silent = {key: value for key, value in SPECULATORS.items() if key != "norm_before_residual"}
    open_question = check(write(tmp_path / "d", silent), target, "vllm")
    assert [(f.kind, f.severity) for f in open_question.findings] == [(10, "warning")]


@pytest.mark.parametrize(
    ("draft_scaling", "target_scaling", "values"),
    [
        (None, {"rope_type": "llama3", "factor": 8.0}, ("none", "llama3 by 8.0")),
        ({"rope_type": "linear", "factor": 2.0}, {"rope_type": "llama3", "factor": 8.0}, ("linear by 2.0", "llama3")),
        ({"rope_type": "linear", "factor": 2.0}, None, ("linear by 2.0", "none")),
    ],
)
def test_rope_scaling_against_the_target(tmp_path, draft_scaling, target_scaling, values):
    target = llama_target(tmp_path / "t", **({"rope_scaling": target_scaling} if target_scaling else {}))
    config = SPECFORGE | ({"rope_scaling": draft_scaling} if draft_scaling else {})
    folder = write(tmp_path / "d", config, safetensors=tensors("midlayer."))
    (finding,) = check(folder, target, "sglang==0.5.23").findings
    assert (finding.kind, finding.severity) == (13, "warning") and all(value in finding.evidence for value in values)


def family(folder, architecture, layers, **others):
    """A target of this family: its config alone, with the tiny target's widths."""
    folder.mkdir(parents=True)
    sizes = {
        "hidden_size": 64,
        "vocab_size": 192,
        "num_hidden_layers": layers,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
    }
    config = {"architectures": [architecture]} | ({"text_config": sizes} if "nested" in others else sizes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("architecture", "layers", "layer_ids", "engine", "trained", "served", "kind"),
    [
        ("LlamaForCausalLM", 32, (1, 15, 28), "sglang==0.5.23", None, (2, 16, 29), None),
        ("LlamaForCausalLM", 32, (2, 16, 29), "sglang==0.5.23", (2, 16, 29), (3, 17, 30), 2),
        ("LlamaForCausalLM", 32, (5, 15, 28), "sglang==0.5.23", (2, 16, 29), (6, 16, 29), 1),
        ("Qwen3ForCausalLM", 36, (1, 17, 32), "sglang==0.5.9", None, (2, 18, 33), None),
        ("Qwen3ForCausalLM", 36, (2, 18, 33), "sglang==0.5.23", (2, 18, 33), (3, 19, 34), 2),
        ("Qwen3MoeForCausalLM", 94, (1, 46, 90), "sglang==0.5.23", None, (2, 47, 91), None),
        ("Qwen3MoeForCausalLM", 94, (1, 46, 90), "vllm", None, (1, 46, 90), 2),
        ("GptOssForCausalLM", 36, (1, 17, 33), "sglang==0.5.23", None, (2, 18, 34), None),
        ("GptOssForCausalLM", 36, (24, 30, 36), "sglang==0.5.23", (24, 30, 36), (24, 30, 36), None),
        ("GptOssForCausalLM", 36, (), "sglang==0.5.23", (2, 18, 34), (2, 18, 33), 1),
        ("DeepseekV3ForCausalLM", 61, (1, 29, 57), "sglang==0.5.23", None, (2, 30, 58), None),
        ("DeepseekV3ForCausalLM", 61, (1, 29, 57), "sglang==0.5.9", None, (2, 30, 58), None),
        ("DeepseekV3ForCausalLM", 61, (2, 30, 58), "sglang==0.5.23", None, (2, 30, 58), None),
        ("DeepseekV3ForCausalLM", 61, (3, 31, 59), "sglang==0.5.23", None, (3, 31, 59), 2),
        ("KimiK25ForConditionalGeneration", 61, (2, 30, 58), "sglang==0.5.23", None, (2, 30, 58), None),
        ("KimiK25ForConditionalGeneration", 61, (2, 30, 58), "sglang==0.5.9", None, None, 1),
        ("MiniMaxM3SparseForConditionalGeneration", 60, (), "sglang==0.5.23", (2, 30, 57), (3, 31, 58), 2),
    ],
)
def test_families_of_targets(tmp_path, architecture, layers, layer_ids, engine, trained, served, kind):
    nested = {"nested": True} if "Conditional" in architecture else {}
    target = family(tmp_path / "t", architecture, layers, **nested)
    config, drop = (ids(*layer_ids), ()) if layer_ids else ({}, ("eagle_config",))
    folder = draft(tmp_path / "d", config, drop=drop, weights=False)
    result = check(folder, target, engine, trained=trained)
    assert layouts(result) == {served}
    guessed = kind == 2 and trained is None  # nothing in a flat file says which id convention its ids follow
    assert kinds(result) == (set() if kind is None or guessed else {kind}), result.findings
    assert not guessed or warned(result) == {2}
    if kind is None:
        assert result.findings == ()


def test_the_last_boundary_asked_of_a_release_that_adds_one(tmp_path):
    """gpt-oss [24, 30, 36] of 36 layers: layer 37 does not exist; the graphs of verify are on the default layers."""
    folder = draft(tmp_path / "d", ids(24, 30, 36), weights=False)
    target = family(tmp_path / "t", "GptOssForCausalLM", 36)
    result = check(folder, target, "sglang==0.5.9", trained=(24, 30, 36))
    assert (result.served.prefill, result.served.verify) == (None, (2, 18, 33)) and kinds(result) == {1, 3}
    eager = check(folder, target, "sglang==0.5.9", server=ServerView({"disable_cuda_graph": True}))
    assert layouts(eager) == {None} and kinds(eager) == {3}


def test_ids_that_can_be_read_in_two_ways(tmp_path):
    """The default spelt as input ids: served one layer later, which is right only if it was trained so."""
    folder = draft(tmp_path / "d", ids(2, 16, 29), weights=False)
    result = check(folder, family(tmp_path / "t", "LlamaForCausalLM", 32), "sglang==0.5.23")
    assert layouts(result) == {(3, 17, 30)} and result.errors == ()
    assert (2, "warning") in {(f.kind, f.severity) for f in result.findings}


def test_partial_sums_of_ranks(tmp_path):
    folder = draft(tmp_path / "d", ids(1, 29, 57), weights=False)
    target = family(tmp_path / "t", "DeepseekV3ForCausalLM", 61)
    two = check(folder, target, "sglang==0.5.9", server=ServerView({"tp_size": 2, "disable_cuda_graph": True}))
    assert [(f.kind, f.severity) for f in two.findings] == [(4, "warning")]
    later = check(folder, target, "sglang==0.5.14", server=ServerView({"tp_size": 2}))
    assert later.findings == ()


def test_config_alone(tmp_path):
    folder = draft(tmp_path / "d", weights=False)
    result = check(folder, TINY / "target", "sglang==0.5.23", trained=(0, 3, 31))
    assert result.findings == ()
    names = {"slot count against fc", "vocabulary maps d2t and t2d", "missing and unused tensors", "embedding"}
    assert {gap.check for gap in result.not_checked} >= names
    target = family(tmp_path / "t", "DeepseekV3ForCausalLM", 61)
    bare = check(draft(tmp_path / "e"), target, "sglang==0.5.23", trained=(0, 3, 31))
    assert bare.findings == () and {gap.check for gap in bare.not_checked} & names == {"embedding"}


def test_without_a_target_and_with_an_unknown_one(tmp_path):
    folder = draft(tmp_path / "d")
    result = check(folder, None, "sglang==0.5.23")
    assert result.served is None and result.findings == ()
    assert {gap.why for gap in result.not_checked} >= {"no target was given"}
    unknown = check(folder, family(tmp_path / "t", "SomeNewForCausalLM", 61), "sglang==0.5.23", trained=(0, 3, 31))
    assert unknown.served is None and unknown.findings == ()
    assert "SomeNewForCausalLM" in {gap.check: gap.why for gap in unknown.not_checked}["served layout"]


def test_a_draft_whose_forward_pass_is_not_read_here(tmp_path):
    """Latent attention: configs are checked, tensors are listed as not checked."""
    folder = draft(tmp_path / "d", {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 32})
    result = check(folder, TINY / "target", "sglang==0.5.23", trained=(0, 3, 31))
    assert result.errors == ()
    assert "missing and unused tensors" in {gap.check for gap in result.not_checked}


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [
        ("draft", "eagle_config", [1, 29, 57]),
        ("draft", IDS, "1,29,57"),
        ("draft", "eagle_config", {IDS: ["1", "29"]}),
        ("draft", "num_aux_hidden_states", [3]),
        ("draft", "architectures", "LlamaForCausalLMEagle3"),
        ("target", "text_config", "x"),
        ("target", "rope_scaling", 4.0),
        ("target", "rope_theta", "1e6"),
    ],
)
def test_fields_that_cannot_be_read(tmp_path, of, field, value):
    folder = draft(tmp_path / "d", {field: value} if of == "draft" else {})
    target = tiny_target(tmp_path / "t", {field: value} if of == "target" else {})
    with pytest.raises(WiringError) as error:
        check(folder, target, "sglang==0.5.23")
    assert error.value.where == str((folder if of == "draft" else target) / "config.json") and error.value.expected


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"model_max_length": 1024, "max_position_embeddings": 4096}, 1024),
        ({}, None),
    ],
)
def test_context_length_as_sglang_derives_it(config, tokens):
    assert context_length(config) == tokens


def test_ids_at_the_top_level_are_reported_even_if_harmless(tmp_path):
    folder = draft(tmp_path / "d", {IDS: [1, 29, 57]}, drop=("eagle_config",), weights=False)
    result = check(folder, family(tmp_path / "t", "DeepseekV3ForCausalLM", 61), "sglang==0.5.23")
    assert layouts(result) == {(2, 30, 58)} and result.errors == ()
    assert {(f.kind, f.severity) for f in result.findings} == {(1, "warning")}
