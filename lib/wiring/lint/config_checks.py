"""Check a draft's config.json: what the engine reads from it, and what the target's config has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wiring.checkpoints.draft_check import check_config
from wiring.checkpoints.draft_producers import FLAT, default_layers
from wiring.checkpoints.file_findings import Finding
from wiring.lint.lint_inputs import View

# `_STR_DTYPE_TO_TORCH_DTYPE` (`srt/configs/model_config.py`, SGLang 0.5.23)
DTYPES = ("bfloat16", "float16", "float32", "half", "float")
# EAGLE-3 drafts that SGLang 0.5.23 loads by class name (`srt/models`), and the name that has a finding of its own.
_LOADED = {"LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM"}
_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_SCALES = ("scale", "scales", "qweight", "qzeros", "weight_packed", "scale_inv")
_WRITE_ARCHITECTURE = 'Write "architectures": ["LlamaForCausalLMEagle3"] into a copy of the draft\'s config'
_SAME_TARGET = "Serve the draft with the target that it was trained for"


def required_fields(view: View) -> Iterator[Finding]:
    """Report fields of a flat config without which SGLang 0.5.23 or its transformers does not start.

    Read from AutoConfig of transformers 5, `get_model_architecture`, `LlamaForCausalLMEagle3` and
    `_get_and_verify_dtype`.
    """
    config, server = view.draft.config, view.given_server
    if not _read_by_sglang(view):
        return
    found: list[tuple[str, int, str, str]] = []  # (field, fault, problem, remedy)
    if not config.get("architectures"):
        remedy = 'Write "architectures": ["LlamaForCausalLMEagle3"]'
        found.append(("architectures", 7, "the config names no architecture", remedy))
    if not config.get("model_type"):
        remedy = 'Write the type of its layers, such as "model_type": "llama"'
        found.append(("model_type", 7, "the config names no model_type, which transformers needs", remedy))
    if "draft_vocab_size" not in config and not config.get("kv_lora_rank"):  # `kimi_k25_eagle3.py` does not read it
        remedy = "Write it; null shares the target's head"
        found.append(("draft_vocab_size", 9, "draft_vocab_size is not in the config", remedy))
    eps = config.get("rms_norm_eps", 0.0)
    if config.get("model_type") in ("llama", "qwen3") and not isinstance(eps, float):
        problem = f"rms_norm_eps is {_json(eps)}, and transformers accepts only a decimal number"
        found.append(("rms_norm_eps", 10, problem, "Write it as a decimal number, such as 1e-06"))
    for field in ("dtype", "torch_dtype"):
        name = config.get(field)
        if name and name not in DTYPES and not (server and server.get("dtype")):
            remedy = f"Write the dtype of the training: {', '.join(DTYPES[:3])}"
            found.append((field, 11, f"{field} is {_json(name)}, which is not a format of weights", remedy))
    for field, fault, problem, remedy in found:
        yield Finding(fault, "error", view.draft.at(field), f"{problem}: SGLang stops at its start", remedy)


def number_of_layers(view: View) -> Iterator[Finding]:
    """Report a number of layers that is missing, or larger than the number of layers in the file."""
    draft, where = view.draft, view.draft.at("num_hidden_layers")
    stated, stored = draft.layer.get("num_hidden_layers"), draft.stored_layers
    remedy = f"Write num_hidden_layers {stored}" if stored else "Write the number of layers that were trained"
    if stated and stored and stated > stored:
        evidence = f"num_hidden_layers is {stated}, the file holds {stored}: the others would not be loaded"
        yield Finding(
            10, "error", where, evidence, f"{remedy}; or export the draft again, if it was trained with {stated}"
        )
    if stated is not None or not _read_by_sglang(view):
        return
    if "num_hidden_layers" in draft.layer:
        evidence = "num_hidden_layers is null, which transformers does not accept: SGLang stops at its start"
    else:
        evidence = "num_hidden_layers is not in the config"
        if default := default_layers(draft.config.get("model_type")):
            evidence += f": transformers fills in {default}, SGLang builds that many and KV cache for each"
            evidence += f", and {default - stored} of them are not loaded" if stored else ""
    yield Finding(10, "error", where, evidence, remedy)


def architecture(view: View) -> Iterator[Finding]:
    """Report an architecture under which the engine loads another model than an EAGLE-3 draft.

    SGLang 0.5.23 loads the class of this name (`LlamaForCausalLMEagle3`); SafeAILab's files name LlamaForCausalLM.
    """
    draft, where = view.draft, view.draft.at("architectures")
    names = list(draft.config.get("architectures") or [])
    if draft.tensors is not None and "fc.weight" not in draft.named:
        evidence = "its tensors have no fc.weight, so it is not an EAGLE-3 draft"
        yield Finding(
            7, "error", draft.where, evidence, "Point --draft to the draft's folder, --target to the target's"
        )
    elif names and _read_by_sglang(view) and not set(names) & _LOADED and is_eagle3(view):
        evidence = f"SGLang has no draft model {', '.join(names)}"
        yield Finding(7, "error", where, evidence, _WRITE_ARCHITECTURE)
    elif is_eagle3(view) is False:
        remedy = "Serve a draft that was trained as EAGLE-3, or another --speculative-algorithm"
        yield Finding(7, "error", where, f"{', '.join(names)} is not an EAGLE-3 draft", remedy)
    elif _read_by_sglang(view) and "LlamaForCausalLM" in names:
        evidence = "LlamaForCausalLM makes SGLang load a plain Llama model instead of the draft"
        yield Finding(7, "error", where, evidence, _WRITE_ARCHITECTURE)


def is_eagle3(view: View) -> bool | None:
    """Return whether the draft is an EAGLE-3 draft; None if architecture and tensors do not decide it."""
    draft = view.draft
    names = set(draft.config.get("architectures") or [])
    model_type = draft.config.get("speculators_model_type")
    if model_type == "eagle3" or any("Eagle3" in name for name in names):
        return True
    if model_type or any(other in name for name in names for other in ("Eagle", "MTP", "NextN")):
        return False
    q, hidden = draft.named.get("layers.0.self_attn.q_proj.weight"), draft.layer.get("hidden_size")
    if "fc.weight" not in draft.named or q is None or not hidden:
        return None
    return q.shape[1] == 2 * hidden  # its attention reads embedding and state


def config_format(view: View) -> Iterator[Finding]:
    """Report a config in the format of speculators on SGLang, which reads flat configs only."""
    if view.sglang and view.draft.producer == "speculators":
        evidence = "the config has the format of speculators (transformer_layer_config), which SGLang does not read"
        remedy = "Serve it with vLLM, or convert config and tensor names to a flat file"
        yield Finding(10, "error", view.draft.where, evidence, remedy)


def norm_before_residual(view: View) -> Iterator[Finding]:
    """Report a first residual that is the normed state: speculators trains it, vLLM serves it, SGLang does not."""
    where = view.draft.at("norm_before_residual")
    if not view.draft.config.get("norm_before_residual"):
        return
    if view.sglang:
        evidence = "norm_before_residual is true, and SGLang ignores it: already the first proposal is wrong"
        yield Finding(10, "error", where, evidence, "Serve it with vLLM, or retrain with false")
    elif view.draft.producer != "speculators":
        evidence = "norm_before_residual is true in a flat config, for which no trainer implements it"
        yield Finding(10, "warning", where, evidence, "Serve a draft of speculators in the format of speculators")


def forward_variants(view: View) -> Iterator[Finding]:
    """Report what the config leaves open, or what trainer and engine read differently."""
    draft, faults = view.draft, {"norm_output": 10, "norm_before_residual": 10, "rope": 13}
    assert draft.shape is not None, "needs the shape"
    for finding in check_config(draft.shape, draft.config, draft.producer, "", draft.where):
        reported = finding.kind == "norm_before_residual" and bool(draft.config.get("norm_before_residual"))
        fault = faults.get(str(finding.kind))
        if fault and finding.severity != "note" and not reported:
            yield Finding(fault, finding.severity, finding.where, finding.evidence, finding.remedy)
    if view.sglang and not draft.shape.head_norm and draft.producer != "specforge":
        evidence = "the draft was trained without a norm before lm_head, SGLang always applies one"
        yield Finding(10, "error", draft.where, evidence, "Serve it with an engine that reads use_last_layernorm")


def widths(view: View) -> Iterator[Finding]:
    """Report states of another width than the target's, and a shared embedding of another width than the draft."""
    draft, width = view.draft, view.target.hidden_size
    hidden = draft.layer.get("hidden_size")
    if draft.width is not None and draft.width != width:
        where = draft.at("target_hidden_size" if draft.config.get("target_hidden_size") else "hidden_size")
        evidence = f"the draft takes states of width {draft.width}, the target's have width {width}"
        yield Finding(3, "error", where, evidence, _SAME_TARGET)
    elif hidden not in (None, width) and draft.tensors is not None and "embed_tokens.weight" not in draft.named:
        evidence = f"the draft has width {hidden} and the target {width}, so the target's embedding cannot be shared, "
        evidence += "and the file holds none"
        yield Finding(8, "error", draft.at("hidden_size"), evidence, "Export the draft with its embedding")


