"""Typed records of what was read or measured about one draft on one server: the input of a diagnosis.

Types of evidence have letters: L lint, T accuracy on training states, S accuracy on served states, C slot
comparison, P acceptance in the running server, R cost of a round. Every record names its source, and a number its
counting rule, its sample size and, where known, its 95 % interval. Everything is optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Phase = Literal["prefill", "verify", "draft_extend"]
Value = bool | int | float | str


class Meaning(NamedTuple):
    """Type of a condition's or a fact's value, and what it means."""

    type: type
    text: str


CONDITIONS: dict[str, Meaning] = {
    "cached": Meaning(bool, "the prompt's prefix was in the cache (true) or the cache was empty (false)"),
    "prefix_cache": Meaning(bool, "the server's prefix cache is on (true) or off (false)"),
    "prompt_tokens": Meaning(float, "length of the prompt in tokens (for a bucket its upper end)"),
    "batch": Meaning(float, "concurrent requests"),
    "temperature": Meaning(float, "sampling temperature"),
    "hours": Meaning(float, "hours since the server's start"),
    "after_chunk": Meaning(bool, "the first round after a prefill in several chunks (true), or a later one (false)"),
    "chunked": Meaning(bool, "prefill in several chunks (true) or in one (false)"),
    "handed_over": Meaning(bool, "another server ran the prefill (true), or one server did both (false)"),
    "first_round": Meaning(bool, "the first round after the prefill (true), or later ones (false)"),
    "cuda_graphs": Meaning(bool, "CUDA graphs on (true) or eager (false)"),
    "tp": Meaning(float, "tensor parallel size"),
    "dp": Meaning(float, "data parallel size of the attention"),
    "pp": Meaning(float, "pipeline stages"),
    "fused_all_reduce": Meaning(bool, "all-reduce is fused with the norm (true) or not (false)"),
    "topk": Meaning(float, "branches per draft step"),
    "steps": Meaning(float, "draft steps per round"),
    "draft_tokens": Meaning(float, "tokens verified per round, root included"),
    "engine": Meaning(str, "name of the engine"),
    "version": Meaning(str, "version of the engine"),
    "attention_backend": Meaning(str, "name of the attention backend"),
    "draft_kv_dtype": Meaning(str, "dtype of the draft's KV cache"),
    "target_quantisation": Meaning(str, "quantization of the target, or none"),
    "draft_quantisation": Meaning(str, "quantization of the draft, or none"),
    "domain": Meaning(str, "topic of the text: chat, code, Chinese, ..."),
    "images": Meaning(bool, "prompts with images (true) or text only (false)"),
    "template": Meaning(bool, "prompts in the chat template (true) or raw (false)"),
    "prompts": Meaning(str, "name of the prompt set"),
    "head": Meaning(str, "name of the draft, where two drafts are compared on the same server"),
    "draft_experts": Meaning(str, "number of experts that a verify step reads, or another name of a cost arm"),
    "server": Meaning(
        bool, "drafts of the running server (true), or of the draft alone on the same text (false): a replay"
    ),
    "acceptance_rule": Meaning(str, "how a draft is accepted: strict match, rejection sampling, ..."),
}


def _known(name: str, names: Mapping[str, Meaning], what: str) -> str:
    if name not in names:
        raise ValueError(f"unknown {what} {name}; known are {', '.join(names)}")
    return name


def _check_type(name: str, value: Value, wanted: type) -> None:
    """Reject a number for a truth value and the like; a name may be written as a number."""
    is_bool = isinstance(value, bool)
    fits = {bool: is_bool, float: isinstance(value, int | float) and not is_bool, str: not is_bool}
    if not fits[wanted]:
        words = {bool: "true or false", float: "a number", str: "a name"}[wanted]
        raise ValueError(f"{name} must be {words}, not {value!r}")


def _check_conditions(condition: Mapping[str, Value]) -> Mapping[str, Value]:
    for name, value in condition.items():
        _check_type(name, value, CONDITIONS[_known(name, CONDITIONS, "condition")].type)
    return dict(sorted(condition.items()))


# conditions that a number was measured under
Condition = Annotated[Mapping[str, Value], AfterValidator(_check_conditions)]


class Record(BaseModel):
    """One piece of evidence. `source` names its origin: a command, a file and line, the address of a report."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    source: str = Field(min_length=1)


class LintRecord(Record):
    """L: one finding in files, configs or resolved arguments.

    `kind` is a fault number of `wiring.engines.faults`; 0 is a note without a fault.
    """

    kind: Annotated[int, Field(ge=0, le=25)]
    severity: Literal["error", "warning", "note"]
    where: str = ""
    evidence: str

    @model_validator(mode="after")
    def _only_notes_have_no_fault(self) -> LintRecord:
        if not self.kind and self.severity != "note":
            raise ValueError(f"kind 0 is a note, not {self.severity}")
        return self


