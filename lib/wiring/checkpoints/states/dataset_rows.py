"""Read the rows of a Hugging Face dataset from `save_to_disk`: tokens and loss masks of current speculators.

datasets 5.2.0 writes the names of its Arrow stream files to state.json, in order, with 1000 rows to a batch. They are
read in that order, one batch in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.file_loading import read_json
from wiring.checkpoints.states.state_fields import mask_row, token_row
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.json"
COLUMNS = ("input_ids", "loss_mask")
_WHOLE = {"c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32", "l": "int64"}


class Rows:
    """Tokens and loss masks of a saved dataset by row number, fastest in ascending order.

    With a broken file every row from there on fails, because their numbers depend on it.
    """

    def __init__(self, folder: Path):
        state = read_json(folder / STATE, "the dataset's state")
        try:
            self._files = [folder / entry["filename"] for entry in state["_data_files"]]
        except (TypeError, KeyError):
            self._files = []
        if not self._files:
            raise WiringError(
                "the dataset's state names no data files",
                code="dataset-without-files",
                where=folder / STATE,
                expected="_data_files",
            )
        self._folder = folder
        self._start()

    def row(self, number: int) -> tuple[Tensor, Tensor]:
        """Return tokens [N] and loss mask [N] int64 of one row. Raises WiringError if there is no such row."""
        import torch

        if number < self._next:
            self._start()
        if self._failure is not None:
            raise self._failure
        try:
            for file, columns in self._rows:
                self._next += 1
                if self._next == number + 1:
                    where = file.with_name(f"{file.name}, row {number}")
                    ids, mask = (torch.from_numpy(columns[name].astype("int64")) for name in COLUMNS)
                    tokens = token_row(ids, "input_ids", where)
                    return tokens, mask_row(mask, "loss_mask", len(tokens), where)
        except WiringError as error:
            self._failure = error if self._next != number + 1 else None
            raise
        raise WiringError(
            f"the dataset has no row {number}",
            code="dataset-row-missing",
            where=self._folder,
            expected=f"0..{self._next - 1}",
        )

    def _start(self) -> None:
        self._next, self._failure = 0, None
        self._rows = (row for file in self._files for row in _rows(file))


def _rows(file: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the values of every row by column, as numpy arrays [N]."""
    # nanoarrow is 1.2 MB without dependencies; pyarrow, which `datasets` is built on, is 55 MB
    import nanoarrow
    from nanoarrow.ipc import InputStream

    try:
        with InputStream.from_path(str(file)) as source, nanoarrow.c_array_stream(source) as stream:
            schema = stream.get_schema()
            names = [schema.child(i).name for i in range(schema.n_children)]
            if not {*COLUMNS} <= {*names}:
                raise WiringError(
                    "a column is missing from the dataset",
                    code="dataset-column-missing",
                    where=file,
                    expected=", ".join(COLUMNS),
                    found=", ".join(names),
                )
            for batch in stream:
                columns = {name: _column(batch.child(names.index(name)), name, file) for name in COLUMNS}
                for row in range(batch.length):
                    yield file, {name: values[at[row] : at[row + 1]] for name, (at, values) in columns.items()}
                del batch, columns
    except FileNotFoundError:
        raise WiringError("a file of the dataset is missing", code="dataset-file-missing", where=file) from None
    except (RuntimeError, OSError) as error:  # nanoarrow raises a RuntimeError of its own
        raise WiringError(
            f"the dataset's file is cut off or damaged: {error}", code="dataset-file-damaged", where=file
        ) from None


def _column(lists: Any, name: str, file: Path) -> tuple[Any, Any]:
    """Return the row limits [rows + 1] and the values of one column of lists of whole numbers, without a copy."""
    import numpy

    values, kind = None, lists.schema.format
    if kind in ("+l", "+L") and not lists.null_count and not lists.child(0).null_count:
        values, kind = lists.child(0), lists.child(0).schema.format
    if values is None or kind not in (*_WHOLE, "b"):
        raise WiringError(
            f"column {name} holds other values than lists of whole numbers",
            code="dataset-column-invalid",
            where=file,
            expected="lists of integers without nulls",
            found=repr(kind),
        )
    limits, buffer = numpy.asarray(lists.view().buffer(1)), values.view().buffer(1)
    if kind == "b":  # one bit per value
        return limits, numpy.unpackbits(numpy.frombuffer(buffer, "uint8"), bitorder="little")
    return limits, numpy.asarray(buffer)
