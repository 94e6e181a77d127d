"""Kinds 24 and 25: drafts are accepted as they should be, and the round or the benchmark is at fault."""

from __future__ import annotations

from wiring.diagnosis.faults.fault import FaultKind

KINDS = (
    FaultKind(
        24,
        "a round costs more than its drafts bring: experts, pipeline stages, graph limits, a tree at large batch, "
        "work around the draft",
        "the server's arguments, the engine's code",
        ("round_dear",),
        ("slow_though_accepted", "dear_without_drafts", "slower_at_equal_acceptance", "speedup_falls_with_batch"),
        "round cost",
        "Fewer draft steps or tokens, CUDA graphs for every batch size served, no tree at large batch",
        (
            "sgl-project/sglang#15307",
            "sgl-project/sglang#12411",
            "sgl-project/sglang#5274",
            "vllm-project/vllm#44697",
            "vllm-project/vllm-ascend#16638",
        ),
    ),
    FaultKind(
        25,
        "the benchmark does not measure what it says: random ids, no template, looping text, one prompt, cold start, "
        "another definition of the figure",
        "the benchmark",
        (),
        (
            "text_loops",
            "random_prompts",
            "not_templated",
            "falls_without_template",
            "few_prompts",
            "differs_between_prompt_sets",
            "cold_start",
            "impossible_figure",
            "counts_disagree",
            "all_accepted",
        ),
        "benchmark",
        "Five or more prompts in the chat template, warmed up, figures recomputed from counters",
        (
            "SemiAnalysisAI/InferenceX#1737",
            "lightseekorg/tokenspeed#1132",
            "vllm-project/speculators#793",
            "SafeAILab/EAGLE#153",
            "vllm-project/vllm#52536",
        ),
    ),
)
