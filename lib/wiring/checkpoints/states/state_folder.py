"""A path with training states as samples, read one at a time and again as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wiring.checkpoints.states.dataset_rows import Rows
from wiring.checkpoints.states.sidecar import Sidecar, find_sidecar
from wiring.checkpoints.states.state_formats import stacked_sample, to_sample
from wiring.checkpoints.states.state_listing import Contradiction, Listing, list_states, mixed, row_number
from wiring.checkpoints.states.state_loading import load_safetensors, load_torch
from wiring.checkpoints.states.state_sample import Norm, Skipped, StateSample
from wiring.errors import WiringError
from wiring.layers import Layout, check_layout

_TRIED = 16  # good files that are looked at for one as wide as the named boundaries, where bad ones are skipped


@dataclass(frozen=True)
class _Kind:
    """What all files of a folder must share, and the file that set it."""

    format: str
    slots: int
    norm: Norm
    source: str


class StateFolder:
    """The samples below `path`; each iteration reads the files anew, one sample in memory at a time.

    `format`, `slots` (stored states per token) and `norm` are those of all samples; `boundaries` names the slots, or
    is None where nobody said; `skipped` is what the latest iteration left out; `len` counts the files, bad ones too.
    Iterating raises WiringError for the first bad file, or, with `skip_bad`, when not one file is good; two formats
    or two norms in one folder are an error either way.
    """

    def __init__(
        self,
        listing: Listing,
        hidden_size: int,
        stored: Layout | None,
        sidecar: Sidecar | None,
        skip_bad: bool,
        vocab_size: int | None,
    ):
        self.path, self.hidden_size, self.skip_bad = listing.path, hidden_size, skip_bad
        self.boundaries: Layout | None = stored if stored is not None else sidecar.boundaries if sidecar else None
        self.skipped: list[Skipped] = []
        self._listing, self._sidecar, self._vocab_size = listing, sidecar, vocab_size
        self._kind = self._first_kind()
        self.format, self.slots, self.norm = self._kind.format, self._kind.slots, self._kind.norm
        self.skipped = []

    def __len__(self) -> int:
        return len(self._listing.files) + len(self._listing.problems)

    def __iter__(self) -> Iterator[StateSample]:
        return self._samples(self._kind)

    def _samples(self, kind: _Kind | None) -> Iterator[StateSample]:
        """The good samples in order; without a `kind`, whatever their width."""
        skipped: list[Skipped] = []
        self.skipped = skipped
        read = _reader(self._listing, self.hidden_size)
        first_error, good = None, 0
        steps: list[WiringError | Path] = [*self._listing.problems, *self._listing.files]
        for step in steps:
            try:
                if isinstance(step, WiringError):
                    raise step
                sample = self._finished(read(step), kind)
            except WiringError as error:
                if isinstance(error, Contradiction) or not self.skip_bad:
                    raise
                first_error = first_error or error
                skipped.append(Skipped(error.where or str(step), _reason(error)))
                continue
            good += 1
            yield sample
            del sample  # or it would stay in memory while the next one is read
        if not good and first_error is not None:
            raise WiringError(
                f"not one of {len(steps)} files can be used; the first: {_reason(first_error).removesuffix('.')}",
                where=first_error.where,
            )

    def _finished(self, sample: StateSample, kind: _Kind | None) -> StateSample:
        """The sample with what the sidecar says, if it is of the folder's kind."""
        said = self._sidecar.norm if self._sidecar else None
        if said and sample.norm not in (said, "undecided"):
            raise Contradiction(
                "the norm of the last hidden state is told in two ways",
                where=sample.source,
                expected=f'"{said}" ({self._sidecar.path})',
                found=f'"{sample.norm}" (the format, {sample.format})',
                remedy="Correct the first",
            )
        if self._vocab_size is not None and int(sample.tokens.max()) >= self._vocab_size:
            raise WiringError(
                "a token id is outside the target's vocabulary",
                where=sample.source,
                expected=f"0..{self._vocab_size - 1}",
                found=int(sample.tokens.max()),
                remedy="The states belong to another target or tokenizer",
            )
        sample = replace(sample, norm=said or sample.norm, boundaries=self.boundaries)
        if kind is None:
            return sample
        if sample.format != kind.format:
            raise mixed(kind.source, kind.format, sample.source, sample.format)
        if sample.norm != kind.norm:
            raise mixed(kind.source, f"{kind.norm}-norm", sample.source, f"{sample.norm}-norm")
        if sample.states.shape[1] != kind.slots:
            raise WiringError(
                "the file is of another width than the others",
                where=sample.source,
                expected=f"{kind.slots} states per token, as in {kind.source}",
                found=f"{sample.states.shape[1]} states",
            )
        return sample

    def _first_kind(self) -> _Kind:
        """Read the first good file that the named boundaries fit."""
        unfit: _Kind | None = None
        for tried, sample in enumerate(self._samples(None), 1):
            kind = _Kind(sample.format, sample.states.shape[1], sample.norm, sample.source)
            if self.boundaries is None or kind.slots == len(self.boundaries):
                return kind
            unfit = unfit or kind
            if not self.skip_bad or tried == _TRIED:
                break
        if unfit is None:
            raise WiringError("no training states here", where=self.path)
        said = "as asked" if self._sidecar is None else f"as {self._sidecar.path} says"
        raise WiringError(
            "the stored states and the boundaries named for them differ in number",
            where=unfit.source,
            expected=f"{unfit.slots} boundaries, slot by slot: the file ({unfit.format}) holds {unfit.slots} states of "
            f"width {self.hidden_size} per token",
            found=f"{self.boundaries}, {said}",
            remedy="Say which boundaries the file holds",
        )


