"""The rows of a Hugging Face dataset as `save_to_disk` leaves them: tokens and loss mask of current speculators.

datasets 5.2.0 writes the names of its Arrow stream files to state.json, in order, with 1000 rows to a batch. They are
read in that order, one batch in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.states.state_fields import mask_row, token_row
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.json"
COLUMNS = ("input_ids", "loss_mask")
_WHOLE = {"c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32", "l": "int64"}


@dataclass(frozen=True)
class _Batch:
    """Rows first..first+count-1; per column the row limits [count+1] and all values, as numpy arrays."""

    file: Path
    first: int
    count: int
    columns: dict[str, tuple[Any, Any]]


class Rows:
    """Tokens and loss masks of a saved dataset, by row number; cheapest in ascending order.

    A file that turns out to be broken fails every row from there on, because their numbers depend on it.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._files = dataset_files(folder)
        self._total: int | None = None  # known once they were all read
        self._start()

    def row(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens [N] and loss mask [N] int64 of one row. Raises WiringError when there is no such row."""
        import torch

        if self._failure is not None:
            raise self._failure
        if self._total is not None and number >= self._total:
            raise WiringError(f"the dataset has no row {number}", where=self._folder, expected=f"0..{self._total - 1}")
        if self._batch is not None and number < self._batch.first:
            self._start()
        while self._batch is None or number >= self._batch.first + self._batch.count:
            read = 0 if self._batch is None else self._batch.first + self._batch.count
            self._batch = None  # its memory is free before the next one comes
            try:
                self._batch = next(self._batches)
            except StopIteration:
                self._total = read
                self._start()
                return self.row(number)
            except WiringError as error:
                self._failure = error
                raise
        batch, place = self._batch, number - self._batch.first
        cut = {}
        for name, (limits, values) in batch.columns.items():
            cut[name] = torch.from_numpy(values[limits[place] : limits[place + 1]].astype("int64"))
        where = batch.file.with_name(f"{batch.file.name}, row {number}")
        tokens = token_row(cut["input_ids"], "input_ids", where)
        return tokens, mask_row(cut["loss_mask"], "loss_mask", len(tokens), where)

    def _start(self) -> None:
        self._batch: _Batch | None = None
        self._failure: WiringError | None = None
        self._batches = _batches(self._files)


def dataset_files(folder: Path) -> tuple[Path, ...]:
    """The Arrow files of a dataset folder, in order. Raises WiringError when state.json does not name them."""
    named = read_json(folder / STATE, "the dataset's state").get("_data_files")
    try:
        files = tuple(folder / entry["filename"] for entry in named)
    except (TypeError, KeyError):
        files = ()
    if not files:
        raise WiringError("the dataset's state names no data files", where=folder / STATE, expected="_data_files")
    return files


def _batches(files: tuple[Path, ...]) -> Iterator[_Batch]:
    first = 0
    for file in files:
        for count, columns in _arrays(file):
            yield _Batch(file, first, count, columns)
            del columns
            first += count


def _arrays(file: Path) -> Iterator[tuple[int, dict[str, tuple[Any, Any]]]]:
    # nanoarrow is 1.2 MB and needs nothing else; pyarrow, which `datasets` is built on, is 55 MB
    import nanoarrow
    from nanoarrow.ipc import InputStream

    try:
        with InputStream.from_path(str(file)) as source, nanoarrow.c_array_stream(source) as stream:
            schema = stream.get_schema()
            places = _places([schema.child(i).name for i in range(schema.n_children)], file)
            kinds = {name: schema.child(place).format for name, place in places.items()}
            for name, kind in kinds.items():
                if kind not in ("+l", "+L"):
                    raise WiringError(f"column {name} holds no lists", where=file, expected="lists", found=repr(kind))
            for array in stream:
                yield array.length, {name: _column(array.child(i), name, file) for name, i in places.items()}
                del array
    except FileNotFoundError:
        raise WiringError("a file of the dataset is missing", where=file) from None
    except (RuntimeError, OSError) as error:  # nanoarrow raises a RuntimeError of its own
        raise WiringError(f"the dataset's file is cut off or damaged: {error}", where=file) from None


def _places(names: list[str], file: Path) -> dict[str, int]:
    for name in COLUMNS:
        if name not in names:
            raise WiringError(
                f"column {name} is missing from the dataset",
                where=file,
                expected=", ".join(COLUMNS),
                found=", ".join(names),
            )
    return {name: names.index(name) for name in COLUMNS}


def _column(lists: Any, name: str, file: Path) -> tuple[Any, Any]:
    """The row limits and the values of one column of lists, without a copy."""
    import numpy

    values = lists.child(0)
    if lists.null_count or values.null_count:
        raise WiringError(f"column {name} has gaps", where=file, expected="a value in every place")
    limits = numpy.asarray(lists.view().buffer(1))
    kind, buffer = values.schema.format, values.view().buffer(1)
    if kind == "b":  # one bit per value
        return limits, numpy.unpackbits(numpy.frombuffer(buffer, "uint8"), bitorder="little")
    if kind not in _WHOLE:
        raise WiringError(f"column {name} holds no whole numbers", where=file, expected="integers", found=repr(kind))
    return limits, numpy.asarray(buffer)