def vocabulary(view: View) -> Iterator[Finding]:
    """Report a vocabulary of another size than the target's."""
    size, expected = view.draft.layer.get("vocab_size"), view.target.vocab_size
    if size not in (None, expected):
        evidence = f"the draft's vocabulary has {size} ids, the target's {expected}"
        yield Finding(9, "error", view.draft.at("vocab_size"), evidence, _SAME_TARGET)


def rope(view: View) -> Iterator[Finding]:
    """Warn about another RoPE base or scaling than the target's: converters drop them, and long texts then fail.

    A draft may be trained with its own, and no file records it. If the target's attention is latent (kv_lora_rank) its
    rotation differs anyway, and a draft without scaling is usual. SafeAILab always trains with base 10000.
    """
    draft, text = view.draft, view.target.text
    ours, theirs = _rope_parameters(draft.layer), _rope_parameters(text)
    if draft.producer != "safeailab" and ours["base"] != theirs["base"]:
        evidence = f"the draft's RoPE base is {ours['base']:g}, the target's {theirs['base']:g}"
        remedy = "Serve the base that the draft was trained with; a wrong one costs more the longer the text"
        yield Finding(13, "warning", draft.at("rope_theta"), evidence, remedy)
    usual = ours["type"] == "default" and bool(text.get("kv_lora_rank"))
    if usual or (ours["type"], ours["factor"]) == (theirs["type"], theirs["factor"]):
        return
    ours, theirs = (
        "none" if rope["type"] == "default" else f"{rope['type']} by {rope['factor']}" for rope in (ours, theirs)
    )
    evidence = f"the draft's RoPE scaling is {ours}, the target's {theirs}"
    remedy = "Serve the scaling that the draft was trained with; a config copied from a target may hold another"
    yield Finding(13, "warning", draft.at("rope_scaling"), evidence, remedy)


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return type, base and factor from either spelling; `rope_scaling` first, as every reader of drafts does."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    new = new.get("full_attention", new)
    given = old or new
    base = config.get("rope_theta") or given.get("rope_theta") or new.get("rope_theta") or 10000.0
    name = str(given.get("rope_type") or given.get("type") or "default")
    return {"type": name, "base": float(base), "factor": None if name == "default" else given.get("factor")}