class ArgumentRecord(Record):
    """L: a server argument as requested (`asked`) and as the server resolved it."""

    name: str
    asked: int | float | str | bool | None
    resolved: int | float | str | bool | None


class AccuracyRecord(Record):
    """T (on training states) or S (on states that the server fed): share of correct proposals at one draft depth.

    `depth` counts from 0. `conditional`: only rows whose earlier depths were correct. `control`: how the input was
    corrupted ("" not at all, "shifted +1", "permuted", "other_sequence", "zeroed", "layout 3,31,59"). `text`:
    "training" (a sample of the trainer's set), "held_out" (same distribution, not trained on), "served" (the server's
    traffic), "other". `claimed`: the trainer's figure, not measured here.
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


class SlotRecord(Record):
    """C: what one slot of the draft's fc was fed, and what it was trained on.

    `wanted`, `boundary`: boundaries (None: unknown, or none matches). `shift` in tokens and `transform` ("raw",
    "normed", "rms-scaled", "embedding-scaled", "hidden only", ...) of the match. `cosine` and `norm_ratio` to the
    match; `cosine_wanted`, `norm_ratio_wanted` to the wanted boundary. `ranks_agree`: all ranks hold the same.
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


class AcceptanceRecord(Record):
    """P: what verify rounds accepted.

    `accept_length` = 1 + accepted drafts / rounds (bonus token included, so 1.0 means that nothing was accepted);
    `by_position[k]` = share of all rounds that accepted at least k + 1 drafts (marginal). `proposed`: drafts per round
    along one path (K; for a chain the number of draft steps). `impossible`: why a figure breaks its counting rule.
    """

    accept_length: float | None = None
    by_position: tuple[Share, ...] = ()
    rounds: Count | None = None
    proposed: Count | None = None
    rule: str = ""
    impossible: str = ""
    condition: Condition = Field(default_factory=dict)


class DifferenceRecord(Record):
    """P: two arms that differ in one condition, compared request by request, as `wiring ab` does.

    `by` is a name of CONDITIONS, `a` and `b` its two values; `low`, `high` bound b's accept length minus a's (95 %);
    `p_value`: share of relabelings that differ as much. `condition`: what both arms share.
    """

    by: Annotated[str, AfterValidator(lambda name: _known(name, CONDITIONS, "condition"))]
    a: Value
    b: Value
    accept_length_a: float
    accept_length_b: float
    low: float | None = None
    high: float | None = None
    p_value: Share
    condition: Condition = Field(default_factory=dict)


class SpeedRecord(Record):
    """R: speed of one arm: "plain" (no draft), "draft", or "forced" (draft work with acceptance forced).

    `tok_per_s` at the client, batch as in `condition`; `step_s` seconds of a plain decode step, `round_s` of a round;
    `round_steps` the cost of a round in plain steps, where only the ratio is known; `speedup` over plain, with its 95 %
    interval `low`, `high` (`high` alone: an upper bound).
    """

    arm: Literal["plain", "draft", "forced"]
    tok_per_s: Annotated[float, Field(ge=0)] | None = None  # 0: an idle interval of a log
    step_s: Positive | None = None
    round_s: Positive | None = None
    round_steps: Positive | None = None
    speedup: Positive | None = None
    accept_length: float | None = None
    low: float | None = None
    high: float | None = None
    condition: Condition = Field(default_factory=dict)


class FactRecord(Record):
    """An observation that no other record holds; names and meanings in `FACTS`. `letter`: its type of evidence."""

    letter: Literal["L", "T", "S", "C", "P", "R"]
    name: Annotated[str, AfterValidator(lambda name: _known(name, FACTS, "fact"))]
    value: Value

    @model_validator(mode="after")
    def _value_of_its_type(self) -> FactRecord:
        _check_type(self.name, self.value, FACTS[self.name].type)
        if self.name == "draft_departs_at" and self.value not in DRAFT_PARTS:
            raise ValueError(f"draft_departs_at must be one of {', '.join(DRAFT_PARTS)}, not {self.value!r}")
        return self


# parts of a draft's forward, in order of computation
DRAFT_PARTS = ("embedding", "weights", "norm", "rotation", "attention", "residual", "cache rows", "map", "nothing")

