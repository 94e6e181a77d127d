"""Every tensor of the draft is read by the engine's forward pass or named; what is missing is named too."""

from __future__ import annotations

import re
from collections.abc import Iterable

from wiring.checkpoints.draft_producers import canonical, loaded_by_sglang
from wiring.checkpoints.draft_sharing import EMBEDDING, HEAD, sharing
from wiring.checkpoints.file_findings import Finding
from wiring.errors import UnreadForward, WiringError
from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View

_BUFFERS = ("inv_freq", "cos_cached", "sin_cached")  # computed, never read
_FLAGS = {"fc.bias": "bias", "o_proj.bias": "attention_bias", "fc_norm.": "fc_norm", "input_norm.": "norm_before_fc"}
_ELSEWHERE = ("fc.weight", "lm_head.weight", "d2t", "t2d")  # their shapes are told by the checks of slots and maps


def consumed(view: View) -> list[LintFinding]:
    """Missing, unused and misshapen tensors by the engine's reading; SGLang drops unknown names without a word.

    What the draft's own trainer reads and SGLang does not is an error: the draft was trained with it.
    """
    checkpoint = view.draft.checkpoint
    assert checkpoint is not None, "needs the draft's tensors"
    ours = _twice(view)
    own = {finding.where for finding in checkpoint.findings if finding.kind == "unused tensor"}
    found = list(checkpoint.findings)
    if view.sglang and view.draft.producer == "speculators":
        return []  # SGLang does not read the file at all: see `forward.speculators_layout`
    if view.sglang:
        try:
            found, ours = list(view.draft.as_sglang_reads_it().findings), ours + _dropped(view)
        except UnreadForward as error:
            remedy = "Serve it with an engine that has this forward pass"
            return [LintFinding(10, "error", view.draft.where, f"SGLang: {error.problem}, found {error.found}", remedy)]
        except WiringError as error:
            return [LintFinding(10, "error", view.draft.where, f"SGLang cannot read the config: {error.problem}")]
    return [*ours, *_translated(found, own, view)]


def _twice(view: View) -> list[LintFinding]:
    """Tensors that have one place under two names (`midlayer` is layers.0): engines load both, the last one stays."""
    import torch

    draft, taken, pairs = view.draft, {}, []
    for name, tensor in (draft.tensors or {}).items():
        if view.sglang and not loaded_by_sglang(name):
            continue  # see `_dropped`
        if (first := taken.get(canonical(name))) is not None:
            pairs.append((first, name, torch.equal((draft.tensors or {})[first], tensor)))
        taken[canonical(name)] = name
    if not pairs:
        return []
    first, last, _ = pairs[0]
    differ = sum(not same for *_, same in pairs)
    return [
        LintFinding(
            10,
            "error" if differ else "warning",
            draft.tensor_where(canonical(last)),
            f"{len(pairs)} tensors stand in the file twice, such as {first} and {last}: both have one place, and the one "
            f"that is read last, {last}, wins; {f'{differ} of them differ' if differ else 'the two are the same'}",
            "Remove those that were not trained",
        )
    ]


def _dropped(view: View) -> list[LintFinding]:
    """Tensors of the draft that SGLang does not find by the names that they have in the file."""
    draft = view.draft
    assert draft.shape is not None, "needs the shape"
    dropped = [name for name in draft.tensors or {} if not loaded_by_sglang(name)]
    shared = sharing(draft.shape, draft.config, "sglang", draft.named)
    not_asked_for = {name for name, of in ((HEAD, shared.head), (EMBEDDING, shared.embedding)) if of != "draft"}
    dropped = [name for name in dropped if canonical(name) not in not_asked_for]
    if not dropped:
        return []
    wanted = [canonical(name) for name in dropped]
    return [
        LintFinding(
            9 if wanted == [HEAD] else 10,
            "error",
            draft.tensor_where(wanted[0]),
            f"SGLang drops {', '.join(dropped)} without a word: it looks for {', '.join(wanted)}",
            "Rename it in a copy of the file" if len(dropped) == 1 else "Rename them in a copy of the file",
        )
    ]


def _translated(found: Iterable[Finding], own: set[str], view: View) -> Iterable[LintFinding]:
    for finding in found:
        name = finding.where.rpartition(" ")[2]
        if name.endswith(_BUFFERS) or finding.severity == "note":
            continue
        layer = re.search(r"layers\.(\d+)\.", name)
        if finding.kind == "missing tensor" and layer and int(layer[1]) >= view.draft.held_layers > 0:
            continue  # told once, as a number of layers
        if finding.kind == "unused tensor":
            yield _unused(finding, name, view, trained_with=finding.where not in own)
        elif kind := _kind(finding, name):
            remedy = finding.remedy or "Export the draft again from its training checkpoint"
            yield LintFinding(kind, finding.severity, finding.where, finding.evidence, remedy)


