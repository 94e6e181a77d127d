"""Whose embedding and head the server uses, against what the draft's file holds.

SGLang takes both by the config and overwrites the file's (see `wiring.checkpoints.draft_sharing`); vLLM keeps the file's own
embedding where it differs from the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wiring.checkpoints.draft_sharing import EMBEDDING, HEAD, sharing
from wiring.checkpoints.target_files import EMBEDDING as TARGET_EMBEDDING
from wiring.checkpoints.target_files import HEAD as TARGET_HEAD
from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLE = 512  # rows that are compared, evenly spread
_SAME = 0.999  # cosine above which two rows are one, but for their number format
_RELATED = 0.5  # below it the two have nothing to do with each other


def embedding(view: View) -> list[LintFinding]:
    """An embedding of the draft's own that is not the target's."""
    draft, target, shape = view.draft, view.target, view.draft.shape
    assert target is not None and shape is not None, "needs the target's weights and the shape"
    own = draft.named.get(EMBEDDING)
    width = (target.config.vocab_size, target.config.hidden_size)
    if own is None or tuple(own.shape) != width or not bool(own.float().isfinite().all()):
        return []  # not there, or told elsewhere
    cosine = _cosine(view, own, TARGET_EMBEDDING)
    if cosine >= _SAME or (view.engine.name == "vllm" and cosine >= _RELATED):
        return []
    how = "has nothing to do with the target's" if cosine < _RELATED else "was trained further than the target's"
    uses = (
        "SGLang serves the target's in its place"
        if view.sglang
        else "vLLM keeps it, because it differs"
        if view.engine.name == "vllm"
        else "which of the two is used depends on the engine"
    )
    return [
        LintFinding(
            8,
            "error",
            draft.tensor_where(EMBEDDING),
            f"the draft's embedding {how} (mean cosine {cosine:.3f} over {_SAMPLE} rows or all): {uses}",
            "Find out which one was trained with; an export with random rows has to be made again",
        )
    ]


def head(view: View) -> list[LintFinding]:
    """A head in the file that SGLang overwrites, and that is another one than what it takes instead."""
    draft, target, shape = view.draft, view.target, view.draft.shape
    assert target is not None and shape is not None, "needs the target's weights and the shape"
    own = draft.named.get(HEAD)
    taken = sharing(shape, draft.config, "sglang", draft.named).head
    if not view.sglang or own is None or taken == "draft":
        return []
    if own.shape[1] != target.config.hidden_size or own.shape[0] > target.config.vocab_size:
        return []
    cosine = _cosine(view, own, TARGET_HEAD if taken == "target" else TARGET_EMBEDDING)
    if cosine >= _SAME:
        return []
    why = "draft_vocab_size is null" if taken == "target" else "tie_word_embeddings is true"
    return [
        LintFinding(
            8,
            "error",
            draft.tensor_where(HEAD),
            f"the draft's head is another one than the target's {'head' if taken == 'target' else 'embedding'} (mean "
            f"cosine {cosine:.3f}), but {why}: SGLang serves the target's in its place",
            "Write draft_vocab_size as a number and tie_word_embeddings as false",
        )
    ]


def _cosine(view: View, own: Tensor, name: str) -> float:
    """Mean cosine between rows of the draft's tensor and the target's; two zero rows are alike."""
    import torch

    assert view.target is not None
    step = max(1, own.shape[0] // _SAMPLE)
    rows = range(0, own.shape[0], step)
    ours, theirs = own[::step].float(), view.target.rows(name, rows).float()
    both_zero = (ours.norm(dim=1) == 0) & (theirs.norm(dim=1) == 0)
    return float(torch.cosine_similarity(ours, theirs, dim=1)[~both_zero].mean()) if bool((~both_zero).any()) else 1.0
