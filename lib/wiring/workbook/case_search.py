"""Search the trained layout of the case's draft from its weights, on the tokens of the saved documents."""

from __future__ import annotations

import copy
from itertools import islice

import torch

from wiring.accuracy.draft_evaluation import DraftEvaluation
from wiring.layout_search import SearchData, from_texts
from wiring.layout_search.data import DOCUMENTS, rows_that_fit
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget


def search_data(opened: DraftEvaluation, reference: ReferenceTarget, documents: int = DOCUMENTS) -> SearchData:
    """Return the first saved documents, run through the reference for their states at every boundary.

    The files themselves hold the trained boundaries only; what the draft's config records is not looked at.
    """
    shape = opened.checkpoint.shape
    rows = rows_that_fit(reference.num_layers, shape.num_slots, reference.hidden_size, shape.hidden_size)
    texts = [sample.tokens.tolist() for sample in islice(iter(opened.states), documents)]
    return from_texts(texts, reference, opened.draft.target_ids, rows)


@torch.no_grad()
def with_shuffled_fc(draft: Eagle3Draft, seed: int = 0) -> Eagle3Draft:
    """Return a copy of the draft with the columns of `fc` shuffled: no layout fits it, the control of a search."""
    spoilt = copy.deepcopy(draft)
    order = torch.randperm(draft.fc.weight.shape[1], generator=torch.Generator().manual_seed(seed))
    spoilt.fc.weight.copy_(draft.fc.weight[:, order.to(draft.fc.weight.device)])
    return spoilt


@torch.no_grad()
def with_swapped_slots(draft: Eagle3Draft) -> Eagle3Draft:
    """Return a copy of the draft with the first two slots of `fc` swapped; its layout has them swapped too.

    Raises ValueError for a draft of one slot.
    """
    swapped = copy.deepcopy(draft)
    first, second, *others = draft.fc.weight.split(draft.config.target_hidden_size, dim=1)  # [H_draft, H] per slot
    swapped.fc.weight.copy_(torch.cat([second, first, *others], dim=1))
    return swapped
