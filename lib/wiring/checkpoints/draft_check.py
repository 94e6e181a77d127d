"""Hold a draft's tensors against its config: every tensor is read by the forward pass or named in a finding.

An engine drops unknown names and leaves missing tensors at their initial values without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.draft_config import MEANINGS, Eagle3Config, named_slots
from wiring.checkpoints.draft_producers import as_written
from wiring.checkpoints.draft_sharing import EMBEDDING, HEAD, Sharing
from wiring.checkpoints.file_findings import Finding, Severity
from wiring.checkpoints.rope_config import disagreement

if TYPE_CHECKING:
    from torch import Tensor

# A tensor of such a name belongs to another forward pass, not to a leftover.
_OTHER_FORWARD = ("q_norm", "k_norm", "kv_a_", "kv_b_", "q_a_", "q_b_", "experts", "sinks", "embed_layernorm")


@dataclass(frozen=True)
class Stored:
    """Tensors of a checkpoint by canonical name, and for each the name in its file and the file."""

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    files: Mapping[str, object]
    folder: object

    def where(self, name: str) -> str:
        """File and tensor, as they are called on disk."""
        return (
            f"{self.files.get(name, self.folder)}: tensor {self.names.get(name, as_written(name, self.names.values()))}"
        )


def fitted(shape: Eagle3Config, stored: Stored, config: Mapping[str, Any], producer: str) -> tuple[Eagle3Config, list]:
    """What the tensors decide over the config: slot count, biases of SpecForge and SafeAILab, norm of deeper layers."""
    tensors, findings = stored.tensors, []
    fc = tensors.get("fc.weight")
    if fc is not None and fc.dim() == 2:
        slots, rest = divmod(fc.shape[1], shape.target_hidden_size)
        if not rest and slots and slots != shape.num_slots:
            named = named_slots(config, producer)
            said = f"the config names {named}" if named else f"the config names none, so {shape.num_slots} are assumed"
            findings.append(
                Finding(
                    "slot count",
                    "warning",
                    stored.where("fc.weight"),
                    f"fc takes {slots} states of width {shape.target_hidden_size}, {said}",
                    "The tensor is believed; write its layer ids into the config, or an engine will not load it",
                )
            )
            shape = replace(shape, num_slots=slots)
    if producer in ("specforge", "safeailab"):
        for flag, name in (
            ("attention_bias", "q_proj.bias"),
            ("output_bias", "o_proj.bias"),
            ("mlp_bias", "up_proj.bias"),
        ):
            present = any(other.endswith(name) for other in tensors)
            if getattr(shape, flag) and not present:
                findings.append(
                    Finding(
                        "bias",
                        "note",
                        str(stored.folder),
                        f"the config asks for biases that the file does not have ({name}), and its trainer builds none",
                    )
                )
            shape = replace(shape, **{flag: getattr(shape, flag) and present})
    deeper = {n for n in ("hidden_norm", "input_layernorm") if f"layers.1.{n}.weight" in tensors}
    if len(deeper) == 1 and producer != "sglang":
        shape = replace(shape, deeper_norm=deeper.pop())
    return shape, findings


def check_tensors(shape: Eagle3Config, stored: Stored, shared: Sharing, producer: str) -> list[Finding]:
    """Missing, unused, wrongly shaped, quantised and not finite tensors; shapes against `shape`."""
    required = shape.required_shapes()
    known = shape.optional_shapes() | required
    if producer == "sglang" and shared.embedding == "draft":
        required[EMBEDDING] = known[EMBEDDING]
    absent = [name for name in required if name not in stored.tensors]
    findings = [_missing(name, required[name], stored, shared, producer) for name in absent]
    for name, tensor in stored.tensors.items():
        where = stored.where(name)
        if name not in known:
            other = any(part in name for part in _OTHER_FORWARD)
            findings.append(
                Finding(
                    "unused tensor",
                    "error" if other else "warning",
                    where,
                    f"nothing reads it ({_words(tensor.shape)})",
                    "It belongs to another forward pass than the config's"
                    if other
                    else "An engine would drop it without a word; the draft may come from another trainer",
                )
            )
        elif tuple(tensor.shape) != known[name]:
            findings.append(
                Finding(
                    "wrong shape",
                    "error",
                    where,
                    f"expected {_words(known[name])} by the config, found {_words(tensor.shape)}",
                    _shape_remedy(name, shape),
                )
            )
        elif name not in ("d2t", "t2d") and tensor.dtype.itemsize < 2:
            findings.append(
                Finding(
                    "number format",
                    "error",
                    where,
                    f"numbers of {tensor.dtype} need scales that are not read here",
                    "Use the draft from before its quantisation",
                )
            )
        elif tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            findings.append(Finding("not finite", "error", where, "it holds NaN or infinity", _nan_remedy(name)))
    return [finding for finding in findings if finding is not None]


def check_vocabulary(shape: Eagle3Config, stored: Stored, producer: str) -> tuple[dict[str, Tensor], list[Finding]]:
    """d2t int64 and t2d bool as far as the file has them, d2t derived where only t2d stands, and what is wrong.

    d2t holds offsets: target id = draft id + d2t[draft id]; t2d marks the target ids that are reached. SGLang reads
    d2t alone, so that nothing is derived for it.
    """
    import torch

    maps: dict[str, Tensor] = {}
    findings: list[Finding] = []
    for name, length, kind in (("d2t", shape.draft_vocab_size, torch.int64), ("t2d", shape.vocab_size, torch.bool)):
        tensor = stored.tensors.get(name)
        if tensor is None or tuple(tensor.shape) != (length,):
            continue
        if not bool((tensor.double() == tensor.to(kind).double()).all()):
            findings.append(Finding("vocabulary map", "error", stored.where(name), f"it is no row of {kind}"))
            continue
        maps[name] = tensor.to(kind)
    if "d2t" not in maps and "d2t" not in stored.tensors and "t2d" in maps and producer != "sglang":
        marked = maps["t2d"].nonzero().flatten()  # [Vd]
        if len(marked) != shape.draft_vocab_size:
            findings.append(
                Finding(
                    "vocabulary map",
                    "error",
                    stored.where("t2d"),
                    f"expected {shape.draft_vocab_size} marked ids by the config, found {len(marked)}",
                )
            )
        else:
            maps["d2t"] = marked - torch.arange(len(marked))
            findings.append(Finding("vocabulary map", "note", stored.where("d2t"), "it is not there; derived from t2d"))
        return maps, findings
    if "d2t" in maps:
        reached = torch.arange(shape.draft_vocab_size) + maps["d2t"]  # [Vd]
        outside = (reached < 0) | (reached >= shape.vocab_size)
        if bool(outside.any()):
            first = int(outside.nonzero()[0])
            findings.append(
                Finding(
                    "vocabulary map",
                    "error",
                    stored.where("d2t"),
                    f"expected target ids 0..{shape.vocab_size - 1}, found draft id {first} -> {int(reached[first])}",
                    "d2t must hold offsets (target id minus draft id), not target ids",
                )
            )
            return maps, findings
        marked = torch.zeros(shape.vocab_size, dtype=torch.bool)
        marked[reached] = True
        differing = int((marked != maps["t2d"]).sum()) if "t2d" in maps else 0
        if differing or int(marked.sum()) != shape.draft_vocab_size:
            findings.append(
                Finding(
                    "vocabulary map",
                    "error",
                    stored.where("t2d" if differing else "d2t"),
                    f"t2d and d2t disagree on {differing} ids, d2t reaches {int(marked.sum())} different ids "
                    f"of {shape.draft_vocab_size}",
                )
            )
    return maps, findings


def check_config(shape: Eagle3Config, config: Mapping[str, Any], producer: str, override: str, where: str) -> list:
    """What the config leaves open, and what its readers take differently."""
    findings: list[Finding] = []

    def say(kind: str, severity: Severity, evidence: str, remedy: str = "") -> None:
        findings.append(Finding(kind, severity, where, evidence, remedy))

    if "norm_output" in config and producer == "specforge" and not override:
        say(
            "norm_output",
            "warning",
            f"norm_output is {config['norm_output']}: SpecForge 0.2.0 takes it for the norm before lm_head, SGLang and "
            "speculators for feeding the normed state back",
            f"Say which was trained ({' or '.join(MEANINGS)}); read here as in SpecForge 0.2.0",
        )
    if producer == "speculators" and "norm_before_residual" not in config:
        say(
            "norm_before_residual",
            "warning",
            "norm_before_residual is not in the config: speculators takes false, vLLM takes true",
            "Write the value of the training into the config",
        )
    if producer != "speculators" and config.get("norm_before_residual"):
        say(
            "norm_before_residual",
            "warning",
            "norm_before_residual is true, but nothing that reads this layout does it",
            "A draft of speculators has to be read in its own layout",
        )
    if producer == "safeailab" and shape.rope.theta != 10000.0:
        say(
            "rope",
            "note",
            f"rope_theta is {shape.rope.theta:g}: SafeAILab's inference follows it, its training always takes 10000",
        )
    if text := disagreement(dict(config)):
        say(
            "rope",
            "warning",
            f"{text}; rope_scaling and the outer rope_theta are read first",
            "Leave one spelling in the config",
        )
    if producer == "sglang":
        for evidence, remedy in _not_loaded(shape, config):
            say("not loaded", "error", f"SGLang 0.5.23 does not load this draft: {evidence}", remedy)
    if producer == "modelopt":
        if shape.rope.type != "default":
            say(
                "rope",
                "note",
                f"RoPE scaling is {shape.rope.type}: Model Optimizer can write a scaling into the "
                "export that its training did not have (eagle_export_rope_scaling)",
            )
        say(
            "double norm",
            "note",
            "since #689 (2025-12) Model Optimizer's trainer for Hugging Face models norms the state twice, by "
            "input_layernorm and then by hidden_norm; engines do not",
            "Compare both: dataclasses.replace(shape, input_norm_twice=True)",
        )
    return findings


def _not_loaded(shape: Eagle3Config, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What in a config of an implemented forward pass ends SGLang's start, and what to write instead."""
    found = []
    if "draft_vocab_size" not in config:
        found.append(("draft_vocab_size is not in the config", "Write it; null shares the target's head"))
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    factor = scaling.get("factor")
    if shape.rope.type == "linear" and isinstance(factor, int):  # it tells one factor from several by the type
        found.append((f"the factor of its linear scaling is the whole number {factor}", f"Write {factor}.0"))
    return found


