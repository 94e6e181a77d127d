"""What a flat config lacks, or holds, with which SGLang 0.5.23 and its transformers stop or build another model."""

from __future__ import annotations

from wiring.checkpoints.draft_producers import FLAT, default_layers
from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View

# `_STR_DTYPE_TO_TORCH_DTYPE` (`srt/configs/model_config.py`)
DTYPES = ("bfloat16", "float16", "float32", "half", "float")


def config(view: View) -> list[LintFinding]:
    """Fields that must be there, and that must be of one type, for the server to start.

    (AutoConfig of transformers 5; `get_model_architecture`, `LlamaForCausalLMEagle3`, `_get_and_verify_dtype`.)
    """
    if not _read_by_sglang(view):
        return []
    held, found = view.draft.config, []

    def say(kind: int, field: str, evidence: str, remedy: str) -> None:
        evidence = f"{evidence}: SGLang stops at its start"
        found.append(LintFinding(kind, "error", f"{view.draft.where}: {field}", evidence, remedy))

    if not held.get("architectures"):
        say(7, "architectures", "the config names no architecture", 'Write "architectures": ["LlamaForCausalLMEagle3"]')
    if not held.get("model_type"):
        say(
            7,
            "model_type",
            "the config names no model_type, without which transformers refuses it",
            'Write the type of its layers, such as "model_type": "llama"',
        )
    if "draft_vocab_size" not in held and not held.get("kv_lora_rank"):  # `kimi_k25_eagle3.py` does without
        say(9, "draft_vocab_size", "draft_vocab_size is not in the config", "Write it; null shares the target's head")
    eps = held.get("rms_norm_eps", 0.0)
    if held.get("model_type") in ("llama", "qwen3") and not isinstance(eps, float):
        say(
            10,
            "rms_norm_eps",
            f"rms_norm_eps is {_json(eps)}, and transformers refuses what is no decimal number",
            "Write it as a decimal number, such as 1e-06",
        )
    for field in ("dtype", "torch_dtype"):
        name = held.get(field)
        if name and name not in DTYPES and not (view.server and view.server.get("dtype")):
            say(
                11,
                field,
                f"{field} is {_json(name)}, in which no weights are loaded",
                f"Write the format of the training: {', '.join(DTYPES[:3])}",
            )
    return found


def layers(view: View) -> list[LintFinding]:
    """A number of layers that the config does not say, or says beyond those that the file holds."""
    draft = view.draft
    said, held = draft.layer.get("num_hidden_layers"), draft.held_layers
    where, kept = f"{draft.where}: num_hidden_layers", f"Write num_hidden_layers {held}"
    if said is None and _read_by_sglang(view):
        kept = kept if held else "Write the number of layers that were trained"
        if "num_hidden_layers" in draft.layer:
            evidence = "num_hidden_layers is null, which transformers refuses: SGLang stops at its start"
            return [LintFinding(10, "error", where, evidence, kept)]
        filled = default_layers(draft.config.get("model_type"))
        evidence = "num_hidden_layers is not in the config"
        if filled:
            evidence += f": transformers fills in {filled}, SGLang builds that many and KV cache for each"
            evidence += f", and {filled - held} of them are never loaded" if held else ""
        return [LintFinding(10, "error", where, evidence, kept)]
    if said and held and said > held:
        return [
            LintFinding(
                10,
                "error",
                where,
                f"num_hidden_layers is {said}, the file holds {held}: the rest would never be loaded",
                f"{kept}; or export the draft again, if it was trained with {said}",
            )
        ]
    return []


def _read_by_sglang(view: View) -> bool:
    return view.sglang and view.draft.producer in FLAT


def _json(value: object) -> str:
    return "null" if value is None else repr(value)
