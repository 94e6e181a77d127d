"""Check the draft's tensors: unread, missing and misshapen ones, zeros, vocabulary maps, embedding and head."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from wiring.checkpoints.draft_config import EMBEDDING, HEAD, sharing
from wiring.checkpoints.draft_producers import canonical, loaded_by_sglang
from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.target_files import EMBEDDING as TARGET_EMBEDDING
from wiring.checkpoints.target_files import HEAD as TARGET_HEAD
from wiring.checkpoints.target_files import read_rows
from wiring.checkpoints.vocabulary_map import check_vocabulary_map
from wiring.errors import UnreadForward, WiringError
from wiring.lint.lint_inputs import View

if TYPE_CHECKING:
    from torch import Tensor

_BUFFERS = ("inv_freq", "cos_cached", "sin_cached")  # computed, never read
_FLAGS = {"fc.bias": "bias", "o_proj.bias": "attention_bias", "fc_norm.": "fc_norm", "input_norm.": "norm_before_fc"}
_OTHER_CHECKS = ("fc.weight", "lm_head.weight", "d2t", "t2d")  # shapes reported by the checks of slots and maps
_EXPORT = "Export the draft again from its training checkpoint"
_SAMPLE = 512  # compared rows, evenly spread
_SAME = 0.999  # cosine from which two rows are equal up to their number format
_RELATED = 0.5  # cosine below which two embeddings have nothing in common


def tensors_read(view: View) -> Iterator[Finding]:
    """Report missing, unused and misshapen tensors as the engine reads them; SGLang silently drops unknown names.

    A tensor that the draft's trainer reads and SGLang does not is an error: the draft was trained with it.
    """
    draft = view.draft
    assert draft.checkpoint is not None, "needs the draft's tensors"
    if view.sglang and draft.producer == "speculators":
        return  # SGLang does not read the file at all: see `config_format`
    found = draft.checkpoint.findings
    unread_by_trainer = {finding.where for finding in found if finding.kind == "unused tensor"}
    if view.sglang:
        try:
            found = draft.as_sglang_reads_it().findings
        except UnreadForward as error:
            remedy = "Serve it with an engine that has this forward pass"
            yield Finding(10, "error", draft.where, f"SGLang: {error.problem}, found {error.found}", remedy)
            return
        except WiringError as error:
            yield Finding(10, "error", draft.where, f"SGLang cannot read the config: {error.problem}")
            return
    yield from _duplicates(view)
    if view.sglang:
        yield from _dropped(view)
    for finding in found:
        name = finding.where.rpartition(" ")[2]
        if name.endswith(_BUFFERS) or finding.severity == "note":
            continue
        layer = _layer(name)
        if finding.kind == "missing tensor" and layer is not None and layer >= draft.stored_layers > 0:
            continue  # reported once, as a number of layers
        if finding.kind == "unused tensor":
            yield _unused(finding, name, view, trained_with=finding.where not in unread_by_trainer)
        elif fault := _fault(finding, name):
            yield Finding(fault, finding.severity, finding.where, finding.evidence, finding.remedy or _EXPORT)


def _duplicates(view: View) -> Iterator[Finding]:
    """Report tensors with one canonical name under two stored names (`midlayer` is layers.0); engines keep the last."""
    import torch

    tensors: Mapping[str, Tensor] = view.draft.tensors or {}
    taken: dict[str, str] = {}
    pairs = []
    for name in tensors:
        if view.sglang and not loaded_by_sglang(name):
            continue  # see `_dropped`
        if (first := taken.get(canonical(name))) is not None:
            pairs.append((first, name, torch.equal(tensors[first], tensors[name])))
        taken[canonical(name)] = name
    if pairs:
        first, last, _ = pairs[0]
        differ = sum(not same for *_, same in pairs)
        evidence = (
            f"the file holds {len(pairs)} tensors twice, such as {first} and {last}: an engine keeps the one that "
        )
        evidence += f"it reads last, {last}; {f'{differ} of them differ' if differ else 'both are equal'}"
        severity = "error" if differ else "warning"
        yield Finding(10, severity, view.draft.tensor_where(canonical(last)), evidence, "Remove the untrained ones")


def _dropped(view: View) -> Iterator[Finding]:
    """Report tensors that SGLang does not find under their stored names."""
    draft = view.draft
    assert draft.shape is not None, "needs the shape"
    shared = sharing(draft.shape, draft.config, "sglang", draft.named)
    unneeded = {name for name, owner in ((HEAD, shared.head), (EMBEDDING, shared.embedding)) if owner != "draft"}
    names = [n for n in draft.tensors or {} if not loaded_by_sglang(n) and canonical(n) not in unneeded]
    if names:
        wanted = [canonical(name) for name in names]
        evidence = f"SGLang silently drops {', '.join(names)}: it reads {', '.join(wanted)}"
        remedy = f"Rename {'it' if len(names) == 1 else 'them'} in a copy of the file"
        yield Finding(9 if wanted == [HEAD] else 10, "error", draft.tensor_where(wanted[0]), evidence, remedy)


def _unused(finding: Finding, name: str, view: View, *, trained_with: bool) -> Finding:
    draft, dropped = view.draft, "SGLang silently drops it" if view.sglang else "nothing reads it"
    shape, layer = draft.shape, _layer(name)
    bare = name.replace("midlayer.", "layers.0.")
    missing = [known for known in (shape.required_shapes() if shape else ()) if known not in draft.named]
    prefixed = next((known for known in missing if bare.endswith(f".{known}")), "")
    severity = "error"
    if layer is not None and shape is not None and layer >= shape.num_layers:
        evidence = f"{dropped}: the config has num_hidden_layers {shape.num_layers}"
        remedy = "Write the number of layers that were trained"
    elif trained_with:
        evidence = f"{dropped}, and the draft was trained with it"
        remedy = "Serve it with an engine that reads it, or retrain without"
    elif prefixed:
        evidence = f"{dropped}: it reads {prefixed}, which the file does not have"
        remedy = "Remove the prefix in a copy of the file"
    elif finding.severity == "error" or "norm" in name or name.endswith(".bias"):
        evidence, remedy = f"{dropped}: the config does not enable it, the file has it", _flag_remedy(name, view)
    else:
        evidence, severity, remedy = dropped, finding.severity, "Find out what wrote it: it may be a leftover"
    return Finding(10, severity, finding.where, evidence, remedy)


def _flag_remedy(name: str, view: View) -> str:
    """Return the fix for a tensor that the config does not enable; SGLang has flags for some (`llama_eagle3.py`)."""
    if not view.sglang:
        return "Write the flag that it was trained with into the config"
    flag = next((flag for part, flag in _FLAGS.items() if part in canonical(name)), "")
    no_output_bias = flag == "bias" and not any(other.endswith("o_proj.bias") for other in view.draft.named)
    if flag and not no_output_bias:
        return f"Write {flag} true into the config, if it was trained with it"
    also = " (bias builds an o_proj.bias too, which the file lacks)" if flag else ""
    return f"No flag makes SGLang read it{also}: serve it with an engine that does, or retrain without"


def _fault(finding: Finding, name: str) -> int | None:
    """Return the fault number for a finding of the draft's reader; None if another check reports it."""
    embedding = "embed_tokens" in name
    match finding.kind:
        case "missing tensor" if name.endswith("fc.weight"):
            return 3
        case "missing tensor" if name.endswith("lm_head.weight"):
            return 9
        case "missing tensor" | "wrong shape":
            return None if name.endswith(_OTHER_CHECKS) else 8 if embedding else 10
        case "number format":
            return 11
        case "not finite":
            return 8 if embedding else 19
        case "not loaded":
            return None if "draft_vocab_size" in finding.evidence else 13
    return None


