"""Served layouts by engine, release, family and phase: the tables of the public catalogues, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiring.engines import sglang_layers
from wiring.engines.faults import FAULTS
from wiring.engines.resolve import Engine, parse_engine, served_layout
from wiring.errors import WiringError
from wiring.layers import IdConvention, Phase, from_boundaries, to_boundaries

KEY = "eagle_aux_hidden_state_layer_ids"
DEFAULT = (2, 30, 58)
RELEASES = ("0.4.6", "0.4.9", "0.5.4.post2", "0.5.9", "0.5.13", "0.5.14", "0.5.17", "0.5.23")


def target(architecture="DeepseekV3ForCausalLM", layers=61):
    return {"architectures": [architecture], "num_hidden_layers": layers}


def nested(*ids):
    return {"eagle_config": {KEY: list(ids)}}


def faults(served, severity):
    return {note.fault for note in served.notes if note.severity == severity}


# What a written [a, b, c] is served as on 61 layers, by consumer: SGLang's Llama, its DeepSeek, vLLM old and new.
@pytest.mark.parametrize(
    ("written", "llama", "deepseek", "vllm_old", "vllm_new"),
    [
        (nested(1, 29, 57), DEFAULT, DEFAULT, DEFAULT, (1, 29, 57)),
        (nested(2, 30, 58), (3, 31, 59), DEFAULT, DEFAULT, DEFAULT),
        ({KEY: [3, 31, 59]}, DEFAULT, DEFAULT, (3, 31, 59), (3, 31, 59)),
        ({}, DEFAULT, DEFAULT, DEFAULT, DEFAULT),
    ],
)
def test_one_config_means_other_layers_to_other_engines(written, llama, deepseek, vllm_old, vllm_new):
    cases = (
        ("sglang", None, "LlamaForCausalLM", llama),
        ("sglang", None, "DeepseekV3ForCausalLM", deepseek),
        ("vllm", "0.15.0", "LlamaForCausalLM", vllm_old),
        ("vllm", None, "LlamaForCausalLM", vllm_new),
    )
    for engine, version, architecture, layout in cases:
        served = served_layout(engine, version, target(architecture), written)
        assert all(served[phase] == layout for phase in Phase), (engine, version)


def test_tensorrt_llm_takes_output_ids_from_its_own_argument():
    served = served_layout("tensorrt-llm", None, target(), nested(9, 9, 9), engine_ids=(57, 29, 1), slots=3)
    assert served.prefill == DEFAULT and faults(served, "warning") == {3}  # sorted
    assert served_layout("tensorrt-llm", None, target(), {}).prefill == DEFAULT
    assert served_layout("tensorrt-llm", None, target(), {}, engine_ids=(-1, 2, 30), slots=3).prefill is None


@pytest.mark.parametrize(
    ("version", "ids", "prefill", "decode"),
    [
        ("0.5.9", (2, 30, 58), (3, 31, 59), DEFAULT),  # graphs on the default layers
        ("0.5.9", (-1, 2, 30), None, DEFAULT),  # layer 0 raises, in eager prefill alone
        ("0.5.12.post1", (2, 30, 58), (3, 31, 59), (3, 31, 59)),
        ("0.5.13", (2, 30, 58), DEFAULT, DEFAULT),  # the same ids mean other layers from here on
        ("0.5.13", (0, 3, 31), None, None),
        ("0.5.14", (0, 3, 31), (0, 3, 31), (0, 3, 31)),  # the embedding without a patch
        ("0.5.13", (30, 1, 58), (1, 30, 58), (1, 30, 58)),  # only the first id is looked at
        ("0.5.16", (-1, 2, 30), None, None),
        ("0.5.23", (58, 30, 2), DEFAULT, DEFAULT),
        ("0.5.4.post1", (1, 29, 57), None, None),  # no method at all
    ],
)
def test_deepseek_by_release(version, ids, prefill, decode):
    served = served_layout("sglang", version, target(), nested(*ids))
    assert (served.prefill, served.verify, served.draft_extend) == (prefill, decode, decode)
    eager = served_layout("sglang", version, target(), nested(*ids), cuda_graphs=False)
    assert eager.prefill == eager.verify == prefill


def test_graphs_on_default_layers_are_an_error_of_the_decoding_phases_alone():
    served = served_layout("sglang", "0.5.9", target(), nested(2, 30, 58))
    (note,) = served.errors
    assert note.phases == (Phase.VERIFY, Phase.DRAFT_EXTEND) and "disable-cuda-graph" in note.remedy
    assert served_layout("sglang", "0.5.9", target(), nested(1, 29, 57)).errors == ()  # the default itself
    assert served_layout("sglang", "0.5.11", target(), nested(2, 30, 58)).errors == ()


def test_flags_of_the_graphs_stay_set_on_qwen3_moe():
    qwen = target("Qwen3MoeForCausalLM", 48)
    served = served_layout("sglang", "0.5.9", qwen, nested(1, 20, 44))
    assert (served.prefill, served.verify) == (None, (2, 24, 45))
    assert any("[2, 21, 24, 45]" in note.text for note in served.errors)  # the union
    assert served_layout("sglang", "0.5.9", qwen, nested(1, 20, 44), cuda_graphs=False).prefill == (2, 21, 45)


def test_one_state_alone_skips_fc():
    served = served_layout("sglang", "0.5.13", target(), nested(-1, 29))
    assert served.prefill == (29,) and faults(served, "error") == {3}
    assert served_layout("sglang", "0.5.17", target(), nested(-1, 29)).prefill is None  # the packer counts


def test_fc_of_four_slots_loads_from_one_release_on():
    four = nested(1, 10, 29, 57)
    assert served_layout("sglang", "0.5.11", target(), four).prefill is None
    assert served_layout("sglang", "0.5.12", target(), four).prefill == (2, 11, 30, 58)
    assert served_layout("sglang", None, target(), nested(1, 29, 57), slots=4).prefill is None


def test_partial_sums_need_more_than_one_rank_and_a_release_that_captures_before_the_all_reduce():
    def partial(version, ranks, architecture="DeepseekV3ForCausalLM"):
        served = served_layout("sglang", version, target(architecture), nested(1, 29, 57), tp_size=ranks)
        return 4 in faults(served, "warning")

    assert [partial("0.5.9", 1), partial("0.5.9", 8), partial("0.5.13.post1", 8), partial("0.5.14", 8)] == [0, 1, 1, 0]
    assert partial("0.5.20", 2, "GptOssForCausalLM") and not partial("0.5.21", 2, "GptOssForCausalLM")
    assert not partial("0.5.9", 8, "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({KEY: [0, 3, 31]}, "is at the top level and is ignored"),
        ({"eagle_config": "on"}, "eagle_config is not an object"),
        ({"eagle_config": {KEY: None}}, "no layer ids in eagle_config"),
        ({}, "no layer ids in eagle_config"),
        ({KEY: [9, 9, 9], **nested(2, 30, 58)}, "only the latter is read"),
    ],
)
def test_a_default_taken_silently_is_said(config, words):
    served = served_layout("sglang", None, target(), config)
    assert served.verify == DEFAULT and faults(served, "warning") == {1}
    assert any(words in str(note) for note in served.notes)


def test_a_draft_without_aux_states_and_ids_that_are_none():
    for eagle in ({"use_aux_hidden_state": False, KEY: [1, 29, 57]}, {KEY: ["1", "29", "57"]}, {KEY: 3}, {KEY: []}):
        served = served_layout("sglang", None, target(), {"eagle_config": eagle})
        assert (served.prefill, served.verify, served.draft_extend) == (None,) * 3 and faults(served, "error") == {3}


def test_the_embedding_without_a_copy_is_another_state():
    served = served_layout("sglang", "0.5.12", target("Qwen3ForCausalLM", 36), nested(-1, 17, 32))
    assert faults(served, "error") == {5}
    assert served_layout("sglang", "0.5.21", target("Qwen3ForCausalLM", 36), nested(-1, 17, 32)).errors == ()


def test_nested_sizes_of_a_multimodal_target():
    kimi = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61}}
    assert served_layout("sglang", None, kimi, nested(0, 3, 31)).verify == (0, 3, 31)
    assert served_layout("sglang", "0.5.9", kimi, nested(0, 3, 31)).verify is None


def refusal(*arguments):
    with pytest.raises(WiringError) as caught:
        served_layout(*arguments)
    return caught.value


def test_releases_outside_what_was_read():
    error = refusal("sglang", "0.4.5", target(), {})
    assert (error.code, error.expected, error.found) == ("engine-release-unknown", "0.4.6 to 0.5.23", "0.4.5")
    assert refusal("sglang", "new", target(), {}).code == "version-invalid"
    assert refusal("vllm", "0.8.4", target(), {}).code == "engine-release-without-eagle3"
    newer = served_layout("sglang", "0.6.0", target(), nested(2, 30, 58))
    assert newer.verify == DEFAULT and faults(newer, "warning") == {0}
    between = served_layout("sglang", "0.5.14.dev3", target(), nested(2, 30, 58))
    assert between.verify == DEFAULT and 0 in faults(between, "note")


def test_targets_that_cannot_be_served_or_lack_their_shape():
    served = served_layout("sglang", None, target("KimiVLForConditionalGeneration"), {})
    assert served.verify is None and faults(served, "error") == {1}
    assert refusal("sglang", None, target("FooForCausalLM"), {}).code == "architecture-unknown"
    for config, field in (({"num_hidden_layers": 3}, "architectures"), ({"architectures": ["A"]}, "num_hidden_layers")):
        error = refusal("sglang", None, config, {})
        assert (error.code, error.where) == ("target-config-incomplete", field)


def test_vllm_before_its_loops_captured_both_ends():
    llama = target("LlamaForCausalLM")
    assert served_layout("vllm", "0.15.0", llama, {KEY: [0, 3, 31]}).prefill is None
    assert served_layout("vllm", None, llama, {KEY: [0, 3, 31]}).prefill == (0, 3, 31)
    assert served_layout("vllm", "0.11.0", llama, {KEY: [3, 31, 59]}).prefill == DEFAULT  # no key is read


def test_vllms_deepseek_has_no_embedding_to_give():
    assert served_layout("vllm", None, target(), {KEY: [0, 3, 31]}).prefill is None
    assert served_layout("vllm", None, target(), {KEY: [3, 31, 61]}).prefill == (3, 31, 61)
    assert served_layout("vllm", "0.24.0", target(), {KEY: [3, 31, 61]}).prefill is None
    assert faults(served_layout("vllm", "0.17.1", target(), {}), "error") == {1}
    assert any("was not read" in str(n) for n in served_layout("vllm", None, target("Qwen3ForCausalLM", 36), {}).notes)


def test_engines_are_read_from_text():
    assert parse_engine("sglang==0.5.9") == Engine("sglang", "0.5.9")
    assert parse_engine(" vLLM ") == Engine("vllm") and str(Engine("vllm", "0.30.0")) == "vllm==0.30.0"
    for text, code in (("trt", "engine-unknown"), ("sglang==x", "version-invalid"), ("vllm==", "version-invalid")):
        with pytest.raises(WiringError) as caught:
            parse_engine(text)
        assert (caught.value.code, caught.value.where) == (code, text)
    assert refusal("trt", None, target(), {}).code == "engine-unknown"


def test_faults_are_numbered_without_a_gap():
    assert list(FAULTS) == list(range(1, 26)) and len(set(FAULTS.values())) == 25


def test_every_architecture_has_a_rule_from_its_first_release_on():
    for name, member in sglang_layers.ARCHITECTURES.items():
        served = served_layout("sglang", member.since, target(name, 40), {}, cuda_graphs=False)
        assert served.notes and not any("cannot serve" in str(note) for note in served.notes), name


@settings(max_examples=200, deadline=None)
@given(
    ids=st.none() | st.lists(st.integers(-3, 64), max_size=5),
    version=st.sampled_from(RELEASES),
    architecture=st.sampled_from(sorted(sglang_layers.ARCHITECTURES)),
    layers=st.integers(1, 62),
    graphs=st.booleans(),
)
def test_what_is_served_is_ascending_without_repeats_and_inside_the_target(ids, version, architecture, layers, graphs):
    config = {} if ids is None else nested(*ids)
    served = served_layout("sglang", version, target(architecture, layers), config, cuda_graphs=graphs)
    for phase in Phase:
        layout = served[phase]
        if layout is None:
            assert served.errors
        else:
            assert list(layout) == sorted(set(layout)) and all(0 <= b <= layers for b in layout)
            assert len(layout) == 1 or len(layout) == len(ids or (1, 2, 3))
    assert all(note.fault in FAULTS for note in served.notes)


@given(layout=st.lists(st.integers(0, 200)), convention=st.sampled_from(IdConvention))
def test_ids_and_boundaries_are_one_to_one(layout, convention):
    assert list(to_boundaries(from_boundaries(layout, convention), convention)) == layout