def open_states(
    path: str | Path,
    *,
    hidden_size: int,
    stored: Sequence[int] | None = None,
    skip_bad: bool = False,
    vocab_size: int | None = None,
) -> StateFolder:
    """Open a folder of training states, or one file, of any trainer; the format is told by the content.

    `hidden_size` is the target's width; `stored` names the boundary of each stored slot, which else comes from a
    `boundaries.json` beside the data; with `vocab_size`, token ids are held against it. With `skip_bad`, files that
    cannot be used are left out and counted. The first good file is read at once. Raises WiringError when there is
    none, when two formats lie together, when slots and boundaries differ in number, and when `stored` and
    boundaries.json differ; see `StateFolder` for the rest.
    """
    listing, sidecar = list_states(path), find_sidecar(Path(path))
    layout = tuple(stored) if stored is not None else None
    if layout is not None:
        check_layout(layout)
    if layout is not None and sidecar is not None and layout != sidecar.boundaries:
        raise WiringError(
            "the stored boundaries are told in two ways",
            where=path,
            expected=f"{sidecar.boundaries} ({sidecar.path})",
            found=f"{layout}, as asked",
            remedy=f"Ask for the former, or correct {sidecar.path.name}",
        )
    return StateFolder(listing, hidden_size, layout, sidecar, skip_bad, vocab_size)


def iter_states(folder: str | Path, boundaries: Sequence[int], hidden_size: int) -> Iterator[StateSample]:
    """Stream the samples of `folder` in the order of their numbers; see `open_states` for arguments and errors."""
    return iter(open_states(folder, hidden_size=hidden_size, stored=boundaries))


def read_state(path: str | Path, boundaries: Sequence[int], hidden_size: int) -> StateSample:
    """Read one file; see `open_states`."""
    return next(iter_states(path, boundaries, hidden_size))


def _reader(listing: Listing, hidden_size: int) -> Callable[[Path], StateSample]:
    if listing.dataset is not None:
        rows = Rows(listing.dataset)

        def read_row(path: Path) -> StateSample:
            tokens, mask = rows.row(row_number(path))
            return stacked_sample(load_safetensors(path), tokens, mask, path, hidden_size)

        return read_row

    def read(path: Path) -> StateSample:
        record = load_torch(path)
        wanted = listing.ids.get(path)
        if wanted is not None and isinstance(record, dict) and str(record.get("data_id", wanted)) != wanted:
            raise WiringError(
                "the sample is another one than the manifest says",
                where=path,
                expected=f"data_id {wanted}",
                found=record["data_id"],
            )
        return to_sample(record, path, hidden_size, listing.prenorm)

    return read


def _reason(error: WiringError) -> str:
    return str(error).removeprefix(f"{error.where}: ")
