"""Kinds 1 to 6: the target's states that reach the draft are not those that it was trained on."""

from __future__ import annotations

from wiring.diagnosis.faults.fault import FaultKind

_NOTHING = ("first_position_low", "nothing_accepted")
_PATH = ("accept_below_training", "served_accuracy_low")
_AT_ONCE = "first_round_below_training"  # where the prefill's states are wrong already

KINDS = (
    FaultKind(
        1,
        "the draft's layer ids are missing, nested elsewhere or ignored, and other layers are captured: the default "
        "ones, or those that the ids mean in another numbering; also in one phase alone (verify under CUDA graphs)",
        "the draft's config, the engine's code",
        ("other_boundaries_served", "served_accuracy_low"),
        ("accept_below_training", *_NOTHING, "layer_ids_ignored", "falls_with_cuda_graphs",
         "accept_below_served_states", "other_head_fine", "other_engine_fine", "differs_between_versions",
         "accuracy_low", _AT_ONCE, "later_rounds_low"),
        "lint",
        "Write the trained layers' ids where the engine reads them, in its numbering, and confirm by capture",
        ("vllm-project/vllm#50170", "lightseekorg/tokenspeed#526", "ggml-org/llama.cpp#27040",
         "RBLN-SW/vllm-rbln#831", "sgl-project/sglang#22836"),
        excludes=("engines_agree",),
    ),
    FaultKind(
        2,
        "one program counts the input of a layer, the other its output: every slot holds the neighbouring boundary",
        "the draft's config, the engine's code",
        ("boundaries_off_by_one",),
        (*_PATH, *_NOTHING, _AT_ONCE, "other_head_fine", "other_engine_fine",
         "differs_between_versions", "accept_below_served_states"),
        "capture",
        "Move the ids by one, and say beside them which convention they follow",
        ("sgl-project/sglang#25454",),
        excludes=("engines_agree",),
    ),
    FaultKind(
        3,
        "the states come in another order or number than fc was trained for, or fc has another width",
        "the draft's config, the engine's code",
        ("slots_reordered", "served_accuracy_low"),
        ("accept_below_training", *_NOTHING, _AT_ONCE, "other_head_fine", "other_engine_fine",
         "accept_below_served_states", "accuracy_low"),
        "lint",
        "Give the ids in the order and number of training, on an engine that keeps both",
        ("vllm-project/speculators#1065", "vllm-project/vllm#54526", "vllm-project/vllm#54598"),
        excludes=("engines_agree",),
    ),
    FaultKind(
        4,
        "states are captured before the all-reduce, gathered over the wrong group, or dropped at a pipeline stage",
        "the engine's code, with several ranks or stages",
        ("falls_with_tp",),
        ("falls_with_dp", "falls_with_pp", "falls_with_fused_all_reduce", "ranks_differ", "norm_ratio_off",
         "partial_sum", *_PATH, *_NOTHING, _AT_ONCE, "other_engine_fine", "accept_below_served_states"),
        "fusion off",
        "Capture after the all-reduce: switch its fusion off, or use a release that does",
        ("sgl-project/sglang#28343", "sgl-project/sglang#20492", "vllm-project/vllm#53052", "vllm-project/vllm#50514"),
        excludes=("engines_agree", "other_head_fine"),
    ),
    FaultKind(
        5,
        "the state is taken before or after a norm, without the residual, or after the final norm",
        "the engine's code",
        ("state_transformed", "served_accuracy_low"),
        ("accept_below_training", "norm_ratio_off", "partial_sum", *_NOTHING, _AT_ONCE, "other_engine_fine",
         "differs_between_versions", "accept_below_served_states"),
        "capture",
        "Move the tap to where training had it",
        ("vllm-project/vllm#14464", "gitea.gahow.org/gahow/xserv"),
        excludes=("engines_agree",),
    ),
    FaultKind(
        6,
        "the served target computes other numbers than the one in training: norms in low precision, quantised or "
        "rotated weights",
        "the engine's code, the target's checkpoint",
        ("drift_with_depth",),
        ("rotated_state", "norm_ratio_off", "falls_with_target_quantisation", "text_broken", *_PATH, *_NOTHING,
         _AT_ONCE, "other_engine_fine", "accuracy_falls_on_served_text"),
        "capture",
        "Compute the norms in float32, undo the rotation for the draft, or train it on the states as served",
        ("sgl-project/sglang#27540", "vllm-project/vllm-ascend#7038", "vllm-project/vllm#9534"),
    ),
)  # fmt: skip
