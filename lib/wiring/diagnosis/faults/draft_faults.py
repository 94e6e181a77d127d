"""Kinds 7 to 14: the draft itself is loaded, embedded, mapped, normed or positioned otherwise than in training."""

from __future__ import annotations

from wiring.diagnosis.faults.fault import FaultKind

_LOW = (
    "accept_below_training", "accept_below_served_states", "first_position_low", "nothing_accepted",
    "first_round_below_training",
)  # fmt: skip
_CHECKPOINT = ("accuracy_low", "accuracy_below_claim")  # a broken checkpoint is broken without a server as well
_LATER = ("later_rounds_low",)  # what is wrong in every forward of the draft is wrong in its first round as well

KINDS = (
    FaultKind(
        7,
        "the server runs another speculative algorithm than the draft was trained for: EAGLE for an EAGLE-3 draft",
        "the server's arguments, the draft's config",
        ("nothing_accepted", "algorithm_differs"),
        ("accept_below_training", "accept_below_served_states", "first_position_low", "first_round_below_training"),
        "lint",
        "Start the server with the draft's own algorithm",
        ("sgl-project/sglang#21272",),
        excludes=_LATER,
    ),
    FaultKind(
        8,
        "the draft's embedding is random, another model's or tied on some ranks alone",
        "the draft's checkpoint, the engine's sharing rule",
        ("embedding_differs", "first_position_low"),
        ("embedding_ranks_differ", "falls_with_tp", "other_engine_fine", "other_head_fine", "nothing_accepted",
         "accept_below_training", "accept_below_served_states", "first_round_below_training", *_CHECKPOINT),
        "lint",
        "Export the trained embedding with the draft, or let every rank take the target's",
        ("lightseekorg/TorchSpec#38", "vllm-project/vllm#50158", "vllm-project/vllm#28549",
         "vllm-project/vllm-ascend#7038"),
        excludes=_LATER,
    ),
    FaultKind(
        9,
        "the map from the draft's vocabulary to the target's is missing, made anew, or covers the first ids alone",
        "the draft's checkpoint, its training",
        ("first_position_low", "map_wrong"),
        ("map_missing", "map_changed", "map_arbitrary", "map_covers_little", "drafts_low_ids", "nothing_accepted",
         "accept_below_training", "accept_below_served_states", "first_round_below_training", "other_head_fine",
         *_CHECKPOINT),
        "lint",
        "Ship the map that the lm_head was trained with",
        ("NVIDIA-NeMo/Automodel#2447", "verl-project/verl-SpeCo#66", "sgl-project/SpecForge#534",
         "sgl-project/SpecForge#300"),
        excludes=_LATER,
    ),
    FaultKind(
        10,
        "a norm or a residual of the draft is applied in training and not in serving, or the other way round",
        "the draft's config, the engine's code",
        (),
        ("tensors_unused", "draft_norm_differs", "later_positions_low", "other_engine_fine",
         "accuracy_collapses_with_depth", *_LOW, *_CHECKPOINT),
        "lint",
        "Set the draft's norm flags as in training, on an engine that honours them",
        ("vllm-project/vllm#14464", "vllm-project/vllm#9565", "sgl-project/SpecForge#879", "vllm-project/vllm#42764",
         "gitea.gahow.org/gahow/xserv"),
        excludes=_LATER,
    ),
    FaultKind(
        11,
        "the draft is loaded under the target's quantisation, or its own dtype is lost",
        "the server's arguments, the engine's code",
        ("falls_with_draft_quantisation", "draft_quantised_unasked"),
        ("drafts_one_id", "draft_weights_differ", "falls_with_target_quantisation", "other_engine_fine", *_LOW,
         *_CHECKPOINT),
        "load line",
        "Give the draft its own quantisation argument, or none",
        ("sgl-project/sglang#34622", "sgl-project/sglang#28196", "vllm-project/vllm#49133", "vllm-project/vllm#9534"),
        excludes=_LATER,
    ),
    FaultKind(
        12,
        "the draft's KV cache is kept in a small dtype without scales",
        "the server's arguments",
        ("falls_with_draft_kv_dtype",),
        ("draft_attention_differs", "falls_with_target_quantisation", "later_positions_low", "other_engine_fine",
         *_LOW),
        "draft KV dtype",
        "Keep the draft's KV cache in bfloat16",
        ("vllm-project/vllm#24505", "vllm-project/vllm#32165"),
        excludes=_LATER,
    ),
    FaultKind(
        13,
        "the draft's positions are off: rope scaling dropped, trained context exceeded, multimodal positions, window "
        "ignored",
        "the draft's config, the engine's code",
        ("positions_tell",),
        ("falls_with_prompt_length", "falls_with_images", "later_rounds_low", "draft_rotation_differs",
         "later_positions_low", "engines_agree", "other_engine_fine", *_LOW, *_CHECKPOINT),
        "lengths",
        "Carry the rope settings over to the draft; beyond its trained context switch it off or train it longer",
        ("vllm-project/speculators#574", "sgl-project/sglang#6783", "vllm-project/speculators#684",
         "vllm-project/vllm#47602", "sgl-project/SpecForge#310"),
    ),
    FaultKind(
        14,
        "a state is paired with its own token where training paired it with the next one, or the labels are shifted",
        "the training code, the engine's code",
        ("tokens_shifted",),
        ("served_accuracy_low", "first_answer_position_low", "later_rounds_low", *_LOW, *_CHECKPOINT),
        "capture",
        "Shift the states by one token where they are paired",
        ("gitea.gahow.org/gahow/xserv", "sgl-project/SpecForge#885", "mlc-ai/mlc-llm#2266"),
    ),
)  # fmt: skip
