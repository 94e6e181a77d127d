"""Tables of SGLang's EAGLE-3 layer rules: by release and model family, and the family of each architecture.

Read from the wheels of all 53 releases from 0.4.6 to 0.5.23: `srt/models/<family>.py` (the method
`set_eagle3_layers_to_capture` and the loop of the model's forward), `srt/model_executor/cuda_graph_runner.py`,
`model_runner.py` and its successor (`model_runner_components/`), `srt/models/llama_eagle3.py`,
`srt/server_args.py`. `make releases` runs the releases' own methods against these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

OLDEST, NEWEST = "0.4.6", "0.5.23"  # the first and the last release that was read

# `eagle_config["eagle_aux_hidden_state_layer_ids"]` is read from this release on; before, the default was the only one.
IDS_READ_SINCE = "0.4.9"
# The CUDA graphs of verify are captured on the default layers before the draft's ids are set: up to this release.
GRAPHS_ON_DEFAULTS_UNTIL = "0.5.10.post1"
# `fc` is built for three states whatever the config says, up to this release.
FC_OF_THREE_UNTIL = "0.5.11"


class Ids(StrEnum):
    """How ids of a draft's config are translated to layers; the state before layer k is boundary k."""

    PLUS_ONE = "output ids (boundary = id + 1)"
    FIRST_IS_ONE = "output ids (boundary = id + 1) if the first id is 1, else boundaries"
    LARGEST_IS_L = "boundaries if the largest is L, else output ids (boundary = id + 1)"


class Embedding(StrEnum):
    """What happens if boundary 0 is requested."""

    SERVED = "served"
    RAISES = "layer 0 has no residual yet: TypeError"
    OVERWRITTEN = "a reference to the tensor that later layers add to in place"


@dataclass(frozen=True)
class LayerRule:
    """The rule of one model family from release `since` on, until its next rule.

    `last`: boundary L can be captured. `one_later`: the default is one layer later than in other families. `flags`:
    layers are marked by index and never unmarked. `counted`: a missing state is an error at once. `nothing`: the method
    exists, but nothing is captured.
    """

    since: str
    ids: Ids = Ids.PLUS_ONE
    embedding: Embedding = Embedding.SERVED
    last: bool = False
    one_later: bool = False
    flags: bool = False
    counted: bool = False
    nothing: bool = False


_RAISES, _OVERWRITTEN = Embedding.RAISES, Embedding.OVERWRITTEN

FAMILIES: Mapping[str, tuple[LayerRule, ...]] = {
    "llama": (LayerRule("0.4.6", embedding=_RAISES), LayerRule("0.5.22")),
    "llama4": (LayerRule("0.4.6", embedding=_RAISES), LayerRule("0.5.21")),
    "qwen2": (LayerRule("0.5.2", embedding=_OVERWRITTEN), LayerRule("0.5.21")),
    "qwen2_moe": (LayerRule("0.5.2", embedding=_OVERWRITTEN), LayerRule("0.5.4.post2", flags=True)),
    "qwen2_5_vl": (LayerRule("0.5.2", embedding=_OVERWRITTEN), LayerRule("0.5.21")),
    "qwen3": (LayerRule("0.4.9", embedding=_OVERWRITTEN), LayerRule("0.5.21")),
    "qwen3_moe": (LayerRule("0.4.9", embedding=_OVERWRITTEN), LayerRule("0.5.4.post2", flags=True)),
    "qwen3_next": (LayerRule("0.5.9", flags=True),),
    "qwen3_vl": (LayerRule("0.5.11", embedding=_OVERWRITTEN), LayerRule("0.5.21")),
    "qwen3_5_text": (LayerRule("0.5.22", flags=True),),
    "deepseek_v2": (
        LayerRule("0.5.4.post2", embedding=_RAISES),
        LayerRule("0.5.13", Ids.FIRST_IS_ONE, _RAISES),
        LayerRule("0.5.14", Ids.FIRST_IS_ONE),
        LayerRule("0.5.17", Ids.FIRST_IS_ONE, counted=True),
    ),
    "glm4_moe": (LayerRule("0.5.5", embedding=_RAISES), LayerRule("0.5.21")),
    "glm4_moe_lite": (
        LayerRule("0.5.8", embedding=_RAISES),
        LayerRule("0.5.13", Ids.FIRST_IS_ONE, _RAISES),
        LayerRule("0.5.21", Ids.FIRST_IS_ONE),
    ),
    "glm5_next": (LayerRule("0.5.20"),),
    "gpt_oss": (
        LayerRule("0.5.1", embedding=_RAISES),
        LayerRule("0.5.17", Ids.LARGEST_IS_L, _OVERWRITTEN, last=True),
        LayerRule("0.5.21", Ids.LARGEST_IS_L, last=True),
    ),
    "minimax_m2": (LayerRule("0.5.5.post1", embedding=_RAISES), LayerRule("0.5.11")),
    "minimax_m3": (LayerRule("0.5.16", nothing=True), LayerRule("0.5.18"), LayerRule("0.5.23", last=True)),
    "minimax_m3_vl": (LayerRule("0.5.18", one_later=True), LayerRule("0.5.23", one_later=True, last=True)),
    "gemma3_causal": (LayerRule("0.5.12", last=True),),
    "gemma4_causal": (LayerRule("0.5.12", last=True),),
    "longcat_flash": (LayerRule("0.5.6", embedding=_RAISES), LayerRule("0.5.21")),
    "bailing_moe": (LayerRule("0.5.9", embedding=_OVERWRITTEN), LayerRule("0.5.21")),
    "exaone_moe": (LayerRule("0.5.9", embedding=_RAISES), LayerRule("0.5.22")),
    "apertus": (LayerRule("0.5.3", embedding=_RAISES), LayerRule("0.5.22")),
}


