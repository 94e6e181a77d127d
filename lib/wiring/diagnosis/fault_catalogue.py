"""The catalogue of faults: mechanism, place, confirming check, remedy and public reports of each.

Numbers and names are those of `wiring.engines.faults`; `symptom_table` says which symptoms each fault causes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from wiring.diagnosis.next_checks import CHECKS, NextCheck
from wiring.diagnosis.symptom_table import SYMPTOMS
from wiring.engines.faults import FAULTS


@dataclass(frozen=True)
class Fault:
    """One fault.

    `check_name`: the cheapest check that confirms it. `reports`: public threads, owner/repository#number. `slows`: the
    fault alone can make decoding with the draft slower than without.
    """

    number: int
    mechanism: str
    where: str
    check_name: str
    remedy: str
    reports: tuple[str, ...]
    slows: bool = True

    @property
    def name(self) -> str:
        """Name of the fault."""
        return FAULTS[self.number]

    @property
    def check(self) -> NextCheck:
        """The cheapest check that confirms the fault."""
        return CHECKS[self.check_name]

    @cached_property
    def always(self) -> frozenset[str]:
        """Symptoms that the fault causes wherever they can be measured."""
        return frozenset(name for name, row in SYMPTOMS.items() if self.number in row.always)

    @cached_property
    def causes(self) -> frozenset[str]:
        """All symptoms that the fault can cause."""
        may = {name for name, row in SYMPTOMS.items() if self.number in row.may}
        return self.always | may | ({"slower_than_plain"} if self.slows else set())

    @cached_property
    def against(self) -> frozenset[str]:
        """Symptoms that count against the fault."""
        return frozenset(name for name, row in SYMPTOMS.items() if self.number in row.against)


_REPOSITORIES = {
    "automodel": "NVIDIA-NeMo/Automodel",
    "baldeagle": "NickL77/BaldEagle",
    "eagle": "SafeAILab/EAGLE",
    "imp": "kekzl/imp",
    "inferencex": "SemiAnalysisAI/InferenceX",
    "llama_cpp": "ggml-org/llama.cpp",
    "mlc_llm": "mlc-ai/mlc-llm",
    "mlx_lm": "ml-explore/mlx-lm",
    "sglang": "sgl-project/sglang",
    "specforge": "sgl-project/SpecForge",
    "speculators": "vllm-project/speculators",
    "tokenspeed": "lightseekorg/tokenspeed",
    "torchspec": "lightseekorg/TorchSpec",
    "verl_speco": "verl-project/verl-SpeCo",
    "vllm": "vllm-project/vllm",
    "vllm_ascend": "vllm-project/vllm-ascend",
    "vllm_rbln": "RBLN-SW/vllm-rbln",
    "xserv": "gitea.gahow.org/gahow/xserv",
}


def _reports(**numbers: int | tuple[int, ...] | None) -> tuple[str, ...]:
    """Return the threads of each repository; None: the repository itself."""
    return tuple(
        _REPOSITORIES[name] if number is None else f"{_REPOSITORIES[name]}#{number}"
        for name, several in numbers.items()
        for number in (several if isinstance(several, tuple) else (several,))
    )


_ROWS = (
    Fault(
        1,
        "the draft's layer ids are missing, nested elsewhere or ignored, so the default layers or those of "
        "another id convention are captured; possibly in one phase only (verify under CUDA graphs)",
        "the draft's config, the engine's code",
        "lint",
        "Write the trained layers' ids where the engine reads them, in its id convention, and confirm by capture",
        _reports(vllm=50170, tokenspeed=526, llama_cpp=27040, vllm_rbln=831, sglang=22836),
    ),
    Fault(
        2,
        "training and serving differ in whether an id names the input or the output of a layer: every slot holds "
        "the neighboring boundary",
        "the draft's config, the engine's code",
        "capture",
        "Move the ids by one, and document which convention they follow",
        _reports(sglang=25454),
    ),
    Fault(
        3,
        "the order or number of states differs from what fc was trained on, or fc has another width",
        "the draft's config, the engine's code",
        "lint",
        "Give the ids in the order and number of training, on an engine that keeps both",
        _reports(speculators=1065, vllm=(54526, 54598)),
    ),
    Fault(
        4,
        "states are captured before the all-reduce, gathered over the wrong group, or dropped at a pipeline stage",
        "the engine's code, with several ranks or stages",
        "fusion off",
        "Capture after the all-reduce: switch its fusion off, or use a release that does so",
        _reports(sglang=(28343, 20492), vllm=(53052, 50514)),
    ),
    Fault(
        5,
        "the state is captured on the wrong side of a norm, without the residual, or after the final norm",
        "the engine's code",
        "capture",
        "Capture the state at the point where training captured it",
        _reports(vllm=14464, xserv=None),
    ),
    Fault(
        6,
        "the served target computes other values than the target in training: norms in low precision, quantized "
        "or rotated weights",
        "the engine's code, the target's checkpoint",
        "capture",
        "Compute the norms in float32, undo the rotation for the draft, or train it on the states as served",
        _reports(sglang=27540, vllm_ascend=7038, vllm=9534),
    ),
    Fault(
        7,
        "the server runs another speculative algorithm than the draft was trained for, such as EAGLE for an "
        "EAGLE-3 draft",
        "the server's arguments, the draft's config",
        "lint",
        "Start the server with the draft's own algorithm",
        _reports(sglang=21272),
    ),
    Fault(
        8,
        "the draft's embedding is random, belongs to another model, or is shared on some ranks only",
        "the draft's checkpoint, the engine's sharing rule",
        "lint",
        "Export the trained embedding with the draft, or let every rank take the target's",
        _reports(torchspec=38, vllm=(50158, 28549), vllm_ascend=7038),
    ),
    Fault(
        9,
        "the map from the draft's vocabulary to the target's is missing, regenerated, or covers only the first ids",
        "the draft's checkpoint, its training",
        "lint",
        "Ship the map that the lm_head was trained with",
        _reports(automodel=2447, verl_speco=66, specforge=(534, 300)),
    ),
    Fault(
        10,
        "a norm or residual of the draft is applied in training but not in serving, or the reverse",
        "the draft's config, the engine's code",
        "lint",
        "Set the draft's norm flags as in training, on an engine that applies them",
        _reports(vllm=(14464, 9565, 42764), specforge=879, xserv=None),
    ),
    Fault(
        11,
        "the draft is loaded with the target's quantization, or its own dtype is lost",
        "the server's arguments, the engine's code",
        "load line",
        "Set the draft's own quantization argument, or none",
        _reports(sglang=(34622, 28196), vllm=(49133, 9534)),
    ),
    Fault(
        12,
        "the draft's KV cache is stored in a small dtype without scales",
        "the server's arguments",
        "draft KV dtype",
        "Keep the draft's KV cache in bfloat16",
        _reports(vllm=(24505, 32165)),
    ),
    Fault(
        13,
        "the draft's positions are wrong: RoPE scaling dropped, trained context exceeded, multimodal positions, "
        "window ignored",
        "the draft's config, the engine's code",
        "lengths",
        "Copy the RoPE settings to the draft; beyond its trained context switch it off or train it on longer text",
        _reports(speculators=(574, 684), sglang=6783, vllm=47602, specforge=310),
    ),
    Fault(
        14,
        "a state is paired with its own token although training paired it with the next one, or labels are shifted",
        "the training code, the engine's code",
        "capture",
        "Shift the states by one token where they are paired with tokens",
        _reports(xserv=None, specforge=885, mlc_llm=2266),
    ),
    Fault(
        15,
        "the draft's KV cache holds rows of another request or an older state where the prefix is cached",
        "the engine's code",
        "cache",
        "Switch the prefix cache off for speculation, or use a release with the next token in its cache key",
        _reports(sglang=(10846, 19897, 28771)),
    ),
    Fault(
        16,
        "the draft's state is wrong at the end of a prefill chunk, or the prefill server does not transfer it",
        "the engine's code",
        "chunks",
        "Prefill in one chunk on one server, or use a release that transfers the draft's state",
        _reports(sglang=(26329, 7242, 10616, 13590)),
    ),
    Fault(
        17,
        "the draft continues from a wrong KV row: of its own approximation, of a wrong parent, of a rejected draft",
        "the engine's code",
        "counters",
        "Write the accepted tokens' KV from the target's states, with the selected parents; until then draft a chain",
        _reports(vllm=(14649, 14990), sglang=8409, imp=175),
    ),
    Fault(
        18,
        "rows of a replayed CUDA graph or of a batch are mixed up: stale padding, wrong indices",
        "the engine's code",
        "batch 1",
        "Run without the draft's CUDA graph, or use a release that clears the padding",
        _reports(vllm=17504, sglang=18647),
    ),
    Fault(
        19,
        "an attention backend computes other values, or NaN",
        "the engine's code",
        "text",
        "Use another attention backend",
        _reports(sglang=(4724, 19796), vllm=9534),
    ),
    Fault(
        20,
        "greedy drafts must match a sampled token, so acceptance falls with the temperature",
        "the server's arguments, the engine's code",
        "temperature 0",
        "Use rejection sampling, or temperature 0",
        _reports(vllm=(16899, 40551, 27077), mlx_lm=1085),
    ),
    Fault(
        21,
        "the server changes the speculation arguments, for example draft tokens to steps + 1 with top-k 1",
        "the server's arguments",
        "lint",
        "Read the resolved values, and request the intended ones explicitly",
        _reports(sglang=8801),
        slows=False,
    ),
    Fault(
        22,
        "the draft was trained on other text than it serves: template, thinking mode, language, domain or target",
        "the training data",
        "rendered prompts",
        "Generate the training answers with the served target, in the serving template",
        _reports(specforge=296, eagle=(179, 98, 196), baldeagle=17),
    ),
    Fault(
        23,
        "training is defective: loss mask, too little data, other inputs at depth than in serving, a wrong metric",
        "the training code and data",
        "loss mask",
        "Correct the mask and the inputs at depth, and train on more of the target's own answers",
        _reports(specforge=(885, 392, 128, 492), eagle=286, speculators=818),
    ),
    Fault(
        24,
        "a round costs more than its drafts save: experts, pipeline stages, graph limits, a tree at large batch, "
        "overhead",
        "the server's arguments, the engine's code",
        "round cost",
        "Use fewer draft steps or tokens, CUDA graphs for every served batch size, and no tree at large batch",
        _reports(sglang=(15307, 12411, 5274), vllm=44697, vllm_ascend=16638),
    ),
    Fault(
        25,
        "the benchmark measures something else: random ids, no template, looping text, one prompt, cold start, "
        "another definition of the figure",
        "the benchmark",
        "benchmark",
        "Use five or more prompts in the chat template, warm up, and recompute the figures from counters",
        _reports(inferencex=1737, tokenspeed=1132, speculators=793, eagle=153, vllm=52536),
    ),
)

FAULT_CATALOGUE: Mapping[int, Fault] = MappingProxyType({fault.number: fault for fault in _ROWS})
