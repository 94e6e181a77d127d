"""What a search looks at: documents with the target's states at every boundary, and which rows of them count.

Documents are taken from their beginning, never from their middle: row t of the draft looks at the rows before it, so a
window that starts at the document's own start holds everything that its rows see, and a row's loss is the very number
that the whole document would give. Short windows of many documents tell more than few long ones, because rows of one
document are alike.

A row's label is the target's choice: its most likely next token over its whole vocabulary. A row counts where the text
goes on with just that token, or, for saved states, where their loss mask counts it: there the text is what the target
would write itself, which drafts are trained on. Elsewhere (names that are drawn, a user's words) nobody can foretell
the text, most trainers leave the row out, and there a draft is as wrong as it is sure of itself: on such rows other
layouts than the trained one often look better, because they make it less sure. Rows whose label the draft's vocabulary
lacks do not count either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wiring.accuracy.target_head import TargetHead, choices
from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.checkpoints.states import StateSample
    from wiring.model.target_reference import ReferenceTarget

DOCUMENTS, WINDOW = 64, 96  # at most so many documents, each with so many of its first tokens
FEWEST_DOCUMENTS, SHORTEST = 4, 8  # documents, and tokens of a document, that a search needs at least
BYTES = 6 << 30  # of states and their products together
NO_LABEL = -1
_BATCH = 8  # documents that the target runs at once


@dataclass(frozen=True)
class Material:
    """D documents padded to N tokens, T = N - 1 rows, boundaries 0..L.

    tokens [D, N] int64; states [L+1, D, T, H] not normed; labels [D, T]: the target's choice that row t predicts, as a
    draft id, or NO_LABEL where the row does not count; lengths [D]: rows that a document has, the others are padding;
    outside: rows left out because the draft cannot say the label.
    """

    tokens: Tensor
    states: Tensor
    labels: Tensor
    lengths: Tensor
    outside: int

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.states) - 1

    @property
    def counted(self) -> Tensor:
        """Rows that count [D, T] bool."""
        return self.labels != NO_LABEL

    def documents(self, which: Sequence[int] | slice) -> Material:
        """The documents `which`, in that order; a slice copies nothing."""
        index = which if isinstance(which, slice) else torch.as_tensor(which)
        return Material(
            self.tokens[index], self.states[:, index], self.labels[index], self.lengths[index], self.outside
        )


def rows_that_fit(num_layers: int, slots: int, target_width: int, draft_width: int) -> int:
    """Rows whose float32 states and products stay within BYTES."""
    return BYTES // (4 * (num_layers + 1) * (target_width + slots * draft_width))


def from_texts(
    texts: Sequence[Sequence[int]],
    target: ReferenceTarget,
    target_ids: Tensor,
    rows: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Material:
    """Run the target over token ids, a list for each document. target_ids [Vd]: the draft's vocabulary; rows: at most.

    Raises WiringError for too few documents, or when too few rows count.
    """
    check_documents(len(texts), "--text")
    window = _window(len(texts), rows)
    # One token more than the window tells whether the last row's text follows the target.
    texts = [list(text[: window + 1]) for text in texts[:DOCUMENTS]]
    taken = [torch.tensor(text[:window]) for text in texts]
    build = _Building(max(map(len, taken)), target_ids, target.num_layers + 1, len(taken), target.hidden_size)
    for first in range(0, len(taken), _BATCH):
        group = taken[first : first + _BATCH]
        padded = torch.nn.utils.rnn.pad_sequence(group, batch_first=True)
        seen = target.forward(padded)
        for i, tokens in enumerate(group):
            length = len(tokens)
            best = seen.logits[i, 1:length].argmax(-1).cpu()
            follows = torch.tensor([*texts[first + i][2:], -1])[: length - 1] == best
            build.add(tokens, seen.boundaries[:, i, : length - 1], best, follows)
        progress(first + len(group))
    return build.material("--text")


def from_samples(
    samples: Iterable[StateSample], count: int, num_layers: int, head: TargetHead, target_ids: Tensor, rows: int
) -> Material:
    """Take saved states that hold every boundary 0..L, `count` samples. Row t counts where loss_mask[t] does, as in
    SpecForge's counting rule (`wiring.accuracy.counting`); samples shorter than SHORTEST are left out.

    Raises WiringError for boundaries that are not stored, naming them, for too few documents or counted rows.
    """
    every = tuple(range(num_layers + 1))
    window, build = _window(count, rows), None
    for done, sample in enumerate(samples):
        if done == DOCUMENTS:
            break
        _check_every(sample, every)
        length = min(len(sample.tokens), window)
        if length < SHORTEST:
            continue
        states = sample.select(every)[: length - 1].transpose(0, 1)  # [L+1, T, H]
        if build is None:
            build = _Building(window, target_ids, len(every), min(count, DOCUMENTS), states.shape[-1])
        best = choices(head.normed(sample, sample.last_hidden[1:length]), head.weight).cpu()
        build.add(sample.tokens[:length], states, best, sample.loss_mask[: length - 1] != 0)
    check_documents(0 if build is None else build.filled, "--states")
    return build.material("--states")


def read_texts(file: Path) -> list[str]:
    """One document per line. Raises WiringError for a file that is no text, or has an empty line or one twice."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WiringError(f"the text cannot be read: {error.strerror}", where=file) from None
    except UnicodeDecodeError:
        raise WiringError("the file is not text", where=file, expected="UTF-8, one document per line") from None
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise WiringError(
                "this line is empty",
                where=f"{file}, line {number}",
                expected="one document per line",
                remedy="Take the line out",
            )
        if (first := seen.setdefault(" ".join(line.split()), number)) != number:
            raise WiringError(
                f"this document stands in line {first} already",
                where=f"{file}, line {number}",
                expected="documents that differ: copies count as evidence and tell nothing",
                remedy="Take the line out",
            )
    check_documents(len(lines), file)
    return lines