def context(view: View) -> Iterator[Finding]:
    """Report a context of the draft that is shorter than the served one.

    SGLang does not start then, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set
    (`srt/configs/model_config.py`, `_derive_context_length`, 0.5.23).
    """
    server = view.given_server
    ours, theirs = context_length(view.draft.layer), context_length(view.target.text)
    limit = server.get("context_length") or server.get("max_model_len") if server else None
    served = int(limit) if limit else theirs
    if ours is None or served is None or ours >= served:
        return
    stops = view.sglang and not (server and server.running)
    evidence = f"the draft's context is {ours} tokens, up to {served} are served"
    evidence += ": SGLang stops at its start" if stops else ": beyond its context, its proposals are arbitrary"
    remedy = f"Serve with --context-length {ours}" if view.sglang else f"Serve with a context of {ours}"
    if stops:
        remedy += ", or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 and expect less acceptance beyond it"
    severity = "error" if stops else "warning"
    yield Finding(13, severity, view.draft.at("max_position_embeddings"), evidence, remedy)


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the context in tokens as SGLang 0.5.23 derives it (`srt/utils/hf_transformers/common.py`)."""
    scaling = config.get("rope_scaling") or {}
    factor, scaled = scaling.get("factor"), "original_max_position_embeddings" in scaling
    if not isinstance(factor, int | float) or scaled or scaling.get("rope_type") == "llama3":
        factor = 1  # the length in the config is already the scaled one
    return next((int(factor * config[name]) for name in _LENGTHS if isinstance(config.get(name), int | float)), None)


def window(view: View) -> Iterator[Finding]:
    """Warn about a sliding window in the config: SGLang's EAGLE-3 draft reads an argument instead."""
    layer, size = view.draft.layer, view.draft.layer.get("sliding_window")
    served = view.given_server.get("speculative_draft_window_size") if view.given_server else None
    unused = not size or layer.get("use_sliding_window") is False or served == size
    if unused or not _read_by_sglang(view):
        return
    evidence = f"the draft's config has a window of {size}, SGLang serves {served or 'none'}"
    remedy = f"If it was trained with one: --speculative-draft-window-size {size}"
    yield Finding(13, "warning", view.draft.at("sliding_window"), evidence, remedy)


