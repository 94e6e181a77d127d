"""Every symptom that the evidence can decide: what it says, and how much it weighs.

A weight is in bits and belongs to the symptom, not to a fault: about how many times (as a power of two) likelier it is
to be seen under a fault that causes it than without one. `present` bits speak for every kind that causes it, `absent`
bits against every kind that always causes it. So a symptom that fits many kinds lifts them alike and tells none from
another, and what fits one kind alone decides. Values are rough on purpose: 5 and 6 for what all but proves a fault,
3 and 4 for what few faults share, 2 for what most of them do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wiring.diagnosis.symptoms.symptom import Letter
from wiring.engines.faults import FAULTS


@dataclass(frozen=True)
class Meaning:
    """What a symptom says; `present` and `absent` are its weights in bits."""

    letter: Letter
    present: float
    absent: float
    text: str


def lint_error(kind: int) -> str:
    """The symptom "lint found an error of this kind"."""
    return f"lint_error_{kind}"


def lint_warning(kind: int) -> str:
    """The symptom "lint found a warning of this kind"."""
    return f"lint_warning_{kind}"


_BY_HAND: dict[str, tuple[Letter, float, float, str]] = {
    # L: files, configs, resolved arguments
    "arguments_changed": ("L", 6, 4, "the server runs with other arguments than it was asked for"),
    "algorithm_differs": ("L", 6, 3, "the speculative algorithm is not the draft's"),
    "layer_ids_ignored": ("L", 6, 4, "the server resolved other layer ids than the draft's config asks for"),
    "map_wrong": ("L", 0, 3, "the vocabulary map is missing, changed or arbitrary"),  # each of these has its own bits
    "map_missing": ("L", 6, 3, "the draft speaks a smaller vocabulary, and the checkpoint has no map"),
    "map_changed": ("L", 6, 3, "the vocabulary map is not the one that the lm_head was trained with"),
    "map_arbitrary": ("L", 5, 2, "the draft vocabulary is the first ids, not the frequent ones"),
    "map_covers_little": ("L", 4, 2, "the draft vocabulary lacks many of the served tokens"),
    "embedding_differs": ("L", 5, 3, "the draft's embedding is not the target's"),
    "embedding_ranks_differ": ("L", 6, 3, "ranks use different embeddings for the draft"),
    "tensors_unused": ("L", 5, 2, "the engine does not read some tensors of the checkpoint"),
    "draft_quantised_unasked": ("L", 5, 2, "the draft was loaded quantised though it is not"),
    "target_changed": ("L", 5, 2, "the draft was trained on another target"),
    # T: the draft alone on training states
    "accuracy_low": ("T", 3, 4, "the draft alone is right less than half the time"),
    "training_accuracy_low": ("T", 5, 4, "the trainer's own accuracy is below one half"),
    "accuracy_below_claim": ("T", 3, 3, "the draft alone is far below the trainer's own accuracy"),
    "accuracy_collapses_with_depth": ("T", 4, 3, "the draft alone gets much worse from one depth to the next"),
    "accuracy_falls_on_served_text": ("T", 5, 4, "the draft alone is much worse on the served text"),
    "low_with_sound_files": ("T", 2, 0, "the draft alone is low or collapses, and lint finds nothing in its files"),
    "accuracy_on_training_text_only": ("T", 3, 2, "the draft alone is much worse on text that it was not trained on"),
    "loss_mask_empty": ("T", 6, 2, "the loss mask names hardly any token"),
    "mask_misaligned": ("T", 6, 2, "the loss mask is not shifted with the labels"),
    "first_answer_position_low": ("T", 4, 2, "the first generated position alone is far worse than the rest"),
    "templates_differ": ("T", 5, 2, "training and serving render the prompt to different tokens"),
    # S, C: the states that the server feeds
    "served_accuracy_low": ("S", 3, 2, "the draft is worse on the served states than on the training states"),
    "other_boundaries_served": ("C", 6, 5, "slots hold boundaries that were not trained"),
    "boundaries_off_by_one": ("C", 6, 5, "slots hold the neighbouring boundary"),
    "slots_reordered": ("C", 6, 5, "slots hold the trained boundaries in another order or number"),
    "state_transformed": ("C", 6, 4, "a slot holds a normed or scaled state, or lacks the residual"),
    "norm_ratio_off": ("C", 3, 2, "a slot points where it should, but its norm is off"),
    "partial_sum": ("C", 5, 3, "a slot lies between two boundaries, as a sum that is not complete"),
    "ranks_differ": ("C", 6, 4, "ranks hold different states"),
    "drift_with_depth": ("C", 5, 4, "slots drift from the reference more and more with depth"),
    "rotated_state": ("C", 5, 3, "a slot has the right norm and no direction in common with any boundary"),
    "tokens_shifted": ("C", 6, 4, "the states belong to neighbouring tokens"),
    # P: acceptance in the running server
    "nothing_accepted": ("P", 3, 2, "hardly any draft is accepted"),
    "first_position_low": ("P", 2, 3, "the first draft is accepted far less often than the draft alone is right"),
    "later_positions_low": ("P", 4, 4, "the first draft is as good as it should be, later ones are not"),
    "first_round_below_training": (
        "P",
        3,
        3,
        "the first round after the prefill already accepts less than the draft alone along the same text",
    ),
    "accept_below_training": ("P", 2, 4, "the accept length is below what the draft alone predicts"),
    "accept_below_served_states": ("P", 3, 4, "the accept length is below what the draft does on the served states"),
    "capped": ("P", 4, 2, "acceptance ends at fewer drafts than were asked for"),
    "all_accepted": ("P", 4, 1, "every draft of every round is accepted"),
    "impossible_figure": ("P", 5, 1, "a figure is outside what its definition allows"),
    "counts_disagree": ("P", 4, 1, "accept length and acceptance by position contradict each other"),
    "drafts_one_id": ("P", 5, 2, "nearly all drafts are one and the same id"),
    "drafts_low_ids": ("P", 5, 2, "all drafted ids lie below the draft's vocabulary size: the map is not applied"),
    "text_broken": ("P", 4, 2, "the text itself is garbage"),
    "outputs_differ": ("P", 4, 2, "with the draft the greedy text is another one"),
    "nonfinite": ("P", 6, 3, "states or logits hold NaN or infinity"),
    "draft_weights_differ": ("P", 6, 0, "the engine's draft has other weights than the reference forward"),
    "draft_norm_differs": ("P", 6, 0, "the engine's draft norms or adds otherwise than the reference forward"),
    "draft_rotation_differs": ("P", 6, 0, "the engine's draft rotates otherwise than the reference forward"),
    "draft_attention_differs": ("P", 5, 0, "the engine's draft attends otherwise than the reference forward"),
    "draft_rows_differ": ("P", 5, 0, "rows of the draft's KV cache differ from those of the reference forward"),
    "restart_cures": ("P", 5, 3, "a restart or an emptied cache brings the acceptance back"),
    "other_engine_fine": ("P", 3, 0, "another engine serves the same draft well"),
    "engines_agree": ("P", 3, 0, "another engine has the same low acceptance"),
    "other_head_fine": ("P", 3, 0, "another draft is served well on the same server"),
    # P: what makes the acceptance fall
    "falls_when_cached": ("P", 5, 4, "acceptance falls where the prompt's prefix is cached"),
    "falls_with_prefix_cache": ("P", 5, 4, "acceptance falls with the prefix cache on"),
    "falls_with_time": ("P", 5, 2, "acceptance falls with the hours since the server's start"),
    "falls_with_prompt_length": ("P", 4, 3, "acceptance falls with the prompt's length"),
    "falls_after_chunk": ("P", 5, 4, "acceptance falls in the round after a chunked prefill"),
    "falls_when_chunked": ("P", 5, 2, "acceptance falls where the prefill was chunked"),
    "falls_when_handed_over": ("P", 6, 4, "acceptance falls where another server did the prefill"),
    "later_rounds_low": ("P", 3, 2, "acceptance is low in all rounds but the first after the prefill"),
    "first_round_low": ("P", 4, 2, "acceptance is low in the first round after the prefill"),
    # one of several must be there: each has its own bits, and all absent speak against
    "positions_tell": ("P", 0, 3, "acceptance is low at once or by length or images, or the draft alone is low"),
    "graph_or_batch_tells": ("P", 0, 4, "acceptance falls under CUDA graphs or with the batch size"),
    "falls_with_batch": ("P", 5, 4, "acceptance falls with the batch size"),
    "falls_with_cuda_graphs": ("P", 5, 4, "acceptance falls under CUDA graphs"),
    "falls_with_tp": ("P", 4, 3, "acceptance falls with tensor parallelism"),
    "falls_with_dp": ("P", 5, 3, "acceptance falls with data-parallel attention"),
    "falls_with_pp": ("P", 5, 3, "acceptance falls with pipeline stages"),
    "falls_with_fused_all_reduce": ("P", 6, 4, "acceptance falls with the all-reduce fused into the norm"),
    "falls_with_topk": ("P", 5, 2, "a tree is accepted less than a chain of the same depth"),
    "falls_with_steps": ("P", 5, 3, "the first draft is accepted less often with more draft steps behind it"),
    "falls_with_temperature": ("P", 3, 3, "acceptance falls with the temperature"),  # some, under any rule
    "differs_between_acceptance_rules": ("P", 6, 2, "another acceptance rule accepts far more"),
    "differs_between_backends": ("P", 5, 3, "acceptance differs between attention backends"),
    "differs_between_versions": ("P", 3, 1, "acceptance differs between versions of the engine"),
    "falls_with_draft_kv_dtype": ("P", 6, 4, "acceptance falls with the draft's KV cache in a smaller dtype"),
    "falls_with_target_quantisation": ("P", 4, 3, "acceptance falls with the target quantised"),
    "falls_with_draft_quantisation": ("P", 6, 4, "acceptance falls with the draft quantised"),
    "falls_with_images": ("P", 5, 3, "acceptance falls where the prompt has images"),
    "differs_between_domains": ("P", 4, 2, "acceptance differs between kinds of text"),
    "falls_without_template": ("P", 5, 2, "acceptance falls on raw prompts"),
    "differs_between_prompt_sets": ("P", 2, 1, "acceptance differs between prompt sets"),
    # the benchmark
    "text_loops": ("P", 5, 3, "the measured text repeats itself"),
    "few_prompts": ("P", 3, 1, "fewer than five prompts were measured"),
    "random_prompts": ("P", 5, 2, "the prompts are random token ids"),
    "not_templated": ("P", 4, 2, "the benchmark sends raw prompts"),
    "cold_start": ("R", 4, 1, "the server was measured without a warm-up"),
    # R: cost of a round
    "round_dear": ("R", 5, 5, "a round costs more plain steps than its draft steps account for"),
    "slower_than_plain": ("R", 0.5, 0, "it is slower with the draft than without"),
    "slow_though_accepted": ("R", 4, 3, "drafts are accepted, and still it is slower than without"),
    "dear_without_drafts": ("R", 5, 3, "rounds without drafts are already slower than plain steps"),
    "slower_at_equal_acceptance": ("R", 5, 2, "another setting is faster at the same accept length"),
    "speedup_falls_with_batch": ("R", 3, 1, "the speed-up falls with the batch size"),
}

SYMPTOMS: Mapping[str, Meaning] = MappingProxyType(
    {name: Meaning(*meaning) for name, meaning in _BY_HAND.items()}
    | {lint_error(k): Meaning("L", 6, 0, f"lint found an error: {name}") for k, name in FAULTS.items()}
    | {lint_warning(k): Meaning("L", 2, 0, f"lint found a warning: {name}") for k, name in FAULTS.items()}
)
