"""Evidence: what was read or measured about one draft on one server, as typed records. The input of every verdict.

Six kinds by letter: L lint, T accuracy on training states, S accuracy on served states, C slot comparison,
P acceptance in the running server, R cost of a round. Every record names its source, and a number its counting rule,
its sample size and, where known, its 95 % interval. Everything is optional: people bring what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from wiring.diagnosis.evidence_configs import Config

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Phase = Literal["prefill", "verify", "draft_extend"]
Value = bool | int | float | str

CONDITIONS: dict[str, str] = {
    "cached": "the prompt's prefix was in the cache (true) or the cache was empty (false)",
    "prefix_cache": "the server's prefix cache is on (true) or switched off (false)",
    "prompt_tokens": "length of the prompt in tokens (for a bucket its upper end)",
    "batch": "requests that run at the same time",
    "temperature": "sampling temperature",
    "hours": "hours since the server's start",
    "after_chunk": "the first round after a prefill in several chunks (true), or a later one (false)",
    "chunked": "prefill in several chunks (true) or in one (false)",
    "handed_over": "the request came from a prefill server (true), or one server did both (false)",
    "first_round": "the first round after the prefill (true), or later ones (false)",
    "cuda_graphs": "CUDA graphs on (true) or eager (false)",
    "tp": "tensor parallel size",
    "dp": "data parallel size of the attention",
    "pp": "pipeline stages",
    "fused_all_reduce": "all-reduce fused with the norm (true) or not (false)",
    "topk": "branches per draft step",
    "steps": "draft steps per round",
    "draft_tokens": "tokens verified per round, root included",
    "engine": "name of the engine",
    "version": "version of the engine",
    "attention_backend": "name of the attention backend",
    "draft_kv_dtype": "dtype of the draft's KV cache",
    "target_quantisation": "quantisation of the target, or none",
    "draft_quantisation": "quantisation of the draft, or none",
    "domain": "what the text is about: chat, code, Chinese, ...",
    "images": "prompts with images (true) or text alone (false)",
    "template": "prompts in the chat template (true) or raw (false)",
    "prompts": "name of the prompt set",
    "head": "name of the draft, where two drafts are compared on the same server",
    "draft_experts": "how many experts a verify step reads, or another name of a cost arm",
    "server": "drafts of the running server (true), or of the draft alone along the same text (false): a replay",
    "acceptance_rule": "how a draft is accepted: strict match, rejection sampling, ...",
}


def _known_condition(name: str) -> str:
    if name not in CONDITIONS:
        raise ValueError(f"no condition of the name {name}; there are {', '.join(CONDITIONS)}")
    return name


_NUMBERS = frozenset("prompt_tokens batch temperature hours tp dp pp topk steps draft_tokens".split())


def _known_conditions(condition: Mapping[str, Value]) -> Mapping[str, Value]:
    for name, value in condition.items():
        _known_condition(name)
        _of_type(name, value, float if name in _NUMBERS else bool if "(true)" in CONDITIONS[name] else str)
    return dict(sorted(condition.items()))


def _of_type(name: str, value: Value, wanted: type) -> None:
    """Refuse a number for a truth value and the like; a name may be written as a number."""
    is_bool, is_number = isinstance(value, bool), isinstance(value, int | float) and not isinstance(value, bool)
    if (wanted is bool and not is_bool) or (wanted is float and not is_number) or (wanted is str and is_bool):
        told = {bool: "true or false", float: "a number", str: "a name"}[wanted]
        raise ValueError(f"{name} is {told}, not {value!r}")


# what a number was measured under
Condition = Annotated[Mapping[str, Value], AfterValidator(_known_conditions)]


class Record(BaseModel):
    """One piece of evidence. `source` says where it came from: a command, a file and line, a report's address."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    source: str = Field(min_length=1)


class Lint(Record):
    """L: one finding of files, configs or resolved arguments; `kind` numbers a fault (`wiring.engines.faults`).

    0 is a note that tells of no fault.
    """

    kind: Annotated[int, Field(ge=0, le=25)]
    severity: Literal["error", "warning", "note"]
    where: str = ""
    evidence: str

    @model_validator(mode="after")
    def _a_fault_has_a_kind(self) -> Lint:
        if not self.kind and self.severity != "note":
            raise ValueError(f"kind 0 is a note, not an {self.severity}")
        return self


class Argument(Record):
    """L: a server argument as it was asked for and as the server resolved it."""

    name: str
    asked: int | float | str | bool | None
    resolved: int | float | str | bool | None


