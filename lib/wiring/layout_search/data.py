"""Data of a layout search: documents with the target's states at every boundary, and which rows of them count.

Documents are taken from their beginning, because row t of the draft attends to all rows before it: the loss of a row is
then that of the whole document. Many short windows are better than few long ones, since rows of one document are
correlated.

The label of a row is the target's most likely next token over its whole vocabulary. A row counts where the text
continues with this token, or, for saved states, where their loss mask counts it: drafts are trained on text that the
target would write itself. On other rows (random names, a user's words) the draft is overconfident, and layouts other
than the trained one often have a lower loss. Rows with a label outside the draft's vocabulary do not count.
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

DOCUMENTS, WINDOW = 64, 96  # maximum of documents, and of first tokens of each
FEWEST_DOCUMENTS, SHORTEST = 4, 8  # minimum of documents, and of tokens of each
_REMEDY = "Correct or remove the line"
BYTES = 6 << 30  # of states and their contributions to fc together
NO_LABEL = -1
_BATCH = 8  # documents per batch of the target


@dataclass(frozen=True)
class SearchData:
    """D documents padded to N tokens, T = N - 1 rows, boundaries 0..L.

    tokens [D, N] int64; states [L+1, D, T, H] not normed; labels [D, T]: the target's choice that row t predicts, as a
    draft id, or NO_LABEL where the row does not count; lengths [D]: rows of each document, the others are padding;
    outside: number of rows with a label outside the draft's vocabulary.
    """

    tokens: Tensor
    states: Tensor
    labels: Tensor
    lengths: Tensor
    outside: int

    @property
    def num_layers(self) -> int:
        """L, the number of target layers."""
        return len(self.states) - 1

    @property
    def counted(self) -> Tensor:
        """Counted rows [D, T] bool."""
        return self.labels != NO_LABEL

    def documents(self, which: Sequence[int] | slice) -> SearchData:
        """Return the documents `which`, in that order; a slice copies nothing."""
        index = which if isinstance(which, slice) else torch.as_tensor(which)
        return SearchData(
            self.tokens[index], self.states[:, index], self.labels[index], self.lengths[index], self.outside
        )


def rows_that_fit(num_layers: int, slots: int, target_width: int, draft_width: int) -> int:
    """Return the number of rows with float32 states and contributions within BYTES."""
    return BYTES // (4 * (num_layers + 1) * (target_width + slots * draft_width))


def from_texts(
    texts: Sequence[Sequence[int]],
    target: ReferenceTarget,
    target_ids: Tensor,
    rows: int,
    progress: Callable[[int], object] = lambda done: None,
) -> SearchData:
    """Run the target over token ids, a list per document. target_ids [Vd]: the draft's vocabulary; rows: maximum.

    Raises WiringError for too few documents or counted rows.
    """
    check_documents(len(texts), "--text")
    window = _window(len(texts), rows)
    # One more token than the window, to compare the target's choice of the last row with the text.
    texts = [list(text[: window + 1]) for text in texts[:DOCUMENTS]]
    taken = [torch.tensor(text[:window]) for text in texts]
    build = _Builder(max(map(len, taken)), target_ids, target.num_layers + 1, len(taken), target.hidden_size)
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
    return build.finish("--text")


def from_samples(
    samples: Iterable[StateSample], count: int, num_layers: int, head: TargetHead, target_ids: Tensor, rows: int
) -> SearchData:
    """Take `count` samples of saved states with every boundary 0..L; samples shorter than SHORTEST are left out.

    Row t counts where loss_mask[t] does, as in SpecForge's counting rule (`wiring.accuracy.counting`). Raises
    WiringError for boundaries that are not stored, and for too few documents or counted rows.
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
            build = _Builder(window, target_ids, len(every), min(count, DOCUMENTS), states.shape[-1])
        best = choices(head.normed(sample, sample.last_hidden[1:length]), head.weight).cpu()
        build.add(sample.tokens[:length], states, best, sample.loss_mask[: length - 1] != 0)
    check_documents(0 if build is None else build.filled, "--states")
    assert build is not None  # check_documents refuses zero documents
    return build.finish("--states")


