"""Shapes of SGLang's code that an edit is known to be right for, as digests (`code_shape.digest`), with their releases.

Read from the wheels of 53 releases, 0.4.6 to 0.5.23; `make releases` compares every wheel of the test group with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """How a setter turns the draft's layer ids into boundaries."""

    NO_IDS = "it takes no layer ids"
    PLUS_ONE = "every id is an output id, so id -1 is boundary 0 already"
    FIRST_IS_ONE = "ids are output ids where the first is 1, else boundaries"
    LARGEST_IS_L = "ids are boundaries where the largest is L, else output ids, so id -1 is boundary 0 already"


class Capture(Enum):
    """What a forward does at boundary 0."""

    SERVED = "boundary 0 is captured, as a copy"
    RAISES = "before layer 0 there is no residual to add: TypeError"
    OVERWRITTEN = "the embedding is kept as a reference, and later layers add to it in place"


@dataclass(frozen=True)
class Family:
    """Where a model family's setter and forward are: module (`srt/models/<module>.py`) and class.

    `without_setter` names the family whose code this one inherits in the releases in which it has no setter of its own.
    """

    setter: tuple[str, str]
    forward: tuple[str, str]
    without_setter: str | None = None


FAMILIES: Mapping[str, Family] = {
    "apertus": Family(("apertus", "ApertusForCausalLM"), ("apertus", "ApertusModel")),
    "bailing_moe": Family(("bailing_moe", "BailingMoEForCausalLM"), ("bailing_moe", "BailingMoEModel")),
    "deepseek_v2": Family(("deepseek_v2", "DeepseekV2ForCausalLM"), ("deepseek_v2", "DeepseekV2Model")),
    "exaone_moe": Family(("exaone_moe", "ExaoneMoEForCausalLM"), ("exaone_moe", "ExaoneMoEModel")),
    "glm4_moe": Family(("glm4_moe", "Glm4MoeForCausalLM"), ("glm4_moe", "Glm4MoeModel")),
    "glm4_moe_lite": Family(
        ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"), ("glm4_moe_lite", "Glm4MoeLiteModel"), "deepseek_v2"
    ),
    "gpt_oss": Family(("gpt_oss", "GptOssForCausalLM"), ("gpt_oss", "GptOssModel")),
    "llama": Family(("llama", "LlamaForCausalLM"), ("llama", "LlamaModel")),
    "llama4": Family(("llama", "LlamaForCausalLM"), ("llama4", "Llama4Model")),
    "longcat_flash": Family(("longcat_flash", "LongcatFlashForCausalLM"), ("longcat_flash", "LongcatFlashModel")),
    "minimax_m2": Family(("minimax_m2", "MiniMaxM2ForCausalLM"), ("minimax_m2", "MiniMaxM2Model")),
    "qwen2": Family(("qwen2", "Qwen2ForCausalLM"), ("qwen2", "Qwen2Model")),
    "qwen2_5_vl": Family(("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"), ("qwen2", "Qwen2Model")),
    "qwen2_moe": Family(("qwen2_moe", "Qwen2MoeForCausalLM"), ("qwen2_moe", "Qwen2MoeModel")),
    "qwen3": Family(("qwen3", "Qwen3ForCausalLM"), ("qwen2", "Qwen2Model")),
    "qwen3_moe": Family(("qwen3_moe", "Qwen3MoeForCausalLM"), ("qwen2_moe", "Qwen2MoeModel")),
}