class Accuracy(Record):
    """T (on training states) or S (on states that the server fed): share of right proposals at one draft depth.

    `depth` counts from 0. `conditional`: only rows whose earlier depths were right. `control`: how the input was spoilt
    ("" as it is, "shifted +1", "permuted", "other_sequence", "zeroed", "layout 3,31,59"). `text` says on what:
    "training" (a sample of the trainer's own set), "held_out" (same distribution, not trained on), "served" (the
    server's own traffic), "other". `claimed`: the trainer's own figure, not measured here.
    """

    side: Literal["T", "S"]
    depth: Annotated[int, Field(ge=0)] = 0
    accuracy: Share
    low: Share | None = None
    high: Share | None = None
    rows: Count | None = None
    rule: str = ""
    conditional: bool = False
    control: str = ""
    text: Literal["training", "held_out", "served", "other"] = "held_out"
    claimed: bool = False
    condition: Condition = Field(default_factory=dict)


class Slot(Record):
    """C: what one slot of the draft's fc was fed, beside what it was trained on.

    `wanted`, `boundary`: boundaries (None: unknown, or no boundary fits). `shift` in tokens and `transform` ("raw",
    "normed", "rms-scaled", "embedding-scaled", "hidden only", ...) as matched. `cosine` and `norm_ratio` against the
    match; `cosine_wanted`, `norm_ratio_wanted` against the wanted boundary as it should be. `ranks_agree`: all ranks
    hold the same.
    """

    phase: Phase = "prefill"
    slot: Annotated[int, Field(ge=0)]
    wanted: int | None = None
    boundary: int | None = None
    shift: int = 0
    transform: str = "raw"
    cosine: float | None = None
    norm_ratio: float | None = None
    cosine_wanted: float | None = None
    norm_ratio_wanted: float | None = None
    ranks_agree: bool | None = None
    rows: Count | None = None
    condition: Condition = Field(default_factory=dict)


class Acceptance(Record):
    """P: what verify rounds accepted, by one rule: drafts only, the bonus token apart.

    `accept_length` = 1 + accepted drafts / rounds (bonus included, so 1.0 means that nothing was accepted);
    `by_position[k]` = share of all rounds that accepted at least k + 1 drafts (marginal). `proposed`: drafts per round
    along one path (K; for a chain the number of draft steps). `impossible`: a figure that no counting rule explains.
    """

    accept_length: float | None = None
    by_position: tuple[Share, ...] = ()
    rounds: Count | None = None
    proposed: Count | None = None
    rule: str = ""
    impossible: str = ""
    condition: Condition = Field(default_factory=dict)


class Difference(Record):
    """P: two arms that differ in one condition, compared request by request, as `wiring ab` does.

    `by` is a name of CONDITIONS, `a` and `b` its two values; `low`, `high` bound b's accept length less a's (95 %);
    `p_value`: share of relabellings that differ as much. `condition`: what both arms share.
    """

    by: Annotated[str, AfterValidator(_known_condition)]
    a: Value
    b: Value
    accept_length_a: float
    accept_length_b: float
    low: float | None = None
    high: float | None = None
    p_value: Share
    condition: Condition = Field(default_factory=dict)


class Speed(Record):
    """R: how fast one arm was. `arm` is "plain" (no draft), "draft", or "forced" (draft work with acceptance forced).

    `tok_per_s` at the client, batch as in `condition`; `step_s` seconds of a plain decode step, `round_s` of a round;
    `round_steps` the price of a round in plain steps, where only the ratio is known; `speedup` over plain, with its
    95 % interval `low`, `high` (`high` alone: all that is known is that it is no faster).
    """

    arm: Literal["plain", "draft", "forced"]
    tok_per_s: Annotated[float, Field(ge=0)] | None = None  # a log tells 0 of an idle moment
    step_s: Positive | None = None
    round_s: Positive | None = None
    round_steps: Positive | None = None
    speedup: Positive | None = None
    accept_length: float | None = None
    low: float | None = None
    high: float | None = None
    condition: Condition = Field(default_factory=dict)


def _known_fact(name: str) -> str:
    if name not in FACTS:
        raise ValueError(f"no fact of the name {name}; there are {', '.join(FACTS)}")
    return name


class Fact(Record):
    """Something seen that is not a number of the other records; names and meanings in `FACTS`.

    `letter`: the kind of evidence that it belongs to.
    """

    letter: Literal["L", "T", "S", "C", "P", "R"]
    name: Annotated[str, AfterValidator(_known_fact)]
    value: Value

    @model_validator(mode="after")
    def _value_of_its_type(self) -> Fact:
        told = FACTS[self.name]
        _of_type(self.name, self.value, bool if "(bool)" in told else str if "(str)" in told else float)
        if self.name == "draft_departs_at" and self.value not in DRAFT_PARTS:
            raise ValueError(f"draft_departs_at is one of {', '.join(DRAFT_PARTS)}, not {self.value!r}")
        return self


