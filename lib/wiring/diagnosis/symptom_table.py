"""The table of symptoms: weight in bits, the faults that cause each one, and the checks that decide it.

A weight is in bits and belongs to the symptom, not to a fault: the power of two by which the symptom is likelier under
a fault that causes it than without one. `present` bits count for every fault that causes the symptom, `absent` bits
against every fault that always causes it. A symptom that fits many faults therefore raises them alike, and a symptom
that fits one fault decides. The values are coarse: 5 and 6 for near proof of a fault, 3 and 4 for what few faults
share, 2 for what most of them share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from wiring.engines.faults import FAULTS

Letter = Literal["L", "T", "S", "C", "P", "R"]


@dataclass(frozen=True)
class SymptomRow:
    """One row of the table. `letter` is the type of evidence, `present` and `absent` are weights in bits.

    `always`: faults that cause the symptom wherever it can be measured, so its absence counts against them. `may`:
    faults that cause it in some forms. `against`: faults that it counts against. `checks`: names in
    `next_checks.CHECKS` of the measurements that decide it.
    """

    letter: Letter
    present: float
    absent: float
    checks: tuple[str, ...] = ()
    always: tuple[int, ...] = ()
    may: tuple[int, ...] = ()
    against: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Symptom:
    """A decided symptom: found (`present`), or looked for and not found. An undecided one has no object.

    `name` is a key of `SYMPTOMS`. `certainty` in 0..1 scales the weight: 1 where counts or a file decide, less for a
    figure without counts, 0 where the evidence was examined and cannot decide. `letter` is the type of evidence,
    `text` the reading with its figures, `source` the record that it comes from.
    """

    name: str
    present: bool
    certainty: float
    letter: Letter
    text: str
    source: str

    @property
    def state(self) -> Literal["present", "absent"]:
        """`present` as a word."""
        return "present" if self.present else "absent"


def decide(
    name: str, present: bool | None, text: str, source: str, certainty: float = 1.0, letter: Letter | None = None
) -> Iterator[Symptom]:
    """Yield the symptom, or nothing where `present` is None. `letter`: that of the table unless given."""
    if present is not None:
        yield Symptom(name, present, certainty, letter or SYMPTOMS[name].letter, text, source)


def merge(symptoms: Iterable[Symptom]) -> tuple[Symptom, ...]:
    """Return one symptom of each name, sorted by name, independent of the order and repetition of the input.

    A fault that shows in one place exists, so a present symptom replaces an absent one; then the most certain reading
    counts.
    """
    kept: dict[str, Symptom] = {}
    for symptom in sorted(symptoms, key=lambda s: (s.present, s.certainty, s.text, s.source)):
        kept[symptom.name] = symptom
    return tuple(kept[name] for name in sorted(kept))


def lint_error(fault: int) -> str:
    """Return the name of the symptom "lint found an error of this fault"."""
    return f"lint_error_{fault}"


def lint_warning(fault: int) -> str:
    """Return the name of the symptom "lint found a warning of this fault"."""
    return f"lint_warning_{fault}"


def _row(letter: Letter, present: float, absent: float, checks: str | tuple[str, ...], **faults) -> dict:
    """Return the fields of a `SymptomRow`; a single check or fault may be given without a tuple."""
    several = {"checks": checks, **faults}
    columns = {name: one if isinstance(one, tuple) else (one,) for name, one in several.items()}
    return {"letter": letter, "present": present, "absent": absent, **columns}


LINTED = (1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 21)  # faults that lint can find in files and arguments
# Lint also looks for these, but less reliably: they need the tensors and the arguments of a running server.
LINTED_FILES = (
    "arguments_changed",
    "algorithm_differs",
    "layer_ids_ignored",
    "map_missing",
    "map_arbitrary",
    "embedding_differs",
    "tensors_unused",
)

# Sentences of the symptoms that facts decide, or that a fault always causes.
_TEXTS = {
    # L: files, configs, resolved arguments
    "arguments_changed": "the server runs with other arguments than were requested",
    "algorithm_differs": "the speculative algorithm does not match the draft",
    "map_wrong": "the vocabulary map is missing, changed or arbitrary",
    "map_missing": "the draft's vocabulary is smaller than the target's, and the checkpoint has no map",
    "map_changed": "the vocabulary map is not the one that the lm_head was trained with",
    "map_arbitrary": "the draft vocabulary holds the first ids instead of the frequent ones",
    "map_covers_little": "the draft vocabulary lacks many of the served tokens",
    "embedding_differs": "the draft's embedding is not the target's",
    "embedding_ranks_differ": "ranks use different embeddings for the draft",
    "tensors_unused": "the engine does not read some tensors of the checkpoint",
    "draft_quantised_unasked": "the draft was loaded quantized although it is not",
    "target_changed": "the draft was trained on another target",
    # T: the draft alone on training states
    "accuracy_low": "the draft's own accuracy is below one half",
    "accuracy_falls_on_served_text": "the draft's own accuracy is much lower on the served text",
    "loss_mask_empty": "the loss mask selects hardly any token",
    "mask_misaligned": "the loss mask is not shifted with the labels",
    "first_answer_position_low": "accuracy at the first generated position alone is far below the rest",
    "templates_differ": "training and serving render the prompt to different tokens",
    # S, C: the states that the server feeds the draft
    "served_accuracy_low": "the draft's accuracy is lower on the served states than on the training states",
    "other_boundaries_served": "slots hold boundaries that were not trained",
    "boundaries_off_by_one": "slots hold the neighboring boundary",
    "slots_reordered": "slots hold the trained boundaries in another order or number",
    "state_transformed": "a slot holds a normed or scaled state, or lacks the residual",
    "drift_with_depth": "slots drift from the reference more and more with depth",
    "tokens_shifted": "the states belong to neighboring tokens",
    # P: acceptance in the running server
    "nothing_accepted": "hardly any draft is accepted",
    "first_position_low": "the first draft is accepted far less often than the draft's own accuracy predicts",
    "later_positions_low": "the first draft is accepted as often as it should be, later ones are not",
    "drafts_one_id": "nearly all drafts are the same id",
    "drafts_low_ids": "all drafted ids lie below the draft's vocabulary size: the map is not applied",
    "text_broken": "the generated text is garbage",
    "outputs_differ": "greedy text differs with and without the draft",
    "nonfinite": "states or logits hold NaN or infinity",
    "draft_weights_differ": "the engine's draft has other weights than the reference forward",
    "draft_norm_differs": "the engine's draft applies a norm or residual differently from the reference forward",
    "draft_rotation_differs": "the engine's draft applies RoPE differently from the reference forward",
    "draft_attention_differs": "the engine's draft computes other attention than the reference forward",
    "draft_rows_differ": "rows of the draft's KV cache differ from those of the reference forward",
    "restart_cures": "a restart or an emptied cache restores the acceptance",
    "other_engine_fine": "another engine serves the same draft well",
    "engines_agree": "another engine has the same low acceptance",
    "other_head_fine": "another draft is served well on the same server",
    # P: conditions under which acceptance falls
    "falls_when_cached": "acceptance falls where the prompt's prefix is cached",
    "falls_when_chunked": "acceptance falls where the prefill was chunked",
    "positions_tell": "acceptance is low at once or by length or images, or the draft's own accuracy is low",
    "graph_or_batch_tells": "acceptance falls under CUDA graphs or with the batch size",
    "falls_with_tp": "acceptance falls with tensor parallelism",
    "falls_with_temperature": "acceptance falls with the temperature",
    "differs_between_backends": "acceptance differs between attention backends",
    "falls_with_draft_kv_dtype": "acceptance falls with the draft's KV cache in a smaller dtype",
    "falls_with_draft_quantisation": "acceptance falls with the draft quantized",
    # the benchmark
    "text_loops": "the measured text repeats itself",
    "few_prompts": "fewer than five prompts were measured",
    "random_prompts": "the prompts are random token ids",
    "not_templated": "the benchmark sends raw prompts",
    "cold_start": "the server was measured without a warm-up",
    # R: cost of a round
    "round_dear": "a round costs more plain steps than its draft steps account for",
}

_ROWS = {
    "arguments_changed": _row("L", 6, 4, "lint", always=21),
    "algorithm_differs": _row("L", 6, 3, "lint", always=7),
    "layer_ids_ignored": _row("L", 6, 4, "lint", may=1),
    "map_wrong": _row("L", 0, 3, "map", always=9),
    "map_missing": _row("L", 6, 3, "lint", may=9),
    "map_changed": _row("L", 6, 3, ("map", "reference forward"), may=9),
    "map_arbitrary": _row("L", 5, 2, "lint", may=9),
    "map_covers_little": _row("L", 4, 2, "drafted ids", may=(9, 22)),
    "embedding_differs": _row("L", 5, 3, ("lint", "reference forward"), always=8),
    "embedding_ranks_differ": _row("L", 6, 3, "load line", may=8),
    "tensors_unused": _row("L", 5, 2, "lint", may=10),
    "draft_quantised_unasked": _row("L", 5, 2, "load line", always=11),
    "target_changed": _row("L", 5, 2, "rendered prompts", may=22),
    "accuracy_low": _row("T", 3, 4, "alone", always=23, may=(1, 3, 8, 9, 10, 11, 13, 14)),
    "training_accuracy_low": _row("T", 5, 4, "alone", may=23),
    "accuracy_below_claim": _row("T", 3, 3, "alone", may=(8, 9, 10, 11, 13, 14)),
    "accuracy_collapses_with_depth": _row("T", 4, 3, "alone", may=(10, 23)),
    "accuracy_falls_on_served_text": _row("T", 5, 4, "served text", always=22, may=6),
    "low_with_sound_files": _row("T", 2, 0, "alone", may=23),
    "accuracy_on_training_text_only": _row("T", 3, 2, "alone", may=(22, 23)),
    "loss_mask_empty": _row("T", 6, 2, "loss mask", may=23),
    "mask_misaligned": _row("T", 6, 2, "loss mask", may=23),
    "first_answer_position_low": _row("T", 4, 2, "loss mask", may=(14, 23)),
    "templates_differ": _row("T", 5, 2, "rendered prompts", may=22),
    "served_accuracy_low": _row("S", 3, 2, "capture", always=(1, 3, 5), may=(2, 4, 6, 14)),
    "other_boundaries_served": _row("C", 6, 5, "capture", always=1),
    "boundaries_off_by_one": _row("C", 6, 5, "capture", always=2),
    "slots_reordered": _row("C", 6, 5, "capture", always=3),
    "state_transformed": _row("C", 6, 4, "capture", always=5),
    "norm_ratio_off": _row("C", 3, 2, "capture", may=(4, 5, 6)),
    "partial_sum": _row("C", 5, 3, "capture", may=(4, 5)),
    "ranks_differ": _row("C", 6, 4, "ranks", may=4),
    "drift_with_depth": _row("C", 5, 4, "capture", always=6),
    "rotated_state": _row("C", 5, 3, "capture", may=6),
    "tokens_shifted": _row("C", 6, 4, ("alone", "capture"), always=14),
    "nothing_accepted": _row("P", 3, 2, "counters", always=7, may=(*range(1, 7), *range(8, 15), 19, 20, 22, 23)),
    "first_position_low": _row("P", 2, 3, "counters", always=(8, 9), may=(*range(1, 8), *range(10, 21), 22)),
    "later_positions_low": _row("P", 4, 4, "counters", always=17, may=(10, 12, 13, 23)),
    "first_round_below_training": _row("P", 3, 3, "first round", may=(*range(1, 17), 18, 19), against=17),
    "accept_below_training": _row("P", 2, 4, ("alone", "served text"), may=(*range(1, 21), 22)),
    "accept_below_served_states": _row("P", 3, 4, "capture", may=(*range(1, 6), *range(7, 20))),
    "capped": _row("P", 4, 2, "counters", may=21),
    "all_accepted": _row("P", 4, 1, "counters", may=(19, 25)),
    "impossible_figure": _row("P", 5, 1, "counters", may=(19, 20, 25)),
    "counts_disagree": _row("P", 4, 1, "counters", may=25),
    "drafts_one_id": _row("P", 5, 2, "drafted ids", may=(11, 19)),
    "drafts_low_ids": _row("P", 5, 2, "drafted ids", may=9),
    "text_broken": _row("P", 4, 2, "text", may=(6, 19)),
    "outputs_differ": _row("P", 4, 2, "text", may=(18, 19)),
    "nonfinite": _row("P", 6, 3, "text", may=19),
    "draft_weights_differ": _row("P", 6, 0, "reference forward", may=11),
    "draft_norm_differs": _row("P", 6, 0, "reference forward", may=10),
    "draft_rotation_differs": _row("P", 6, 0, "reference forward", may=13),
    "draft_attention_differs": _row("P", 5, 0, "reference forward", may=(12, 19)),
    "draft_rows_differ": _row("P", 5, 0, "reference forward", may=(15, 16, 17, 18)),
    "restart_cures": _row("P", 5, 3, ("cache", "hours"), may=15),
    "other_engine_fine": _row(
        "P", 3, 0, "other engine", may=(*range(1, 7), 8, *range(10, 14), *range(15, 21)), against=(22, 23)
    ),
    "engines_agree": _row("P", 3, 0, "other engine", may=(13, 22, 23), against=(*range(1, 6), *range(15, 20))),
    "other_head_fine": _row("P", 3, 0, "other head", may=(1, 2, 3, 8, 9, 22, 23), against=(4, *range(15, 20))),
    "falls_when_cached": _row("P", 5, 4, "cache", always=15),
    "falls_with_prefix_cache": _row("P", 5, 4, "prefix cache off", may=15),
    "falls_with_time": _row("P", 5, 2, "hours", may=15),
    "falls_with_prompt_length": _row("P", 4, 3, "lengths", may=(13, 16)),
    "falls_after_chunk": _row("P", 5, 4, "chunks", may=16),
    "falls_when_chunked": _row("P", 5, 2, "chunks", always=16),
    "falls_when_handed_over": _row("P", 6, 4, "one server", may=16),
    "later_rounds_low": _row(
        "P", 3, 2, ("first round", "chunks"), may=(1, 13, 14, 17, 18), against=(7, 8, 9, 10, 11, 12)
    ),
    "first_round_low": _row("P", 4, 2, ("first round", "chunks", "one server"), may=(15, 16)),
    "positions_tell": _row("P", 0, 3, "lengths", always=13),
    "graph_or_batch_tells": _row("P", 0, 4, "batch 1", always=18),
    "falls_with_batch": _row("P", 5, 4, "batch 1", may=18),
    "falls_with_cuda_graphs": _row("P", 5, 4, "eager", may=(1, 18)),
    "falls_with_tp": _row("P", 4, 3, "one rank", always=4, may=8),
    "falls_with_dp": _row("P", 5, 3, "one rank", may=4),
    "falls_with_pp": _row("P", 5, 3, "one rank", may=4),
    "falls_with_fused_all_reduce": _row("P", 6, 4, "fusion off", may=4),
    "falls_with_topk": _row("P", 5, 2, "chain and tree", may=17),
    "falls_with_steps": _row("P", 5, 3, "chain and tree", may=17),
    "falls_with_temperature": _row("P", 3, 3, "temperature 0", always=20),
    "differs_between_acceptance_rules": _row("P", 6, 2, "temperature 0", may=20),
    "differs_between_backends": _row("P", 5, 3, "backend", always=19),
    "differs_between_versions": _row("P", 3, 1, "other version", may=(1, 2, 5, 18, 19, 20)),
    "falls_with_draft_kv_dtype": _row("P", 6, 4, "draft KV dtype", always=12),
    "falls_with_target_quantisation": _row("P", 4, 3, "target unquantised", may=(6, 11, 12)),
    "falls_with_draft_quantisation": _row("P", 6, 4, "draft unquantised", always=11),
    "falls_with_images": _row("P", 5, 3, "text prompts", may=13),
    "differs_between_domains": _row("P", 4, 2, "prompt sets", may=22),
    "falls_without_template": _row("P", 5, 2, "template", may=25),
    "differs_between_prompt_sets": _row("P", 2, 1, "prompt sets", may=(22, 25)),
    "text_loops": _row("P", 5, 3, "benchmark", may=25),
    "few_prompts": _row("P", 3, 1, "benchmark", may=25),
    "random_prompts": _row("P", 5, 2, "benchmark", may=25),
    "not_templated": _row("P", 4, 2, "benchmark", may=25),
    "cold_start": _row("R", 4, 1, "benchmark", may=25),
    "round_dear": _row("R", 5, 5, "round cost", always=24),
    "slower_than_plain": _row("R", 0.5, 0, "round cost"),
    "slow_though_accepted": _row("R", 4, 3, "round cost", may=24),
    "dear_without_drafts": _row("R", 5, 3, "no drafts", may=24),
    "slower_at_equal_acceptance": _row("R", 5, 2, "round cost", may=24),
    "speedup_falls_with_batch": _row("R", 3, 1, "batches", may=24),
}

SYMPTOMS: Mapping[str, SymptomRow] = MappingProxyType(
    {name: SymptomRow(**row, text=_TEXTS.get(name, "")) for name, row in _ROWS.items()}
    | {lint_error(fault): SymptomRow("L", 6, 0, ("lint",) if fault in LINTED else (), may=(fault,)) for fault in FAULTS}
    | {lint_warning(fault): SymptomRow("L", 2, 0, may=(fault,)) for fault in FAULTS}
)
