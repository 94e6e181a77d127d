"""Detect the producer of a draft checkpoint, and map each producer's tensor names to one canonical name.

Formats read: SafeAILab/EAGLE (yuhuili's files), SpecForge 0.2.0 (`export/to_hf.py`, `training/controller.py`),
speculators 0.9.0 (`models/eagle3`), Model Optimizer at a2fbac7b (`export/plugins/hf_spec_export.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wiring.checkpoints.config_fields import not_implemented
from wiring.errors import WiringError

PRODUCERS = ("specforge", "safeailab", "speculators", "modelopt", "sglang")
# Producers of a config with one level; "sglang" is how SGLang reads such a file.
FLAT = ("specforge", "safeailab", "modelopt", "sglang")
_FLAT_NAMES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3LlamaForCausalLM")
_SPECULATORS_NAMES = ("Eagle3Speculator", "Eagle3DraftModel")
_PREFIXES = ("draft_model.", "model.")  # of a trainer's and an engine's wrapper
_RENAMED = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}

# Defaults of transformers' LlamaConfig and Qwen3Config: speculators stores only what differs from them.
_SHARED_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
}
_LAYER_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _SHARED_DEFAULTS
    | {
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
    },
    "qwen3": _SHARED_DEFAULTS
    | {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}


def detect_producer(config: Mapping[str, Any], names: Iterable[str] = ()) -> str:
    """Return the producer of a config and of tensors with these names in the file."""
    architectures = config.get("architectures") or []
    if "speculators_model_type" in config or set(architectures) & set(_SPECULATORS_NAMES):
        return "speculators"
    names = list(names)
    if any(_bare(name).startswith("layers.0.") for name in names):
        return "modelopt"
    # SafeAILab's config is that of a Llama model; SpecForge names its own architecture.
    return "safeailab" if "LlamaForCausalLM" in architectures and "eagle_config" not in config else "specforge"


def check_architecture(config: Mapping[str, Any], producer: str, where: object) -> None:
    """Raise WiringError for an unknown producer, UnreadForward for a forward pass that is not implemented."""
    if producer not in PRODUCERS:
        raise WiringError(
            "not a producer of drafts",
            code="producer-unknown",
            where="producer",
            expected=", ".join(PRODUCERS),
            found=producer,
        )
    nested = config.get("eagle_config") or {}
    known = _SPECULATORS_NAMES if producer == "speculators" else _FLAT_NAMES
    architectures = config.get("architectures") or []
    kind = config.get("speculators_model_type", "eagle3" if producer == "speculators" else None)
    problems = {
        f"architecture {', '.join(map(str, architectures))}": bool(set(architectures) - set(known)),
        "multi-head latent attention (kv_lora_rank)": bool(config.get("kv_lora_rank")),
        f"a speculators file of type {kind}": kind not in ("eagle3" if producer == "speculators" else None,),
        "model_type llama4_text": config.get("model_type") == "llama4_text",
        "quantized weights": bool(config.get("quantization_config")),
        "a draft without target states (use_aux_hidden_state false)": nested.get("use_aux_hidden_state") is False,
        "parallel draft steps": (nested.get("parallel_draft_step") or 1) != 1,
    }
    found = [name for name, present in problems.items() if present]
    if found:
        raise not_implemented(where, f"an EAGLE-3 draft of Llama-style layers ({', '.join(known)})", "; ".join(found))


def canonical(name: str) -> str:
    """Return a tensor's canonical name: `layers.{i}.`, `fc_norm.{i}.weight`, no wrapper's prefix."""
    name = _bare(name)
    for old, new in _RENAMED.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def loaded_by_sglang(name: str) -> bool:
    """Return whether SGLang 0.5.23 loads a tensor of the draft that has this name, prefix included.

    It tries the name as it is and with the prefix `model.`, which all parameters but the head have; d2t is found by
    any name that contains it (`LlamaForCausalLMEagle3.load_weights`). Everything else is dropped.
    """
    if "d2t" in name or "t2d" in name:
        return True
    return name == "lm_head.weight" if canonical(name) == "lm_head.weight" else not name.startswith("draft_model.")


def as_written(name: str, names: Iterable[str]) -> str:
    """Return the name that a file with tensors of the given `names` has for the tensor with this canonical name."""
    midlayer = any(_bare(other).startswith("midlayer.") for other in names)
    return "midlayer." + name.removeprefix("layers.0.") if midlayer and name.startswith("layers.0.") else name


def layer_config(config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Return speculators' `transformer_layer_config` with missing fields filled with the defaults of its class.

    Raises UnreadForward if it is missing or not of the llama or qwen3 class that speculators 0.9.0 has for EAGLE-3
    (without a model_type it takes qwen3).
    """
    nested = config.get("transformer_layer_config")
    kind = nested.get("model_type", "qwen3") if isinstance(nested, dict) else None
    if not isinstance(nested, dict) or kind not in _LAYER_DEFAULTS:
        raise not_implemented(where, "transformer_layer_config of model_type llama or qwen3", repr(kind))
    whole = _LAYER_DEFAULTS[kind] | nested | {"model_type": kind}
    if kind == "qwen3" and not whole["use_sliding_window"]:
        whole["sliding_window"] = None
    return whole


def default_layers(model_type: object) -> int | None:
    """Return the number of layers that transformers fills in for this type; None for an unknown type."""
    return _LAYER_DEFAULTS.get(str(model_type), {}).get("num_hidden_layers")


def windows(layer: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Return the sliding window of each layer of a filled layer config, in keys; None for a layer that sees all."""
    count, window = layer["num_hidden_layers"], layer.get("sliding_window")
    types = layer.get("layer_types")
    if types is None:
        first = layer["max_window_layers"] if layer["model_type"] == "qwen3" else count
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    return tuple(window if i < len(types) and types[i] == "sliding_attention" else None for i in range(count))


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
