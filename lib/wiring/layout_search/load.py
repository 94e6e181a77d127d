"""Open a draft, a target and documents from paths for a layout search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.states import open_states
from wiring.checkpoints.target_files import final_norm, read_target_config, read_tensor
from wiring.errors import WiringError
from wiring.layout_search.data import (
    SearchData,
    from_samples,
    from_texts,
    read_texts,
    rows_that_fit,
    tokenize,
)
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget
from wiring.model.threads import limit_threads_for_small_model


def open_search(
    draft: str | Path,
    target: str | Path,
    *,
    text: str | Path | None = None,
    states: str | Path | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> tuple[Eagle3Draft, SearchData]:
    """Read the draft, and the data from `text` (one document per line) or from saved `states`.

    Raises WiringError when not exactly one of the two is given, and for inputs that do not fit together.
    """
    if (text is None) == (states is None):
        raise WiringError(
            "the search needs either text or saved states",
            code="search-data-missing",
            expected="--text or --states",
            found="both" if text else "neither",
        )
    folder = Path(target)
    config, checkpoint = read_target_config(folder), read_draft(draft)
    shape = checkpoint.shape
    if shape.target_hidden_size != config.hidden_size:
        raise WiringError(
            "the draft's fc does not fit this target's states",
            code="fc-width-of-another-target",
            where=draft,
            expected=f"states of width {config.hidden_size}, from {folder}",
            found=shape.target_hidden_size,
            remedy="Pair the draft with the target that it was trained for",
        )
    embedding = None
    if "embed_tokens.weight" not in checkpoint.tensors:
        embedding = read_tensor(folder, "model.embed_tokens.weight")
    head = read_tensor(folder, "lm_head.weight")
    model = Eagle3Draft.from_checkpoint(checkpoint, embedding, head)
    rows = rows_that_fit(config.num_layers, shape.num_slots, shape.target_hidden_size, shape.hidden_size)
    if states is not None:
        found = open_states(states, hidden_size=shape.target_hidden_size)
        norm, eps = final_norm(folder)
        ends = TargetHead(head.float(), None if norm is None else norm.float(), eps)
        return model, from_samples(found, len(found), config.num_layers, ends, model.target_ids, rows)
    assert text is not None  # one of the two is given
    texts = tokenize(read_texts(Path(text)), folder, text)
    threads = torch.get_num_threads()
    limit_threads_for_small_model(config.hidden_size)  # for the target only: the search itself gains from threads
    try:
        reference = ReferenceTarget.load(folder)
        return model, from_texts(texts, reference, model.target_ids, rows, progress)
    finally:
        torch.set_num_threads(threads)