def read_texts(file: Path) -> list[str]:
    """Read one document per line. Raises WiringError for a file that is not text, an empty line or a repeated one."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WiringError(f"the text cannot be read: {error.strerror}", code="text-unreadable", where=file) from None
    except UnicodeDecodeError:
        expected = "UTF-8, one document per line"
        raise WiringError("the file is not text", code="text-not-utf8", where=file, expected=expected) from None
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise WiringError(
                "this line is empty",
                code="text-line-empty",
                where=f"{file}, line {number}",
                expected="one document per line",
                remedy=_REMEDY,
            )
        if (first := seen.setdefault(" ".join(line.split()), number)) != number:
            raise WiringError(
                f"this document repeats line {first}",
                code="text-line-repeated",
                where=f"{file}, line {number}",
                expected="documents that differ",
                remedy=_REMEDY,
            )
    check_documents(len(lines), file)
    return lines


def tokenize(lines: Sequence[str], target: Path, file: object) -> list[list[int]]:
    """Return token ids of each line by the target's tokenizer. Raises WiringError for none, or a line too short."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        problem = f"the target's tokenizer cannot be loaded: {first}"
        raise WiringError(problem, code="tokenizer-unloadable", where=target) from None
    texts = [list(tokenizer(line)["input_ids"]) for line in lines]
    for number, text in enumerate(texts, 1):
        if len(text) < SHORTEST:
            raise WiringError(
                f"this document has {len(text)} tokens",
                code="document-too-short",
                where=f"{file}, line {number}",
                expected=f"at least {SHORTEST} tokens",
                remedy=_REMEDY,
            )
    return texts


def check_documents(count: int, where: object) -> None:
    """Raise WiringError for fewer documents than an interval needs."""
    if count < FEWEST_DOCUMENTS:
        raise WiringError(
            "too few documents to compare layouts on",
            code="too-few-documents",
            where=where,
            expected=f"at least {FEWEST_DOCUMENTS} of {SHORTEST} tokens or more, better 32",
            found=count,
        )


def _check_every(sample: StateSample, every: tuple[int, ...]) -> None:
    stored = sample.boundaries
    missing = [b for b in every if stored is None or b not in stored]
    if missing:
        some = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise WiringError(
            "a search needs saved states of every boundary",
            code="boundaries-missing",
            where=sample.source,
            expected=f"boundaries 0..{every[-1]}",
            found="states without boundaries" if stored is None else f"{stored}; missing: {some}",
            remedy="Pass the text instead (--text), and the target computes all of them",
        )


def _window(documents: int, rows: int) -> int:
    """Return the tokens per document with which all rows fit."""
    return max(SHORTEST, min(WINDOW, rows // max(min(documents, DOCUMENTS), 1) + 1))


class _Builder:
    """Collect documents in padded tensors that are allocated once."""

    def __init__(self, length: int, target_ids: Tensor, boundaries: int, documents: int, width: int):
        self.tokens = torch.zeros(documents, length, dtype=torch.int64)
        self.states = torch.zeros(boundaries, documents, length - 1, width)
        self.labels = torch.full((documents, length - 1), NO_LABEL)
        self.lengths = torch.zeros(documents, dtype=torch.int64)
        self.ids = target_ids.cpu()
        self.filled = self.outside = 0

    def add(self, tokens: Tensor, states: Tensor, best: Tensor, counts: Tensor) -> None:
        """Add a document of n tokens: states [L+1, n-1, H], the target's choices and whether they count, each [n-1]."""
        at, rows = self.filled, len(best)
        self.tokens[at, : len(tokens)] = tokens
        self.states[:, at, :rows] = states.float().cpu()
        order = self.ids.argsort()
        place = torch.searchsorted(self.ids[order], best).clamp(max=len(order) - 1)
        draft_id = order[place]
        in_vocabulary = self.ids[draft_id] == best
        self.labels[at, :rows] = torch.where(in_vocabulary & counts, draft_id, NO_LABEL)
        self.outside += int((counts & ~in_vocabulary).sum())
        self.lengths[at] = rows
        self.filled += 1

    def finish(self, where: str) -> SearchData:
        """Return the collected data. Raises WiringError for too few documents with counted rows."""
        used = (self.labels[: self.filled] != NO_LABEL).any(1).nonzero()[:, 0].tolist()
        if len(used) < FEWEST_DOCUMENTS:
            raise WiringError(
                "too few rows count",
                code="too-few-counted-rows",
                where=where,
                expected=f"rows in at least {FEWEST_DOCUMENTS} documents whose label is in the draft's vocabulary",
                found=f"{len(used)} documents with such rows, {self.outside} rows with a label outside",
            )
        longest = int(self.lengths.max())
        whole = SearchData(
            self.tokens[:, : longest + 1],
            self.states[:, :, :longest],
            self.labels[:, :longest],
            self.lengths,
            self.outside,
        )
        return whole if len(used) == len(self.tokens) else whole.documents(used)
