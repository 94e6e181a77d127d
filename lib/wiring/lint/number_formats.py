"""Number formats: quantisation, dtype and the KV cache of the draft, against the target's and the server's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wiring.lint.findings import LintFinding
from wiring.lint.flat_config import DTYPES
from wiring.lint.lint_inputs import View

_SCALES = ("scale", "scales", "qweight", "qzeros", "weight_packed", "scale_inv")


def quantisation(view: View) -> list[LintFinding]:
    """A quantisation in the draft's config: copied from the target onto plain weights, or real."""
    draft = view.draft
    own = draft.config.get("quantization_config")
    if not own:
        return []
    where = f"{draft.where}: quantization_config"
    theirs = _quantisation(view.target.config.raw, view.target.text) if view.target else None
    method = own.get("quant_method", "?") if isinstance(own, dict) else own
    source = "the target's, copied" if theirs == own else f"of method {method}"
    if draft.tensors is None:
        return [
            LintFinding(
                11,
                "warning",
                where,
                f"the draft's config has a quantisation, {source}",
                "See whether the weights are quantised; if not, remove it",
            )
        ]
    if not _quantised(draft.named):
        return [
            LintFinding(
                11,
                "error",
                where,
                f"the draft's config has a quantisation ({source}), its weights have none",
                "Remove quantization_config from the draft's config",
            )
        ]
    return [
        LintFinding(
            11,
            "warning",
            where,
            f"the draft itself is quantised ({source}): its proposals are coarser",
            "Compare with the draft from before its quantisation",
        )
    ]


def inherited(view: View) -> list[LintFinding]:
    """The server's --quantization, which SGLang gives to the draft too unless told otherwise.

    (`srt/arg_groups/serving_hook.py`, `speculative_draft_model_quantization`, 0.5.23.)
    """
    server = view.server
    assert server is not None, "needs the server's arguments"
    asked, draft = server.get("quantization"), server.get("speculative_draft_model_quantization")
    method = draft or (None if server.running else asked)
    if not method or method == "unquant" or view.draft.config.get("quantization_config"):
        return []
    return [
        LintFinding(
            11,
            "warning",
            f"{server.where}: speculative_draft_model_quantization",
            f"the draft is loaded as {method}{', which it takes over from the target' if method == asked else ''}; "
            "its config asks for none",
            "Start with --speculative-draft-model-quantization unquant",
        )
    ]


def dtype(view: View) -> list[LintFinding]:
    """The draft's number format against the target's; without one in the config SGLang takes float16."""
    draft, target, server = view.draft, view.target, view.server
    assert target is not None, "needs the target's config"
    if server is not None and server.get("dtype"):
        return []  # both are loaded in it
    ours, theirs = _dtype(draft.config, draft.layer), _dtype(target.config.raw, target.text)
    if view.sglang:  # `srt/configs/model_config.py`, `_get_and_verify_dtype`: float32 and none become float16
        ours, theirs = (name if name not in (None, "float32") else "float16" for name in (ours, theirs))
    if ours is None or theirs is None or ours == theirs or ours not in DTYPES:  # `loading.config` tells the last
        return []
    return [
        LintFinding(
            11,
            "warning",
            f"{draft.where}: torch_dtype",
            f"the draft is loaded in {ours}, the target in {theirs}",
            f"Start with --dtype {theirs}, or write the dtype of the training into the draft's config",
        )
    ]


def kv_cache(view: View) -> list[LintFinding]:
    """A draft KV cache in eight bits, for which a draft brings no scales."""
    server = view.server
    assert server is not None, "needs the server's arguments"
    own = server.get("speculative_draft_kv_cache_dtype")
    kind = str(own or server.get("kv_cache_dtype") or "")
    if not kind.startswith(("fp8", "fp4", "int8")):
        return []
    name = "speculative_draft_kv_cache_dtype" if own else "kv_cache_dtype"
    return [
        LintFinding(
            12,
            "warning",
            f"{server.where}: {name}",
            f"the draft's KV cache is {kind}, and a draft has no scales for it",
            "Compare with --speculative-draft-kv-cache-dtype bf16",
        )
    ]


def _quantisation(raw: Mapping[str, Any], text: Mapping[str, Any]) -> Any:
    return raw.get("quantization_config") or text.get("quantization_config")


def _quantised(tensors: Mapping[str, Any]) -> bool:
    return any(name.rpartition(".")[2].endswith(_SCALES) for name in tensors) or any(
        tensor.dtype.itemsize < 2 for name, tensor in tensors.items() if name not in ("d2t", "t2d")
    )


def _dtype(config: Mapping[str, Any], layer: Mapping[str, Any]) -> str | None:
    for part in (layer, config):
        name = part.get("dtype") or part.get("torch_dtype")
        if name:
            return str(name).removeprefix("torch.")
    return None