def quantization(view: View) -> Iterator[Finding]:
    """Report a quantization in the draft's config: copied from the target, or real."""
    draft, own = view.draft, view.draft.config.get("quantization_config")
    if not own:
        return
    where, source = draft.at("quantization_config"), f"of method {own.get('quant_method', '?')}"
    if view.given_target is not None:
        raw, text = view.target.raw, view.target.text
        source = (
            "the target's, copied"
            if own == (raw.get("quantization_config") or text.get("quantization_config"))
            else source
        )
    if draft.tensors is None:
        evidence = f"the draft's config has a quantization, {source}"
        yield Finding(11, "warning", where, evidence, "Check whether the weights are quantized; if not, remove it")
    elif _quantized(draft.named):
        evidence = f"the draft is quantized ({source}), which lowers the quality of its proposals"
        yield Finding(11, "warning", where, evidence, "Compare with the draft before quantization")
    else:
        evidence = f"the draft's config has a quantization ({source}), its weights have none"
        yield Finding(11, "error", where, evidence, "Remove quantization_config from the draft's config")


def _quantized(tensors: Mapping[str, Any]) -> bool:
    return any(name.rpartition(".")[2].endswith(_SCALES) for name in tensors) or any(
        tensor.dtype.itemsize < 2 for name, tensor in tensors.items() if name not in ("d2t", "t2d")
    )


def dtype(view: View) -> Iterator[Finding]:
    """Warn about another dtype than the target's; SGLang loads a draft without a dtype in float16."""
    draft, target = view.draft, view.target
    if view.given_server is not None and view.given_server.get("dtype"):
        return  # both are loaded in it
    ours, theirs = _dtype(draft.layer, draft.config), _dtype(target.text, target.raw)
    if view.sglang:  # `srt/configs/model_config.py`, `_get_and_verify_dtype`: float32 and none become float16
        ours, theirs = (name if name not in (None, "float32") else "float16" for name in (ours, theirs))
    if None in (ours, theirs) or ours == theirs or ours not in DTYPES:  # `required_fields` reports the last
        return
    remedy = f"Start with --dtype {theirs}, or write the dtype of the training into the draft's config"
    evidence = f"the draft is loaded in {ours}, the target in {theirs}"
    yield Finding(11, "warning", draft.at("torch_dtype"), evidence, remedy)


def _dtype(*configs: Mapping[str, Any]) -> str | None:
    names = (config.get("dtype") or config.get("torch_dtype") for config in configs)
    return next((str(name).removeprefix("torch.") for name in names if name), None)


def _read_by_sglang(view: View) -> bool:
    return view.sglang and view.draft.producer in FLAT


def _json(value: object) -> str:
    return "null" if value is None else repr(value)