def _unused(finding: Finding, name: str, view: View, *, trained_with: bool) -> LintFinding:
    engine = "SGLang drops it without a word" if view.sglang else "nothing reads it"
    layer = re.search(r"layers\.(\d+)\.", name)
    if layer and view.draft.shape is not None and int(layer[1]) >= view.draft.shape.num_layers:
        evidence = f"{engine}: the config says num_hidden_layers {view.draft.shape.num_layers}"
        return LintFinding(10, "error", finding.where, evidence, "Write the number of layers that were trained")
    if trained_with:
        return LintFinding(
            10,
            "error",
            finding.where,
            f"{engine}, and the draft was trained with it",
            "Serve it with an engine that reads it, or retrain without",
        )
    if meant := _behind_a_prefix(name, view):
        evidence = f"{engine}: it looks for {meant}, which the file does not have"
        return LintFinding(10, "error", finding.where, evidence, "Take the prefix off in a copy of the file")
    if finding.severity == "error" or "norm" in name or name.endswith(".bias"):
        evidence = f"{engine}: the config does not ask for it, the file has it"
        return LintFinding(10, "error", finding.where, evidence, _flag(name, view))
    return LintFinding(10, finding.severity, finding.where, engine, "Find out what wrote it: it may be a leftover")


def _behind_a_prefix(name: str, view: View) -> str:
    """The tensor that the draft lacks and that this one would be without its first words; empty where there is none."""
    names = view.draft.shape.required_shapes() if view.draft.shape else ()
    bare = name.replace("midlayer.", "layers.0.")
    return next((known for known in names if bare.endswith(f".{known}") and known not in view.draft.named), "")


def _flag(name: str, view: View) -> str:
    """What to do about a tensor that the config does not ask for: SGLang has flags for some (`llama_eagle3.py`)."""
    if not view.sglang:
        return "Write the flag that it was trained with into the config"
    name = canonical(name)
    flag = next((flag for part, flag in _FLAGS.items() if part in name), "")
    if not flag or (flag == "bias" and not any(other.endswith("o_proj.bias") for other in view.draft.named)):
        also = " (bias builds an o_proj.bias too, which the file lacks)" if flag else ""
        return f"No flag makes SGLang read it{also}: serve it with an engine that does, or retrain without"
    return f"Write {flag} true into the config, if it was trained with it"


def _kind(finding: Finding, name: str) -> int | None:
    """The fault kind of what the reader of drafts found; None for what another check tells."""
    embedding, elsewhere = "embed_tokens" in name, name.endswith(_ELSEWHERE)
    match finding.kind:
        case "missing tensor" if name.endswith(("fc.weight", "lm_head.weight")):
            return 3 if name.endswith("fc.weight") else 9
        case "missing tensor" | "wrong shape":
            return None if elsewhere else 8 if embedding else 10
        case "number format":
            return 11
        case "not finite":
            return 8 if embedding else 19
        case "not loaded":
            return None if "draft_vocab_size" in finding.evidence else 13
    return None


def zeros(view: View) -> list[LintFinding]:
    """Weights that hold nothing but zeros: an `fc` of zeros makes the draft blind, whatever is served."""
    draft = view.draft
    fc, slots = draft.named.get("fc.weight"), draft.slots
    found = []
    if fc is not None and not bool(fc.any()):
        found.append(
            LintFinding(
                23,
                "error",
                draft.tensor_where("fc.weight"),
                "fc holds nothing but zeros: the draft sees none of the states that it is fed, from whatever layer",
                "Export the draft again from its training checkpoint",
            )
        )
    elif fc is not None and slots:
        unused = [i for i, part in enumerate(fc.chunk(slots, dim=1)) if not bool(part.any())]
        found += [
            LintFinding(
                23,
                "warning",
                draft.tensor_where("fc.weight"),
                f"the columns of slot {i} hold nothing but zeros: the draft does not look at that state",
                "Find out whether it was trained with it",
            )
            for i in unused
        ]
    others = [
        name
        for name, tensor in draft.named.items()
        if name.endswith(".weight") and name != "fc.weight" and not bool(tensor.any())
    ]
    if others:
        found.append(
            LintFinding(
                23,
                "warning",
                str(draft.folder),
                f"nothing but zeros: {', '.join(others)}",
                "Export the draft again from its training checkpoint, if it was trained",
            )
        )
    return found