def _layer(name: str) -> int | None:
    match = re.search(r"layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def vocabulary_maps(view: View) -> list[Finding]:
    """Check that the maps hold ascending, distinct offsets within the target's vocabulary, and that they agree.

    With a wrong map nearly every proposal is another token, and the trainer's own accuracy does not show it.
    """
    return _checked_maps(view, t2d=view.draft.named.get("t2d"), severities=("error", "warning"))


def unusable_maps(view: View) -> list[Finding]:
    """Return only the findings with which neither an accuracy can be computed nor a server can work."""
    return _checked_maps(view, t2d=None, severities=("error",))


def _checked_maps(view: View, t2d: Tensor | None, severities: tuple[str, ...]) -> list[Finding]:
    if view.draft.vocabulary is None:
        return []
    rows, vocab = view.draft.vocabulary
    head, d2t, found = view.draft.named.get("lm_head.weight"), view.draft.named.get("d2t"), []
    if head is not None and (head.dim() != 2 or head.shape[0] != rows):
        evidence = f"lm_head has {head.shape[0] if head.dim() else 'no'} rows, draft_vocab_size is {rows}"
        found.append(("lm_head.weight", evidence))
    if d2t is None and rows < vocab and (view.sglang or "t2d" not in view.draft.named):
        also = ", and SGLang reads no t2d" if "t2d" in view.draft.named else ""
        found.append(("d2t", f"{rows} of {vocab} ids, but no d2t{also}: draft ids would be taken for target ids"))
    else:
        checked = check_vocabulary_map(d2t, t2d, rows, vocab)
        found += [(finding.where, finding.evidence) for finding in checked if finding.severity in severities]
    remedy = "Export the map that was trained with, together with its lm_head"
    return [Finding(9, "error", view.draft.tensor_where(name), evidence, remedy) for name, evidence in found]


def zeros(view: View) -> Iterator[Finding]:
    """Report weights that are all zero: with an all-zero `fc` the draft ignores every state."""
    draft, where = view.draft, view.draft.tensor_where("fc.weight")
    fc, slots = draft.named.get("fc.weight"), draft.slots
    if fc is not None and not bool(fc.any()):
        evidence = "fc is all zeros: the draft ignores the states that it is fed, whatever their layer"
        yield Finding(23, "error", where, evidence, _EXPORT)
    elif fc is not None and slots:
        for slot, columns in enumerate(fc.chunk(slots, dim=1)):
            if not bool(columns.any()):
                evidence = f"the columns of slot {slot} are all zeros: the draft ignores that state"
                yield Finding(23, "warning", where, evidence, "Find out whether it was trained with it")
    weights = {name: tensor for name, tensor in draft.named.items() if name.endswith(".weight") and name != "fc.weight"}
    names = [name for name, tensor in weights.items() if not bool(tensor.any())]
    if names:
        yield Finding(
            23, "warning", str(draft.folder), f"all zeros: {', '.join(names)}", f"{_EXPORT}, if it was trained"
        )


def embedding(view: View) -> Iterator[Finding]:
    """Report an embedding in the draft's file that differs from the target's.

    SGLang serves the target's by the config (`wiring.checkpoints.draft_config`); vLLM keeps the file's if it differs.
    """
    draft, config = view.draft, view.target
    own = draft.named.get(EMBEDDING)
    shape = (config.vocab_size, config.hidden_size)
    if own is None or tuple(own.shape) != shape or not bool(own.float().isfinite().all()):
        return  # not in the file, or reported elsewhere
    cosine, vllm = _cosine(view, own, TARGET_EMBEDDING), view.engine.name == "vllm"
    if cosine >= _SAME or (vllm and cosine >= _RELATED):
        return
    how = "has nothing in common with the target's" if cosine < _RELATED else "was trained further than the target's"
    uses = (
        "vLLM keeps it" if vllm else "SGLang serves the target's" if view.sglang else "the engine decides which is used"
    )
    evidence = f"the draft's embedding {how} (mean cosine {cosine:.3f} over {_SAMPLE} rows or all): {uses}"
    remedy = "Find out which one was trained with; an export with random rows has to be made again"
    yield Finding(8, "error", draft.tensor_where(EMBEDDING), evidence, remedy)


def head(view: View) -> Iterator[Finding]:
    """Report a head in the draft's file that SGLang replaces by another one."""
    draft, config = view.draft, view.target
    assert draft.shape is not None, "needs the shape"
    own = draft.named.get(HEAD)
    taken = sharing(draft.shape, draft.config, "sglang", draft.named).head
    if not view.sglang or own is None or taken == "draft":
        return
    if own.shape[1] != config.hidden_size or own.shape[0] > config.vocab_size:
        return
    cosine = _cosine(view, own, TARGET_HEAD if taken == "target" else TARGET_EMBEDDING)
    if cosine < _SAME:
        why = "draft_vocab_size is null" if taken == "target" else "tie_word_embeddings is true"
        evidence = (
            f"{why}, so SGLang serves the target's {'head' if taken == 'target' else 'embedding'} as head, which "
        )
        evidence += f"differs from the draft's (mean cosine {cosine:.3f})"
        remedy = "Write draft_vocab_size as a number and tie_word_embeddings as false"
        yield Finding(8, "error", draft.tensor_where(HEAD), evidence, remedy)


def _cosine(view: View, own: Tensor, name: str) -> float:
    """Return the mean cosine between rows of the draft's tensor [V, H] and the target's; two zero rows are equal."""
    import torch

    step = max(1, own.shape[0] // _SAMPLE)
    ours = own[::step].float()
    theirs = read_rows(view.target.folder, name, range(0, own.shape[0], step)).float()
    present = (ours.norm(dim=1) != 0) | (theirs.norm(dim=1) != 0)
    return float(torch.cosine_similarity(ours, theirs, dim=1)[present].mean()) if bool(present.any()) else 1.0