def _missing(name: str, size: tuple[int, ...], stored: Stored, shared: Sharing, producer: str) -> Finding | None:
    where = stored.where(name)
    if name == HEAD and shared.head != "draft":
        whose = "the target's is used" if shared.head == "target" else "the embedding is used"
        return Finding("missing tensor", "note", where, f"the draft has no head of its own: {whose}")
    if name == "d2t" and "t2d" in stored.tensors and producer != "sglang":
        return None  # derived, see check_vocabulary
    return Finding(
        "missing tensor",
        "error",
        where,
        f"it is missing: expected {_words(size)}, found nothing",
        _missing_remedy(name, producer),
    )


def _missing_remedy(name: str, producer: str) -> str:
    if name == "d2t":
        if producer == "sglang":
            return "SGLang reads no t2d, and without d2t takes draft ids for target ids"
        return "Without it, or t2d, draft ids cannot be turned into target ids"
    if producer == "sglang" and name == HEAD:
        return "SGLang shares the target's only where draft_vocab_size is null"
    return ""


def _shape_remedy(name: str, shape: Eagle3Config) -> str:
    if name != "fc.weight":
        return ""
    return (
        f"The config says {shape.num_slots} states of width {shape.target_hidden_size}: check layer ids and "
        "target_hidden_size"
    )


def _nan_remedy(name: str) -> str:
    return "speculators fills weights that were never loaded with NaN" if name in (EMBEDDING, HEAD) else ""


def _words(shape: Any) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"