def tokenise(lines: Sequence[str], target: Path, file: object) -> list[list[int]]:
    """Token ids of each line by the target's own tokenizer. Raises WiringError for none, or for a line too short."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WiringError(f"the target's tokenizer cannot be loaded: {first}", where=target) from None
    texts = [list(tokenizer(line)["input_ids"]) for line in lines]
    for number, text in enumerate(texts, 1):
        if len(text) < SHORTEST:
            raise WiringError(
                "this document is too short",
                where=f"{file}, line {number}",
                expected=f"at least {SHORTEST} tokens",
                found=len(text),
                remedy="Give longer documents, or take the line out",
            )
    return texts


def check_documents(count: int, where: object) -> None:
    """Raise WiringError for fewer documents than an interval needs."""
    if count < FEWEST_DOCUMENTS:
        raise WiringError(
            "too few documents to compare layouts on",
            where=where,
            expected=f"at least {FEWEST_DOCUMENTS} of {SHORTEST} tokens or more; 32 or more tell neighbouring layers "
            "apart better",
            found=count,
        )


def _check_every(sample: StateSample, every: tuple[int, ...]) -> None:
    stored = sample.boundaries
    missing = [b for b in every if stored is None or b not in stored]
    if missing:
        some = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise WiringError(
            "saved states serve a search only where they hold every boundary",
            where=sample.source,
            expected=f"boundaries 0..{every[-1]}",
            found="states that nobody named" if stored is None else f"{stored}; missing: {some}",
            remedy="Give the text itself (--text), and the target computes them all",
        )


def _window(documents: int, rows: int) -> int:
    """Tokens of each document, so that all rows together fit."""
    return max(SHORTEST, min(WINDOW, rows // max(min(documents, DOCUMENTS), 1) + 1))


class _Building:
    """Collects documents into padded tensors that are allocated once."""

    def __init__(self, length: int, target_ids: Tensor, boundaries: int, documents: int, width: int):
        self.tokens = torch.zeros(documents, length, dtype=torch.int64)
        self.states = torch.zeros(boundaries, documents, length - 1, width)
        self.labels = torch.full((documents, length - 1), NO_LABEL)
        self.lengths = torch.zeros(documents, dtype=torch.int64)
        self.ids = target_ids.cpu()
        self.filled = self.outside = 0

    def add(self, tokens: Tensor, states: Tensor, best: Tensor, counts: Tensor) -> None:
        """One document of n tokens: states [L+1, n-1, H], the target's choices and whether they count, each [n-1]."""
        at, rows = self.filled, len(best)
        self.tokens[at, : len(tokens)] = tokens
        self.states[:, at, :rows] = states.float().cpu()
        order = self.ids.argsort()
        place = torch.searchsorted(self.ids[order], best).clamp(max=len(order) - 1)
        draft_id = order[place]
        sayable = self.ids[draft_id] == best
        self.labels[at, :rows] = torch.where(sayable & counts, draft_id, NO_LABEL)
        self.outside += int((counts & ~sayable).sum())
        self.lengths[at] = rows
        self.filled += 1

    def material(self, where: str) -> Material:
        """What was collected. Raises WiringError when a document or a row is wanting."""
        used = (self.labels[: self.filled] != NO_LABEL).any(1).nonzero()[:, 0].tolist()
        if len(used) < FEWEST_DOCUMENTS:
            raise WiringError(
                "hardly any row counts",
                where=where,
                expected=f"rows in at least {FEWEST_DOCUMENTS} documents whose label is in the draft's vocabulary",
                found=f"{len(used)} documents with such rows, {self.outside} rows with a label outside",
            )
        longest = int(self.lengths.max())
        whole = Material(
            self.tokens[:, : longest + 1],
            self.states[:, :, :longest],
            self.labels[:, :longest],
            self.lengths,
            self.outside,
        )
        return whole if len(used) == len(self.tokens) else whole.documents(used)
