"""Open a path with training states as samples, which are read one at a time and can be iterated repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wiring.checkpoints.file_loading import load_torch, open_safetensors
from wiring.checkpoints.states.dataset_rows import Rows
from wiring.checkpoints.states.state_fields import AGAIN
from wiring.checkpoints.states.state_formats import stacked_sample, to_sample
from wiring.checkpoints.states.state_listing import (
    SIDECAR,
    ContradictoryStates,
    Listing,
    find_sidecar,
    list_states,
    mixed,
    row_number,
)
from wiring.checkpoints.states.state_sample import Norm, Skipped, StateSample
from wiring.errors import WiringError
from wiring.layers import Layout, check_layout

_TRIED = 16  # with skip_bad, good files that are searched for one with as many slots as boundaries are named


@dataclass(frozen=True)
class _Kind:
    """What all files of a folder must share, and the first file."""

    format: str
    slots: int
    norm: Norm
    source: str


class StateFolder:
    """The samples below `path`; each iteration reads the files again, one sample in memory at a time.

    `format`, `slots` (stored states per token) and `norm` are those of all samples; `boundaries` names the slots, None
    if unknown; `skipped` lists what the latest iteration left out; `len` counts all files, bad ones too. Iterating
    raises WiringError for the first bad file, or, with `skip_bad`, if no file is good; two formats or two norms in one
    folder are an error either way. Made by `open_states`.
    """

    def __init__(
        self,
        listing: Listing,
        hidden_size: int,
        boundaries: Layout | None,
        recorded_norm: tuple[Path, Norm] | None,
        skip_bad: bool,
        vocab_size: int | None,
    ):
        self.path, self.hidden_size, self.skip_bad, self.boundaries = listing.path, hidden_size, skip_bad, boundaries
        self._listing, self._recorded_norm, self._vocab_size = listing, recorded_norm, vocab_size
        self.skipped: list[Skipped] = []
        self._kind = self._first_kind()
        self.format, self.slots, self.norm = self._kind.format, self._kind.slots, self._kind.norm
        self.skipped = []

    def __len__(self) -> int:
        return len(self._listing.files) + len(self._listing.problems)

    def __iter__(self) -> Iterator[StateSample]:
        return self._samples(self._kind)

    def _samples(self, kind: _Kind | None) -> Iterator[StateSample]:
        """Yield the good samples in order; without a `kind`, with any number of slots."""
        skipped: list[Skipped] = []
        self.skipped = skipped
        read = _reader(self._listing, self.hidden_size)
        first_error, good = None, 0
        entries: list[WiringError | Path] = [*self._listing.problems, *self._listing.files]
        for entry in entries:
            try:
                if isinstance(entry, WiringError):
                    raise entry
                sample = self._checked(read(entry), kind)
            except WiringError as error:
                if isinstance(error, ContradictoryStates) or not self.skip_bad:
                    raise
                first_error = first_error or error
                skipped.append(Skipped(error.where or str(entry), _reason(error)))
                continue
            good += 1
            yield sample
            del sample  # frees its memory before the next one is read
        if not good and first_error is not None:
            raise WiringError(
                f"none of {len(entries)} files can be used; the first: {_reason(first_error).removesuffix('.')}",
                code="states-all-unusable",
                where=first_error.where,
                remedy=AGAIN,
            )

    def _checked(self, sample: StateSample, kind: _Kind | None) -> StateSample:
        """Return the sample with boundaries and the recorded norm. Raises WiringError if it does not fit the folder."""
        if self._recorded_norm is not None:
            place, norm = self._recorded_norm
            if sample.norm not in (norm, "undecided"):
                raise ContradictoryStates(
                    "two sources state different norms of the last hidden state",
                    code="states-norm-contradictory",
                    where=sample.source,
                    expected=f'"{norm}" ({place})',
                    found=f'"{sample.norm}" (the format, {sample.format})',
                    remedy="Correct the first",
                )
            sample = replace(sample, norm=norm)
        if self._vocab_size is not None and int(sample.tokens.max()) >= self._vocab_size:
            raise WiringError(
                "a token id is outside the target's vocabulary",
                code="states-token-outside-vocabulary",
                where=sample.source,
                expected=f"0..{self._vocab_size - 1}",
                found=int(sample.tokens.max()),
                remedy="The states belong to another target or tokenizer",
            )
        if kind is not None and sample.format != kind.format:
            raise mixed(kind.source, kind.format, sample.source, sample.format)
        if kind is not None and sample.norm != kind.norm:
            raise mixed(kind.source, f"{kind.norm}-norm", sample.source, f"{sample.norm}-norm")
        if kind is not None and sample.states.shape[1] != kind.slots:
            raise WiringError(
                "the file has another number of states than the others",
                code="states-slots-differ",
                where=sample.source,
                expected=f"{kind.slots} states per token, as in {kind.source}",
                found=f"{sample.states.shape[1]} states",
            )
        return replace(sample, boundaries=self.boundaries)

    def _first_kind(self) -> _Kind:
        """Read the first good file that has as many slots as boundaries are named."""
        unfit: _Kind | None = None
        for tried, sample in enumerate(self._samples(None), 1):
            kind = _Kind(sample.format, sample.states.shape[1], sample.norm, sample.source)
            if self.boundaries is None or kind.slots == len(self.boundaries):
                return kind
            unfit = unfit or kind
            if not self.skip_bad or tried == _TRIED:
                break
        assert unfit is not None, "list_states refuses an empty folder, and _samples one without a good file"
        raise WiringError(
            "the stored states and the boundaries named for them differ in number",
            code="states-boundaries-count",
            where=unfit.source,
            expected=f"{unfit.slots} boundaries, slot by slot: the file ({unfit.format}) holds {unfit.slots} states of "
            f"width {self.hidden_size} per token",
            found=self.boundaries,
            remedy=f"Name the boundaries that the file holds, in the call or in {SIDECAR}",
        )


def open_states(
    path: str | Path,
    *,
    hidden_size: int,
    stored: Sequence[int] | None = None,
    skip_bad: bool = False,
    vocab_size: int | None = None,
) -> StateFolder:
    """Open a folder of training states, or one file, of any trainer; the format is detected from the content.

    `hidden_size` is the target's width; `stored` names the boundary in each stored slot, by default from
    `boundaries.json`; with `vocab_size`, token ids are checked against it. With `skip_bad`, files that cannot be used
    are left out and counted. The first good file is read at once. Raises WiringError if there is none, if files of two
    formats are mixed, if slots and boundaries differ in number, and if `stored` and boundaries.json differ; see
    `StateFolder` for the rest.
    """
    listing, found = list_states(path), find_sidecar(Path(path))
    layout = tuple(stored) if stored is not None else None
    check_layout(layout or ())
    if layout is not None and found is not None and layout != found[1].boundaries:
        raise WiringError(
            "two sources state different stored boundaries",
            code="states-boundaries-contradictory",
            where=path,
            expected=f"{found[1].boundaries} ({found[0]})",
            found=f"{layout} (the call)",
            remedy=f"Pass the former, or correct {SIDECAR}",
        )
    norm = (found[0], found[1].norm) if found is not None and found[1].norm is not None else None
    boundaries = layout if layout is not None or found is None else found[1].boundaries
    return StateFolder(listing, hidden_size, boundaries, norm, skip_bad, vocab_size)


def _reader(listing: Listing, hidden_size: int) -> Callable[[Path], StateSample]:
    """Return the function that reads one file of the listing."""
    rows = Rows(listing.dataset) if listing.dataset is not None else None

    def read(path: Path) -> StateSample:
        if rows is not None:
            tokens, mask = rows.row(row_number(path))
            with open_safetensors(path, AGAIN) as reader:
                record = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
            return stacked_sample(record, tokens, mask, path, hidden_size)
        record = load_torch(path, AGAIN)
        wanted = listing.ids.get(path)
        if wanted is not None and isinstance(record, dict) and str(record.get("data_id", wanted)) != wanted:
            raise WiringError(
                "the file holds another sample than the manifest names",
                code="states-of-another-sample",
                where=path,
                expected=f"data_id {wanted}",
                found=record["data_id"],
            )
        return to_sample(record, path, hidden_size, listing.prenorm)

    return read


def _reason(error: WiringError) -> str:
    return str(error).removeprefix(f"{error.where}: ")