@dataclass(frozen=True)
class Membership:
    """The family of an architecture, and the first release in which it serves an EAGLE-3 draft."""

    family: str
    since: str


ARCHITECTURES: Mapping[str, Membership] = {
    "LlamaForCausalLM": Membership("llama", "0.4.6"),
    "MistralForCausalLM": Membership("llama", "0.4.6"),
    "Ministral3ForCausalLM": Membership("llama", "0.5.6.post1"),
    "Phi3ForCausalLM": Membership("llama", "0.4.6"),
    "InternLM3ForCausalLM": Membership("llama", "0.4.6"),
    "Llama4ForCausalLM": Membership("llama4", "0.4.6"),
    "Llama4ForConditionalGeneration": Membership("llama4", "0.4.9"),
    "Qwen2ForCausalLM": Membership("qwen2", "0.5.2"),
    "Qwen2MoeForCausalLM": Membership("qwen2_moe", "0.5.2"),
    "Qwen2_5_VLForConditionalGeneration": Membership("qwen2_5_vl", "0.5.2"),
    "Qwen3ForCausalLM": Membership("qwen3", "0.4.9"),
    "Qwen3MoeForCausalLM": Membership("qwen3_moe", "0.4.9"),
    "Qwen3NextForCausalLM": Membership("qwen3_next", "0.5.9"),
    "Qwen3VLForConditionalGeneration": Membership("qwen3_vl", "0.5.11"),
    "Qwen3VLMoeForConditionalGeneration": Membership("qwen3_vl", "0.5.11"),
    "Qwen3_5ForCausalLM": Membership("qwen3_5_text", "0.5.22"),
    "Qwen3_5MoeForCausalLM": Membership("qwen3_5_text", "0.5.22"),
    "DeepseekV2ForCausalLM": Membership("deepseek_v2", "0.5.4.post2"),
    "DeepseekV3ForCausalLM": Membership("deepseek_v2", "0.5.4.post2"),
    "DeepseekV32ForCausalLM": Membership("deepseek_v2", "0.5.4.post2"),
    "MistralLarge3ForCausalLM": Membership("deepseek_v2", "0.5.6.post1"),
    "GlmMoeDsaForCausalLM": Membership("deepseek_v2", "0.5.9"),
    "KimiK25ForConditionalGeneration": Membership("deepseek_v2", "0.5.10"),
    "Glm4MoeForCausalLM": Membership("glm4_moe", "0.5.5"),
    "Glm4MoeLiteForCausalLM": Membership("glm4_moe_lite", "0.5.8"),
    "Glm5NextForConditionalGeneration": Membership("glm5_next", "0.5.20"),
    "GptOssForCausalLM": Membership("gpt_oss", "0.5.1"),
    "MiniMaxM2ForCausalLM": Membership("minimax_m2", "0.5.5.post1"),
    "MiniMaxM3SparseForCausalLM": Membership("minimax_m3", "0.5.16"),
    "MiniMaxM3SparseForConditionalGeneration": Membership("minimax_m3_vl", "0.5.18"),
    "Gemma3ForCausalLM": Membership("gemma3_causal", "0.5.12"),
    "Gemma3ForConditionalGeneration": Membership("gemma3_causal", "0.5.12"),
    "Gemma4ForCausalLM": Membership("gemma4_causal", "0.5.12"),
    "Gemma4ForConditionalGeneration": Membership("gemma4_causal", "0.5.12"),
    "LongcatFlashForCausalLM": Membership("longcat_flash", "0.5.6"),
    "BailingMoEForCausalLM": Membership("bailing_moe", "0.5.9"),
    "BailingMoeForCausalLM": Membership("bailing_moe", "0.5.9"),
    "BailingMoeV2ForCausalLM": Membership("bailing_moe", "0.5.9"),
    "ExaoneMoEForCausalLM": Membership("exaone_moe", "0.5.9"),
    "ApertusForCausalLM": Membership("apertus", "0.5.3"),
}

# Architectures that have no EAGLE-3 method in any release read.
WITHOUT = frozenset({"KimiVLForConditionalGeneration", "PixtralForConditionalGeneration"})

# Families that capture `hidden + residual` before the all-reduce that fusion puts off: from this release to that.
PARTIAL_SUMS: Mapping[str, tuple[str, str]] = {
    "deepseek_v2": ("0.5.4.post2", "0.5.13.post1"),
    "gpt_oss": ("0.5.1", "0.5.20"),
    "qwen3_moe": ("0.5.2", "0.5.4.post1"),
    "glm4_moe": ("0.5.5", "0.5.20"),
    "glm4_moe_lite": ("0.5.8", "0.5.20"),
    "bailing_moe": ("0.5.9", "0.5.20"),
}
FUSION = (
    "it is on by itself for the larger families on SM100, from 0.5.7 on SM90 too, on one node without DP attention and "
    "without an all-to-all backend"
)
FUSION_OFF_SINCE = "0.5.10"  # --enforce-disable-flashinfer-allreduce-fusion
