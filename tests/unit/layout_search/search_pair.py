"""The tiny pair's target on documents that no draft was trained on, and the drafts that the search is tried on."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from tiny import corpus
from tiny.config import TargetSizes
from tiny.export import load_target

from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.target_files import read_tensor
from wiring.layout_search import SearchData
from wiring.layout_search.data import from_texts
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferencePass

PAIR = Path(__file__).parents[3] / "data" / "tiny"
TARGET = PAIR / "target"
DRAFTS = Path(__file__).parent / "search_drafts"
DOCUMENTS, TOKENS = 64, 97


def texts(documents=DOCUMENTS, tokens=TOKENS):
    """Token ids of documents of the evaluation split."""
    return [document.ids for document in corpus.draw_many("search", documents, tokens, "evaluation")]


def lines(documents=DOCUMENTS, tokens=TOKENS):
    """The same as text."""
    return [" ".join(document.words) for document in corpus.draw_many("search", documents, tokens, "evaluation")]


class AsReference:
    """The tiny target's own plain PyTorch model, behind the few names of ReferenceTarget: five times as fast.

    tests/tiny holds its states against transformers'.
    """

    def __init__(self):
        self.sizes = TargetSizes()
        self.model = load_target(TARGET, self.sizes)
        self.num_layers, self.hidden_size = self.sizes.layers, self.sizes.hidden

    @functools.cache  # noqa: B019  the one reference below lives as long as the tests
    def seen(self, tokens):
        return self.run(torch.tensor(tokens))

    def forward(self, tokens):
        """As ReferenceTarget.forward; the same batch is run once."""
        return self.seen(tuple(map(tuple, tokens.tolist())))

    @torch.no_grad()
    def run(self, tokens):
        every = tuple(range(self.num_layers + 1))
        logits, last, captured = self.model(tokens, every)
        return ReferencePass(torch.stack([captured[b] for b in every]), logits, last)


@functools.cache
def reference() -> AsReference:
    """The tiny target."""
    return AsReference()


@functools.cache
def data(folder: Path = PAIR / "draft") -> SearchData:
    """All boundaries of `texts`, labels in the vocabulary of the draft in `folder`."""
    return from_texts(texts(), reference(), load(folder).target_ids, 10**6)


@functools.cache
def load(folder: Path) -> Eagle3Draft:
    """A tiny draft, read from its files."""
    return Eagle3Draft.from_checkpoint(read_draft(folder), read_tensor(TARGET, "model.embed_tokens.weight"))


def other_drafts() -> dict[str, tuple[int, ...]]:
    """Layout of each draft in search_drafts, by the name of its folder."""
    rows = json.loads((DRAFTS / "manifest.json").read_text())["drafts"]
    return {name: tuple(row["layout"]) for name, row in rows.items()}


def shuffled(draft: Eagle3Draft, seed: int, whole: bool = True) -> Eagle3Draft:
    """A copy of a draft whose fc columns are shuffled: all together, or within each slot."""
    import copy

    changed = copy.deepcopy(draft)
    generator = torch.Generator().manual_seed(seed)
    width, slots = draft.fc.weight.shape[1], draft.config.num_slots
    part = width // slots
    order = (
        torch.randperm(width, generator=generator)
        if whole
        else torch.cat([torch.randperm(part, generator=generator) + part * slot for slot in range(slots)])
    )
    with torch.no_grad():
        changed.fc.weight.copy_(draft.fc.weight[:, order])
    return changed