# parts of a draft's forward, in the order of computing
DRAFT_PARTS = ("embedding", "weights", "norm", "rotation", "attention", "residual", "cache rows", "map", "nothing")

FACTS: dict[str, str] = {
    "outputs_equal_plain": "with the draft the server writes the same greedy text as without (bool)",
    "text_broken": "the text itself is garbage, for example '!!!!' (bool)",
    "unique_bigram_share": "distinct bigrams of the measured text over all of them (0..1)",
    "prompts": "how many different prompts a benchmark used (int)",
    "prompts_templated": "the benchmark applied the chat template (bool)",
    "warmed_up": "the benchmark warmed the server up before it measured (bool)",
    "random_prompts": "the benchmark's prompts are random token ids (bool)",
    "drafted_ids_share_top": "share of the most frequent id among the drafted ids (0..1)",
    "drafted_ids_low": "share of drafted ids below draft_vocab_size (0..1)",
    "nonfinite_logits": "logits or states held NaN or infinity (bool)",
    "embedding_equals_target": "the draft's embedding equals the target's (bool)",
    "embedding_cosine": "mean row cosine of the draft's embedding and the target's",
    "embedding_ranks_agree": "all ranks use the same embedding (bool)",
    "map_present": "the checkpoint holds d2t or t2d (bool)",
    "map_changed": "d2t differs from the map the lm_head was trained with (bool)",
    "map_coverage": "share of served tokens that the draft vocabulary covers (0..1)",
    "tensors_unused": "tensors of the checkpoint that the engine does not read (int)",
    "load_quantisation": "quantisation of the draft in the server's load line (str)",
    "loss_mask_tokens": "mean number of tokens per sample that the loss mask names (float)",
    "mask_aligned": "the loss mask is shifted together with the labels (bool)",
    "templates_equal": "rendered training prompt and serving prompt have the same tokens (bool)",
    "target_changed": "the served target is not the one that the draft was trained on (bool)",
    "map_from_training": "the draft vocabulary is by frequency (bool); false: it is the first ids",
    "other_engine_fine": "the same draft and target have a good accept length in another engine (bool)",
    "other_head_fine": "another draft of the same kind has a good accept length on the same server (bool)",
    "spec_algorithm": "the algorithm that the server was started with (str)",
    "draft_architecture": "the draft's architecture (str)",
    "cosine_falls_with_depth": "slot cosine falls smoothly with the boundary's depth (bool)",
    "first_answer_position_low": "accuracy at the first generated position alone is far below the rest (bool)",
    "restart_cures": "a restart or an emptied cache brings the accept length back (bool)",
    "lint_made": "`wiring lint` saw draft, target and engine: what it did not find of their files is not there (bool)",
    "fc_slots": "states that fc takes, by its weight's shape (int)",
    "fc_slots_served": "states that the engine builds fc for, or feeds it (int)",
    "draft_departs_at": "first part of the engine's draft that differs from a reference forward of the same head on "
    f"the same inputs: {', '.join(DRAFT_PARTS)} (str)",
}


class Setting(BaseModel):
    """The frame of a case; every field optional. Layouts are boundaries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str | None = None
    version: str | None = None
    steps: Count | None = None
    topk: Count | None = None
    draft_tokens: Count | None = None
    batch: AtLeastOne | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    cuda_graphs: bool | None = None
    tp: AtLeastOne | None = None
    draft_kv_dtype: str | None = None
    draft_quantisation: str | None = None
    target_quantisation: str | None = None
    trained_layout: tuple[Count, ...] | None = None
    served_layout: dict[Phase, tuple[Count, ...] | None] | None = None
    draft_config: Config | None = None
    target_config: Config | None = None


class Evidence(BaseModel):
    """Everything known about one case; every part optional.

    `log`: lines as they come from a server, read by `wiring.logs`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    name: str = ""
    setting: Setting = Setting()
    lint: tuple[Lint, ...] = ()
    arguments: tuple[Argument, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    slots: tuple[Slot, ...] = ()
    acceptance: tuple[Acceptance, ...] = ()
    differences: tuple[Difference, ...] = ()
    speed: tuple[Speed, ...] = ()
    facts: tuple[Fact, ...] = ()
    log: tuple[str, ...] = ()
