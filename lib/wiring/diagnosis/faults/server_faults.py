"""Kinds 15 to 21: the speculative path of the running server. A dump without speculation cannot show these."""

from __future__ import annotations

from wiring.diagnosis.faults.fault import FaultKind

_BELOW = ("accept_below_training", "accept_below_served_states")
_OWN = ("engines_agree", "other_head_fine")  # the server's own fault would not be seen elsewhere, nor spare a head
_AT_ONCE = "first_round_below_training"

KINDS = (
    FaultKind(
        15,
        "the draft's KV cache holds rows of another request or an older state where the prefix is taken from the cache",
        "the engine's code",
        ("falls_when_cached",),
        ("falls_with_prefix_cache", "falls_with_time", "restart_cures", "other_engine_fine", _AT_ONCE,
         "first_round_low", "draft_rows_differ", "first_position_low", *_BELOW),  # a first round reads the prefix alone
        "cache",
        "Switch the prefix cache off for speculation, or use a release whose cache key holds the next token",
        ("sgl-project/sglang#10846", "sgl-project/sglang#19897", "sgl-project/sglang#28771"),
        excludes=_OWN,
    ),
    FaultKind(
        16,
        "the draft's state is wrong at the end of a prefill chunk, or is not handed over by the prefill server",
        "the engine's code",
        ("falls_when_chunked",),
        ("falls_after_chunk", "falls_when_handed_over", "first_round_low", _AT_ONCE, "draft_rows_differ",
         "falls_with_prompt_length", "other_engine_fine", "first_position_low", *_BELOW),
        "chunks",
        "Prefill in one chunk on one server, or use a release that carries the draft's state over",
        ("sgl-project/sglang#26329", "sgl-project/sglang#7242", "sgl-project/sglang#10616",
         "sgl-project/sglang#13590"),
        excludes=_OWN,
    ),
    FaultKind(
        17,
        "the draft goes on from a wrong row: the KV of its own approximations, of a wrong parent, of rejected drafts",
        "the engine's code",
        ("later_positions_low",),
        ("falls_with_topk", "falls_with_steps", "later_rounds_low", "draft_rows_differ", "other_engine_fine",
         "first_position_low", *_BELOW),
        "counters",
        "Write the accepted tokens' KV from the target's states, with the selected parents; draft a chain meanwhile",
        ("vllm-project/vllm#14649", "vllm-project/vllm#14990", "sgl-project/sglang#8409", "kekzl/imp#175"),
        excludes=(*_OWN, _AT_ONCE),  # a chain's first round reads no row but the prefill's
    ),
    FaultKind(
        18,
        "rows of a replayed graph or of a batch are mixed up: stale padding, wrong indices",
        "the engine's code",
        ("graph_or_batch_tells",),
        ("falls_with_cuda_graphs", "falls_with_batch", "outputs_differ", "other_engine_fine", _AT_ONCE,
         "draft_rows_differ", "later_rounds_low", "differs_between_versions", "first_position_low", *_BELOW),
        "batch 1",
        "Run without the draft's CUDA graph, or use a release that clears the padding",
        ("vllm-project/vllm#17504", "sgl-project/sglang#18647"),
        excludes=_OWN,
    ),
    FaultKind(
        19,
        "an attention backend computes other numbers, or NaN",
        "the engine's code",
        ("differs_between_backends",),
        ("nonfinite", "text_broken", "outputs_differ", "all_accepted", "nothing_accepted",
         "drafts_one_id", "impossible_figure", "draft_attention_differs", "differs_between_versions",
         "other_engine_fine", _AT_ONCE, *_BELOW, "first_position_low"),
        "text",
        "Use another attention backend",
        ("sgl-project/sglang#4724", "vllm-project/vllm#9534", "sgl-project/sglang#19796"),
        excludes=_OWN,
    ),
    FaultKind(
        20,
        "drafts are the likeliest tokens and must match a sampled one: acceptance falls with the temperature alone",
        "the server's arguments, the engine's code",
        ("falls_with_temperature",),
        ("differs_between_acceptance_rules", "impossible_figure", "other_engine_fine", "differs_between_versions",
         "accept_below_training", "first_position_low", "nothing_accepted"),
        "temperature 0",
        "Use rejection sampling, or temperature 0",
        ("vllm-project/vllm#16899", "vllm-project/vllm#40551", "ml-explore/mlx-lm#1085", "vllm-project/vllm#27077"),
    ),
    FaultKind(
        21,
        "the server changed the speculation arguments: with top-k 1 draft tokens become steps + 1, and others like it",
        "the server's arguments",
        ("arguments_changed",),
        ("capped",),
        "lint",
        "Read the resolved values, and ask for what you mean",
        ("sgl-project/sglang#8801",),
        slows=False,
    ),
)  # fmt: skip
