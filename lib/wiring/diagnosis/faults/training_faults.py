"""Kinds 22 and 23: the draft is served as it was trained, and was trained on something else, or badly."""

from __future__ import annotations

from wiring.diagnosis.faults.fault import FaultKind

KINDS = (
    FaultKind(
        22,
        "the draft was trained on other text than it serves: template, thinking mode, language, domain, another target",
        "the training data",
        ("accuracy_falls_on_served_text",),
        (
            "templates_differ",
            "target_changed",
            "differs_between_domains",
            "differs_between_prompt_sets",
            "accuracy_on_training_text_only",
            "accept_below_training",
            "first_position_low",
            "nothing_accepted",
            "engines_agree",
            "other_head_fine",
            "map_covers_little",
        ),
        "rendered prompts",
        "Let the served target write the training answers, in the serving template",
        (
            "sgl-project/SpecForge#296",
            "SafeAILab/EAGLE#179",
            "NickL77/BaldEagle#17",
            "SafeAILab/EAGLE#98",
            "SafeAILab/EAGLE#196",
        ),
        excludes=("other_engine_fine",),
    ),
    FaultKind(
        23,
        "the draft did not learn: loss mask, too little data, other inputs at depth than in serving, a wrong metric",
        "the training code and data",
        ("accuracy_low",),
        (
            "low_with_sound_files",
            "training_accuracy_low",
            "loss_mask_empty",
            "mask_misaligned",
            "first_answer_position_low",
            "accuracy_collapses_with_depth",
            "accuracy_on_training_text_only",
            "later_positions_low",
            "engines_agree",
            "other_head_fine",
            "nothing_accepted",
        ),
        "loss mask",
        "Correct the mask and the inputs at depth, train on more of the target's own answers",
        (
            "sgl-project/SpecForge#885",
            "sgl-project/SpecForge#392",
            "SafeAILab/EAGLE#286",
            "sgl-project/SpecForge#128",
            "vllm-project/speculators#818",
            "sgl-project/SpecForge#492",
        ),
        excludes=("other_engine_fine",),
    ),
)
