"""What can be measured next: each check with the symptoms that it decides, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wiring.diagnosis.symptoms.catalogue import lint_error
from wiring.diagnosis.symptoms.lint_symptoms import FILES, LINTED


@dataclass(frozen=True)
class Check:
    """One measurement. `command` is a call of `wiring` where there is one, with its places to fill in capitals.

    `cost`: 1 files, logs and counters alone; 2 a request or a flag of a running server, or the draft alone; 3 a
    restart, or a capture; 4 a second engine or machine. `decides` names symptoms.
    """

    name: str
    text: str
    cost: int
    decides: tuple[str, ...]
    command: str | None = None

    def __str__(self) -> str:
        return self.text if self.command is None else f"{self.text}: `{self.command}`"


_LINTED = tuple(lint_error(kind) for kind in LINTED)
_ALL = (
    Check(
        "lint",
        "Lint the draft, the target and the server's resolved arguments",
        1,
        (*_LINTED, *FILES),
        "wiring lint --draft DIR --target DIR --engine NAME==VERSION --server URL",
    ),
    Check(
        "counters",
        "Read acceptance by position from the server's log or counters",
        1,
        (
            "nothing_accepted",
            "first_position_low",
            "later_positions_low",
            "impossible_figure",
            "counts_disagree",
            "capped",
            "all_accepted",
        ),
        "wiring read-log FILE",
    ),
    Check(
        "load line",
        "Read the draft's load line in the server's log: quant=, which embedding, which ranks",
        1,
        ("draft_quantised_unasked", "embedding_ranks_differ"),
    ),
    Check(
        "benchmark",
        "Look at the benchmark: how many prompts, chat template, warm-up, distinct bigrams of its text",
        1,
        ("text_loops", "few_prompts", "random_prompts", "not_templated", "cold_start"),
        "wiring throughput PROFILE",
    ),
    Check(
        "text",
        "Read the text, and compare greedy outputs with and without the draft; look for NaN",
        1,
        ("text_broken", "outputs_differ", "nonfinite"),
    ),
    Check(
        "drafted ids",
        "Count the drafted ids: one id everywhere, or none above the draft's vocabulary size",
        2,
        ("drafts_one_id", "drafts_low_ids", "map_covers_little"),
    ),
    Check("map", "Compare d2t with the map that the lm_head was trained with", 1, ("map_changed", "map_wrong")),
    Check(
        "loss mask",
        "Sum the loss mask of a few samples, and look at accuracy at the first answer position",
        1,
        ("loss_mask_empty", "mask_misaligned", "first_answer_position_low"),
    ),
    Check(
        "rendered prompts",
        "Compare rendered training and serving prompts token by token, and the target's name",
        1,
        ("templates_differ", "target_changed"),
    ),
    Check(
        "alone",
        "Measure the draft alone on saved training states, depth by depth, with controls",
        2,
        (
            "accuracy_low",
            "low_with_sound_files",
            "training_accuracy_low",
            "accuracy_below_claim",
            "accuracy_collapses_with_depth",
            "accept_below_training",
            "tokens_shifted",
            "accuracy_on_training_text_only",
        ),
        "wiring accuracy --draft DIR --states DIR --target DIR --layout IDS",
    ),
    Check(
        "served text",
        "Measure the draft alone on text that the server decoded",
        3,
        ("accuracy_falls_on_served_text", "accept_below_training"),
    ),
    Check(
        "capture",
        "Capture what the draft is fed and compare it slot by slot with a reference, in every phase",
        3,
        (
            "other_boundaries_served",
            "boundaries_off_by_one",
            "slots_reordered",
            "state_transformed",
            "norm_ratio_off",
            "partial_sum",
            "drift_with_depth",
            "rotated_state",
            "tokens_shifted",
            "served_accuracy_low",
            "accept_below_served_states",
        ),
        "wiring layout PROFILE --capture",
    ),
    Check("ranks", "Dump one prompt's states on every rank and compare the ranks", 3, ("ranks_differ",)),
    Check(
        "cache",
        "Send the same prompts to an empty cache and to a warm one",
        2,
        ("falls_when_cached", "restart_cures"),
        "wiring ab --server URL --prompts FILE --factor flush",
    ),
    Check(
        "prefix cache off",
        "Serve the same prompts with the prefix cache off",
        3,
        ("falls_with_prefix_cache",),
        "wiring ab --server URL --against URL --prompts FILE --factor prefix-cache",
    ),
    Check("hours", "Follow the accept length by the hours since the start", 2, ("falls_with_time", "restart_cures")),
    Check(
        "first round",
        "Compare the first round after the prefill with a replay of the draft alone on the same text",
        2,
        ("first_round_below_training", "first_round_low", "later_rounds_low"),
        "wiring ab --server URL --prompts FILE --factor first-round",
    ),
    Check("lengths", "Split acceptance by the prompt's length", 2, ("falls_with_prompt_length", "positions_tell")),
    Check(
        "chunks",
        "Prefill in one chunk against several, and split off the first round after the prefill",
        3,
        ("falls_when_chunked", "falls_after_chunk", "first_round_low", "later_rounds_low"),
        "wiring ab --server URL --against URL --prompts FILE --factor chunked",
    ),
    Check(
        "one server",
        "Serve the same prompts without the hand-off between servers",
        3,
        ("falls_when_handed_over", "first_round_low"),
    ),
    Check(
        "eager",
        "Serve the same prompts without CUDA graphs",
        3,
        ("falls_with_cuda_graphs",),
        "wiring ab --server URL --against URL --prompts FILE --factor eager",
    ),
    Check(
        "batch 1",
        "Send the same prompts one at a time and together",
        2,
        ("falls_with_batch", "graph_or_batch_tells"),
        "wiring ab --server URL --prompts FILE --factor batch",
    ),
    Check("one rank", "Serve the same prompts on one rank", 3, ("falls_with_tp", "falls_with_dp", "falls_with_pp")),
    Check("fusion off", "Serve the same prompts without the fused all-reduce", 3, ("falls_with_fused_all_reduce",)),
    Check(
        "backend",
        "Serve the same prompts on another attention backend",
        3,
        ("differs_between_backends",),
        "wiring ab --server URL --against URL --prompts FILE --factor backend",
    ),
    Check(
        "temperature 0",
        "Send the same prompts at temperature 0, and read which acceptance rule is in force",
        2,
        ("falls_with_temperature", "differs_between_acceptance_rules"),
        "wiring ab --server URL --prompts FILE --factor temperature",
    ),
    Check("draft KV dtype", "Serve with the draft's KV cache in the model's dtype", 3, ("falls_with_draft_kv_dtype",)),
    Check("draft unquantised", "Serve the draft unquantised", 3, ("falls_with_draft_quantisation",)),
    Check("target unquantised", "Serve the target unquantised", 3, ("falls_with_target_quantisation",)),
    Check(
        "chain and tree",
        "Serve a chain (top-k 1) against a tree of the same depth, and fewer steps",
        3,
        ("falls_with_topk", "falls_with_steps"),
        "wiring ab --server URL --against URL --prompts FILE --factor tree",
    ),
    Check("text prompts", "Send prompts with images and prompts of text alone", 2, ("falls_with_images",)),
    Check(
        "prompt sets",
        "Send another prompt set, and one of another domain",
        2,
        ("differs_between_domains", "differs_between_prompt_sets"),
    ),
    Check("template", "Send the prompts in the chat template", 2, ("falls_without_template",)),
    Check(
        "reference forward",
        "Compare the engine's draft part by part with a reference forward of the same head",
        4,
        (
            "draft_weights_differ",
            "draft_norm_differs",
            "draft_rotation_differs",
            "draft_attention_differs",
            "draft_rows_differ",
            "embedding_differs",
            "map_changed",
        ),
    ),
    Check(
        "other engine",
        "Serve the same pair in another engine, on the same prompts",
        4,
        ("other_engine_fine", "engines_agree"),
    ),
    Check("other head", "Serve another draft for this target on the same server", 3, ("other_head_fine",)),
    Check("other version", "Serve the same pair on another version of the engine", 4, ("differs_between_versions",)),
    Check(
        "round cost",
        "Measure plain steps and rounds at two or more numbers of draft steps",
        3,
        ("round_dear", "slower_than_plain", "slow_though_accepted", "slower_at_equal_acceptance"),
        "wiring rebenchmark PROFILE",
    ),
    Check(
        "no drafts", "Measure rounds without drafts (0 steps) or with acceptance forced", 3, ("dear_without_drafts",)
    ),
    Check("batches", "Measure the speed-up at several batch sizes", 2, ("speedup_falls_with_batch",)),
)

CHECKS: Mapping[str, Check] = MappingProxyType({check.name: check for check in _ALL})
