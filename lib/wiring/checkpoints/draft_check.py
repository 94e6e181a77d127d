"""Check a draft's tensors against its config: every tensor is read by the forward pass or named in a finding.

Engines drop unknown tensors and leave missing ones at their initial values without a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.draft_config import EMBEDDING, HEAD, MEANINGS, Eagle3Config, Sharing, named_slots
from wiring.checkpoints.draft_producers import as_written
from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.rope_config import disagreement
from wiring.checkpoints.vocabulary_map import check_vocabulary_map

if TYPE_CHECKING:
    from torch import Tensor

# Parts of names that only tensors of another forward pass have.
_OTHER_FORWARD = ("q_norm", "k_norm", "kv_a_", "kv_b_", "q_a_", "q_b_", "experts", "sinks", "embed_layernorm")
_BIASES = {"attention_bias": "q_proj.bias", "output_bias": "o_proj.bias", "mlp_bias": "up_proj.bias"}


@dataclass(frozen=True)
class Stored:
    """Tensors of a checkpoint by canonical name, and for each the name in its file and the file."""

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    files: Mapping[str, object]
    folder: object

    def where(self, name: str) -> str:
        """Return file and tensor by their names on disk."""
        stored = self.names.get(name, as_written(name, self.names.values()))
        return f"{self.files.get(name, self.folder)}: tensor {stored}"


def fit_to_tensors(
    shape: Eagle3Config, stored: Stored, config: Mapping[str, Any], producer: str
) -> tuple[Eagle3Config, list[Finding]]:
    """Correct `shape` where the tensors decide: slot count, biases of SpecForge and SafeAILab, norms of deep layers."""
    tensors, findings = stored.tensors, []
    fc = tensors.get("fc.weight")
    slots, rest = divmod(fc.shape[1], shape.target_hidden_size) if fc is not None and fc.dim() == 2 else (0, 0)
    if slots and not rest and slots != shape.num_slots:
        named = named_slots(config, producer)
        said = f"the config names {named}" if named else f"the config names none, so {shape.num_slots} are assumed"
        text = f"fc takes {slots} states of width {shape.target_hidden_size}, {said}"
        remedy = "The tensor is used; write its layer ids into the config, or an engine will not load it"
        findings.append(Finding("slot count", "warning", stored.where("fc.weight"), text, remedy))
        shape = replace(shape, num_slots=slots)
    for flag, name in _BIASES.items() if producer in ("specforge", "safeailab") else ():
        present = any(other.endswith(name) for other in tensors)
        if getattr(shape, flag) and not present:
            text = f"the config asks for biases ({name}) that the file lacks, and its trainer builds none"
            findings.append(Finding("bias", "note", str(stored.folder), text))
        shape = replace(shape, **{flag: getattr(shape, flag) and present})
    deeper = {n for n in ("hidden_norm", "input_layernorm") if f"layers.1.{n}.weight" in tensors}
    if len(deeper) == 1 and producer != "sglang":
        shape = replace(shape, deeper_norm=deeper.pop())
    return shape, findings


def check_tensors(shape: Eagle3Config, stored: Stored, shared: Sharing, producer: str) -> list[Finding]:
    """Report missing, unused, wrongly shaped, quantized and non-finite tensors."""
    required = shape.required_shapes()
    known = shape.optional_shapes() | required
    if producer == "sglang" and shared.embedding == "draft":
        required[EMBEDDING] = known[EMBEDDING]
    absent = (_missing(n, required[n], stored, shared, producer) for n in required if n not in stored.tensors)
    present = (_tensor_fault(name, tensor, shape, known, stored.where(name)) for name, tensor in stored.tensors.items())
    return [finding for finding in (*absent, *present) if finding is not None]


def _missing(name: str, size: tuple[int, ...], stored: Stored, shared: Sharing, producer: str) -> Finding | None:
    where, sglang = stored.where(name), producer == "sglang"
    if name == HEAD and shared.head != "draft":
        source = "the target's is used" if shared.head == "target" else "the embedding is used"
        return Finding("missing tensor", "note", where, f"the draft has no head of its own: {source}")
    if name == "d2t" and "t2d" in stored.tensors and not sglang:
        return None  # derived, see read_vocabulary
    remedy = ""
    if name == "d2t":
        remedy = "Without it, or t2d, draft ids cannot be translated to target ids"
        if sglang:
            remedy = "SGLang reads no t2d, and without d2t takes draft ids for target ids"
    elif sglang and name == HEAD:
        remedy = "SGLang shares the target's only where draft_vocab_size is null"
    return Finding("missing tensor", "error", where, f"it is missing: expected {list(size)}, found nothing", remedy)


def _tensor_fault(
    name: str, tensor: Tensor, shape: Eagle3Config, known: Mapping[str, tuple[int, ...]], where: str
) -> Finding | None:
    found = list(tensor.shape)
    if name not in known:
        other = any(part in name for part in _OTHER_FORWARD)
        remedy = "An engine would drop it without a message; the draft may come from another trainer"
        if other:
            remedy = "It belongs to another forward pass than the config's"
        return Finding("unused tensor", "error" if other else "warning", where, f"nothing reads it ({found})", remedy)
    if tuple(found) != known[name]:
        text = f"expected {list(known[name])} by the config, found {found}"
        slots = f"The config has {shape.num_slots} states of width {shape.target_hidden_size}: check layer ids and "
        remedy = slots + "target_hidden_size" if name == "fc.weight" else ""
        return Finding("wrong shape", "error", where, text, remedy)
    if name not in ("d2t", "t2d") and tensor.dtype.itemsize < 2:
        text = f"numbers of {tensor.dtype} need scales that are not read here"
        return Finding("number format", "error", where, text, "Use the draft from before its quantization")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        remedy = "speculators fills weights that were never loaded with NaN" if name in (EMBEDDING, HEAD) else ""
        return Finding("not finite", "error", where, "it holds NaN or infinity", remedy)
    return None


def read_vocabulary(shape: Eagle3Config, stored: Stored, producer: str) -> tuple[dict[str, Tensor], list[Finding]]:
    """Return d2t [Vd] int64 and t2d [V] bool as far as the file has them in their shapes, and what is wrong with them.

    A missing d2t is derived from t2d, except for SGLang, which reads d2t alone.
    """
    import torch

    lengths = {"d2t": shape.draft_vocab_size, "t2d": shape.vocab_size}
    held = {n: stored.tensors[n] for n in lengths if n in stored.tensors and stored.tensors[n].shape == (lengths[n],)}
    findings = check_vocabulary_map(held.get("d2t"), held.get("t2d"), *lengths.values(), where=stored.where)
    types = {"d2t": torch.int64, "t2d": torch.bool}
    maps = {name: tensor.to(types[name]) for name, tensor in held.items()}
    if "d2t" not in stored.tensors and "t2d" in maps and producer != "sglang" and not findings:
        marked = maps["t2d"].nonzero().flatten()  # [Vd]
        maps["d2t"] = marked - torch.arange(len(marked))
        findings.append(Finding("vocabulary map", "note", stored.where("d2t"), "it is not there; derived from t2d"))
    return maps, findings


def check_config(
    shape: Eagle3Config, config: Mapping[str, Any], producer: str, norm_output: str, where: str
) -> Iterator[Finding]:
    """Report what the config leaves open, and what its readers interpret differently."""
    if "norm_output" in config and producer == "specforge" and not norm_output:
        text = (
            f"norm_output is {config['norm_output']}: SpecForge 0.2.0 takes it for the norm before lm_head, SGLang and "
            "speculators for feeding the normed state back"
        )
        remedy = f"Pass the meaning in training ({' or '.join(MEANINGS)}); read here as in SpecForge 0.2.0"
        yield Finding("norm_output", "warning", where, text, remedy)
    if producer == "speculators" and "norm_before_residual" not in config:
        text = "norm_before_residual is not in the config: speculators takes false, vLLM takes true"
        yield Finding("norm_before_residual", "warning", where, text, "Write the value of the training into the config")
    if producer != "speculators" and config.get("norm_before_residual"):
        text = "norm_before_residual is true, but no reader of this format implements it"
        yield Finding("norm_before_residual", "warning", where, text, "Read a draft of speculators in its own format")
    if text := disagreement(config):
        text += "; rope_scaling and the outer rope_theta are read first"
        yield Finding("rope", "warning", where, text, "Leave one spelling in the config")
    if producer == "safeailab" and shape.rope.theta != 10000.0:
        text = f"rope_theta is {shape.rope.theta:g}: SafeAILab's inference follows it, its training always takes 10000"
        yield Finding("rope", "note", where, text)
    if producer == "sglang" and "draft_vocab_size" not in config:
        text = "SGLang does not load this draft: draft_vocab_size is not in the config"
        yield Finding("not loaded", "error", where, text, "Write it; null shares the target's head")
    factor = (config.get("rope_scaling") or config.get("rope_parameters") or {}).get("factor")
    if producer == "sglang" and shape.rope.type == "linear" and isinstance(factor, int):
        # SGLang distinguishes one factor from several by the type.
        text = f"SGLang does not load this draft: the factor of its linear scaling is the whole number {factor}"
        yield Finding("not loaded", "error", where, text, f"Write {factor}.0")
    if producer == "modelopt" and shape.rope.type != "default":
        text = (
            f"RoPE scaling is {shape.rope.type}: Model Optimizer can write a scaling into the export that its training "
            "did not have (eagle_export_rope_scaling)"
        )
        yield Finding("rope", "note", where, text)
    if producer == "modelopt":
        text = (
            "since #689 (2025-12) Model Optimizer's trainer for Hugging Face models norms the state twice, by "
            "input_layernorm and then by hidden_norm; engines do not"
        )
        remedy = "Compare both: dataclasses.replace(shape, input_norm_twice=True)"
        yield Finding("double norm", "note", where, text, remedy)