SETTERS: Mapping[str, Rule] = {
    # apertus 0.5.3-0.5.23, deepseek_v2 0.5.4.post2-0.5.12.post1, glm4_moe 0.5.5-0.5.23, gpt_oss 0.5.1-0.5.16, llama
    # 0.4.9-0.5.23, llama4 0.4.9-0.5.23
    "f7b4fa5a26b7": Rule.PLUS_ONE,
    # bailing_moe 0.5.9-0.5.23, qwen2 0.5.2-0.5.23, qwen2_moe 0.5.2-0.5.4.post1, qwen3 0.4.9-0.5.23, qwen3_moe
    # 0.4.9-0.5.4.post1
    "0817872f8722": Rule.PLUS_ONE,
    "53811d6e3311": Rule.FIRST_IS_ONE,  # deepseek_v2 0.5.13-0.5.23, glm4_moe_lite 0.5.13-0.5.23
    "a68b495dc305": Rule.PLUS_ONE,  # exaone_moe 0.5.9-0.5.20, minimax_m2 0.5.5.post1-0.5.20
    "b0ff700d0159": Rule.PLUS_ONE,  # exaone_moe 0.5.21-0.5.23, minimax_m2 0.5.21-0.5.23
    "2eec8ad27333": Rule.LARGEST_IS_L,  # gpt_oss 0.5.17-0.5.23
    "f5ae7550cfdc": Rule.NO_IDS,  # llama 0.4.6-0.4.6.post1, llama4 0.4.6-0.4.6.post1
    "6b7500764ea0": Rule.NO_IDS,  # llama 0.4.6.post2-0.4.8.post1, llama4 0.4.6.post2-0.4.8.post1
    "465951bdca9c": Rule.PLUS_ONE,  # longcat_flash 0.5.6-0.5.23
    "420f67ac6bc1": Rule.PLUS_ONE,  # qwen2_5_vl 0.5.2-0.5.23
    "1d4c1ebb87d5": Rule.PLUS_ONE,  # qwen2_moe 0.5.4.post2-0.5.23, qwen3_moe 0.5.4.post2-0.5.23
}