FACTS: dict[str, Meaning] = {
    "outputs_equal_plain": Meaning(bool, "the server writes the same greedy text with and without the draft"),
    "text_broken": Meaning(bool, "the generated text is garbage, for example '!!!!'"),
    "unique_bigram_share": Meaning(float, "distinct bigrams of the measured text over all of them (0..1)"),
    "prompts": Meaning(float, "number of different prompts of a benchmark"),
    "prompts_templated": Meaning(bool, "the benchmark applied the chat template"),
    "warmed_up": Meaning(bool, "the benchmark warmed up the server before it measured"),
    "random_prompts": Meaning(bool, "the benchmark's prompts are random token ids"),
    "drafted_ids_share_top": Meaning(float, "share of the most frequent id among the drafted ids (0..1)"),
    "drafted_ids_low": Meaning(float, "share of drafted ids below draft_vocab_size (0..1)"),
    "nonfinite_logits": Meaning(bool, "logits or states held NaN or infinity"),
    "embedding_equals_target": Meaning(bool, "the draft's embedding equals the target's"),
    "embedding_cosine": Meaning(float, "mean row cosine of the draft's embedding and the target's"),
    "embedding_ranks_agree": Meaning(bool, "all ranks use the same embedding"),
    "map_present": Meaning(bool, "the checkpoint holds d2t or t2d"),
    "map_changed": Meaning(bool, "d2t differs from the map the lm_head was trained with"),
    "map_coverage": Meaning(float, "share of served tokens that the draft vocabulary covers (0..1)"),
    "tensors_unused": Meaning(float, "tensors of the checkpoint that the engine does not read"),
    "load_quantisation": Meaning(str, "quantization of the draft in the server's load line"),
    "loss_mask_tokens": Meaning(float, "mean number of tokens per sample that the loss mask selects"),
    "mask_aligned": Meaning(bool, "the loss mask is shifted together with the labels"),
    "templates_equal": Meaning(bool, "rendered training prompt and serving prompt have the same tokens"),
    "target_changed": Meaning(bool, "the served target is not the one that the draft was trained on"),
    "map_from_training": Meaning(bool, "the draft vocabulary is chosen by frequency; false: it is the first ids"),
    "other_engine_fine": Meaning(bool, "the same draft and target have a good accept length in another engine"),
    "other_head_fine": Meaning(bool, "another EAGLE-3 draft has a good accept length on the same server"),
    "spec_algorithm": Meaning(str, "the algorithm that the server was started with"),
    "draft_architecture": Meaning(str, "the draft's architecture"),
    "cosine_falls_with_depth": Meaning(bool, "slot cosine falls smoothly with the boundary's depth"),
    "first_answer_position_low": Meaning(bool, "accuracy at the first generated position alone is far below the rest"),
    "restart_cures": Meaning(bool, "a restart or an emptied cache restores the accept length"),
    "lint_made": Meaning(
        bool, "`wiring lint` read draft, target and engine, so what it did not report about their files is absent"
    ),
    "fc_slots": Meaning(float, "states that fc takes, by the shape of its weight"),
    "fc_slots_served": Meaning(float, "states that the engine builds fc for, or feeds it"),
    "draft_departs_at": Meaning(
        str,
        "first part of the engine's draft that differs from a reference forward on the same inputs: "
        + ", ".join(DRAFT_PARTS),
    ),
}


@with_config(ConfigDict(extra="allow", strict=True))
class ModelConfig(TypedDict, total=False):
    """A parsed config.json; only the fields that a layer rule reads are checked, null is as good as absent."""

    architectures: list[str] | None
    eagle_aux_hidden_state_layer_ids: list[int] | None
    eagle_config: ModelConfig | None
    text_config: ModelConfig | None
    llm_config: ModelConfig | None
    num_hidden_layers: AtLeastOne | None
    num_aux_hidden_states: AtLeastOne | None
    vocab_size: AtLeastOne | None
    draft_vocab_size: AtLeastOne | None


class Setting(BaseModel):
    """The setting of a case; every field is optional. Layouts are boundaries."""

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
    draft_config: ModelConfig | None = None
    target_config: ModelConfig | None = None


class Evidence(BaseModel):
    """Everything known about one case; every part is optional. `log`: lines of a server, read by `wiring.logs`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    name: str = ""
    setting: Setting = Setting()
    lint: tuple[LintRecord, ...] = ()
    arguments: tuple[ArgumentRecord, ...] = ()
    accuracy: tuple[AccuracyRecord, ...] = ()
    slots: tuple[SlotRecord, ...] = ()
    acceptance: tuple[AcceptanceRecord, ...] = ()
    differences: tuple[DifferenceRecord, ...] = ()
    speed: tuple[SpeedRecord, ...] = ()
    facts: tuple[FactRecord, ...] = ()
    log: tuple[str, ...] = ()


# fields of `Evidence` that hold records, by the type of the record
PARTS: dict[type[Record], str] = {
    LintRecord: "lint",
    ArgumentRecord: "arguments",
    AccuracyRecord: "accuracy",
    SlotRecord: "slots",
    AcceptanceRecord: "acceptance",
    DifferenceRecord: "differences",
    SpeedRecord: "speed",
    FactRecord: "facts",
}
