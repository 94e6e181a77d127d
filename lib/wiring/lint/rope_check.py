"""Rotary embedding, context and windows of the draft, against the target's and against what the engine does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View

_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


def base_and_scaling(view: View) -> list[LintFinding]:
    """The draft's base and scaling against the target's: converters drop them, and then proposals fail with length.

    A draft may be trained with its own; nothing but the training tells, so this is a warning. Where the target's
    attention is latent (kv_lora_rank) its rotation is of another kind, and a draft without scaling beside it is usual.
    SafeAILab always trains with base 10000, whatever the target's.
    """
    draft, target = view.draft, view.target
    assert target is not None, "needs the target's config"
    ours, theirs = _rope(draft.layer), _rope(target.text)
    found = []
    if draft.producer != "safeailab" and ours["rope_theta"] != theirs["rope_theta"]:
        found.append(
            LintFinding(
                13,
                "warning",
                f"{draft.where}: rope_theta",
                f"the draft's RoPE base is {ours['rope_theta']:g}, the target's {theirs['rope_theta']:g}",
                "Serve the base that the draft was trained with; a wrong one costs more the longer the text",
            )
        )
    if evidence := _scaling(ours, theirs, latent=bool(target.text.get("kv_lora_rank"))):
        remedy = "Serve the scaling that the draft was trained with; a config copied from a target may hold another"
        found.append(LintFinding(13, "warning", f"{draft.where}: rope_scaling", evidence, remedy))
    return found


def _scaling(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, latent: bool) -> str:
    """What the two scalings are where they differ in a way that is worth a word; empty where not."""
    if (ours["type"], ours["factor"]) == (theirs["type"], theirs["factor"]):
        return ""
    if ours["type"] == "default":
        told = f"the target scales its RoPE ({theirs['type']}, factor {theirs['factor']}), the draft's config does not"
        return "" if latent else told
    if theirs["type"] == "default":
        return f"the draft's config scales its RoPE ({ours['type']}, factor {ours['factor']}), the target does not"
    ours_is, theirs_is = (f"{rope['type']} by {rope['factor']}" for rope in (ours, theirs))
    return f"the draft's RoPE scaling is {ours_is}, the target's {theirs_is}"


def context(view: View) -> list[LintFinding]:
    """The draft's longest text against the one that is served.

    SGLang stops at its start where the draft's is shorter, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set
    (`srt/configs/model_config.py`, `_derive_context_length`, 0.5.23).
    """
    draft, target, server = view.draft, view.target, view.server
    assert target is not None, "needs the target's config"
    ours, theirs = context_length(draft.layer), context_length(target.text)
    limited = server.get("context_length") or server.get("max_model_len") if server else None
    served = int(limited) if limited else theirs
    if ours is None or served is None or ours >= served:
        return []
    stops = view.sglang and not (server and server.running)
    evidence = f"the draft is made for {ours} tokens, served are up to {served}"
    evidence += ": SGLang stops at its start" if stops else ": beyond, its proposals are guesses"
    remedy = f"Serve with --context-length {ours}" if view.sglang else f"Serve with a context of {ours}"
    if stops:
        remedy += ", or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 and expect less acceptance beyond it"
    return [
        LintFinding(13, "error" if stops else "warning", f"{draft.where}: max_position_embeddings", evidence, remedy)
    ]


def window(view: View) -> list[LintFinding]:
    """A sliding window in the draft's config, which SGLang's EAGLE-3 draft does not read (it takes an argument)."""
    draft = view.draft
    layer = draft.layer
    size = layer.get("sliding_window")
    if not view.sglang or not size or layer.get("use_sliding_window") is False or draft.producer == "speculators":
        return []
    served = view.server.get("speculative_draft_window_size") if view.server else None
    if served == size:
        return []
    return [
        LintFinding(
            13,
            "warning",
            f"{draft.where}: sliding_window",
            f"the draft's config has a window of {size}, SGLang serves {served or 'none'}",
            f"If it was trained with one: --speculative-draft-window-size {size}",
        )
    ]


def context_length(config: Mapping[str, Any]) -> int | None:
    """The longest text in tokens, as SGLang 0.5.23 derives it (`srt/utils/hf_transformers/common.py`)."""
    scaling = config.get("rope_scaling") or {}
    factor, scaled = scaling.get("factor"), "original_max_position_embeddings" in scaling
    if not isinstance(factor, int | float) or scaled or scaling.get("rope_type") == "llama3":
        factor = 1  # the length in the config is the scaled one already
    for name in _LENGTHS:
        if isinstance(config.get(name), int | float):
            return int(factor * config[name])
    return None


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Type, base and factor from either spelling; `rope_scaling` first, as all readers of drafts do."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    new = new.get("full_attention", new) if isinstance(new, dict) else {}
    given = old if isinstance(old, dict) and old else new
    base = config.get("rope_theta") or given.get("rope_theta") or new.get("rope_theta") or 10000.0
    kind = str(given.get("rope_type") or given.get("type") or "default")
    return {"type": kind, "rope_theta": float(base), "factor": given.get("factor")}