CAPTURES: Mapping[str, Capture] = {
    "7971c64f6b21": Capture.RAISES,  # apertus 0.5.3-0.5.21, llama 0.4.6.post2-0.5.21
    # apertus 0.5.22-0.5.23, llama 0.5.22-0.5.23, qwen2 0.5.22-0.5.23, qwen2_5_vl 0.5.22-0.5.23, qwen3 0.5.22-0.5.23
    "3a7c67e7a374": Capture.SERVED,
    "25c35cb94495": Capture.OVERWRITTEN,  # bailing_moe 0.5.9-0.5.20
    "48d284e56bb1": Capture.SERVED,  # bailing_moe 0.5.21-0.5.23
    "d44a9879acb1": Capture.RAISES,  # deepseek_v2 0.5.4.post2-0.5.6
    "65c81656f79c": Capture.RAISES,  # deepseek_v2 0.5.6.post1-0.5.6.post2
    "e6176056b169": Capture.RAISES,  # deepseek_v2 0.5.7-0.5.9
    "1ce338acbdc0": Capture.RAISES,  # deepseek_v2 0.5.10-0.5.13.post1
    "cf132390930c": Capture.SERVED,  # deepseek_v2 0.5.14-0.5.15.post1
    "addc8a5a259a": Capture.SERVED,  # deepseek_v2 0.5.16
    "6b8563a404b2": Capture.SERVED,  # deepseek_v2 0.5.17
    "7614ce983bfa": Capture.SERVED,  # deepseek_v2 0.5.18-0.5.20
    "2a7bcfef7fd6": Capture.SERVED,  # deepseek_v2 0.5.21-0.5.23
    "cefa98ea49e0": Capture.RAISES,  # exaone_moe 0.5.9-0.5.21, gpt_oss 0.5.1-0.5.16
    "fa89a4857966": Capture.SERVED,  # exaone_moe 0.5.22-0.5.23
    "19daa486951d": Capture.RAISES,  # glm4_moe 0.5.5-0.5.20
    "805b02fc8771": Capture.SERVED,  # glm4_moe 0.5.21-0.5.23
    "8868f9bbc858": Capture.RAISES,  # glm4_moe_lite 0.5.13-0.5.20
    "5fea8ad55df3": Capture.SERVED,  # glm4_moe_lite 0.5.21-0.5.23
    "8dd7c46eb049": Capture.OVERWRITTEN,  # gpt_oss 0.5.17-0.5.20
    "f1b6498e6b40": Capture.SERVED,  # gpt_oss 0.5.21
    "ca641e979e2f": Capture.SERVED,  # gpt_oss 0.5.22-0.5.23
    "c48c38f8fb8c": Capture.RAISES,  # llama 0.4.6-0.4.6.post1, llama4 0.4.6-0.5.20
    "b91771d89635": Capture.SERVED,  # llama4 0.5.21-0.5.23
    "8ae6ea9776b4": Capture.RAISES,  # longcat_flash 0.5.6-0.5.15.post1
    "2c50d449375f": Capture.RAISES,  # longcat_flash 0.5.16-0.5.20
    "ed53352a1ac5": Capture.SERVED,  # longcat_flash 0.5.21
    "e9fbfe651b21": Capture.SERVED,  # longcat_flash 0.5.22-0.5.23
    "07f8f9726026": Capture.RAISES,  # minimax_m2 0.5.5.post1-0.5.8.post1
    "701822b8fa77": Capture.RAISES,  # minimax_m2 0.5.9
    "4428febbcd10": Capture.RAISES,  # minimax_m2 0.5.10-0.5.10.post1
    "1c7d861e0fd5": Capture.SERVED,  # minimax_m2 0.5.11-0.5.13.post1
    "57c654a0c304": Capture.SERVED,  # minimax_m2 0.5.14-0.5.20
    "265b66c7038c": Capture.SERVED,  # minimax_m2 0.5.21-0.5.23
    "a27001014b10": Capture.OVERWRITTEN,  # qwen2 0.5.2-0.5.20, qwen2_5_vl 0.5.2-0.5.20, qwen3 0.4.9-0.5.20
    "3ce53aad8152": Capture.SERVED,  # qwen2 0.5.21, qwen2_5_vl 0.5.21, qwen3 0.5.21
    "c20dea4b45ed": Capture.OVERWRITTEN,  # qwen2_moe 0.5.2-0.5.3.post3, qwen3_moe 0.4.9-0.5.3.post3
    "90243db23c80": Capture.OVERWRITTEN,  # qwen2_moe 0.5.4-0.5.4.post1, qwen3_moe 0.5.4-0.5.4.post1
}

# Setters that mark layers one by one: each layer's own communicator captures, boundary 0 too, and the forward has no
# capturing statement to compare (qwen2_moe and qwen3_moe from 0.5.4.post2 on).
MARKING = frozenset({"1d4c1ebb87d5"})

# The statements around the graphs of verify, 0.4.9 to 0.5.10.post1: `srt/model_executor/`.
GRAPH_CALLS = frozenset(
    {
        "d20215fb4408",  # cuda_graph_runner.py, CudaGraphRunner.__init__, 0.4.9-0.5.7
        "180ca10c9bd0",  # 0.5.8-0.5.10.post1
    }
)
DUMMY_CALLS = frozenset(
    {
        "72d71228f8e7",  # model_runner.py, ModelRunner._dummy_run, 0.5.6-0.5.7
        "6efb858e7edf",  # 0.5.8-0.5.10.post1
    }
)
# ModelRunner.initialize: the statement that captures the graphs, and the later one that reads and sets the ids.
LATE_IDS = frozenset(
    {
        ("1804a52a68d4", "c22602de7897"),  # 0.4.9-0.4.10.post2
        ("48921b887095", "c22602de7897"),  # 0.5.1-0.5.1.post3
        ("145123603449", "c22602de7897"),  # 0.5.2-0.5.5.post3
        ("c82f65d53a78", "82519c7a9cf6"),  # 0.5.6-0.5.7
    }
)
# ModelRunner.__init__ of 0.5.8-0.5.10.post1: the statement that reads the ids before `initialize` is called.
EARLY_IDS = frozenset({"cae5d799b9ad"})
