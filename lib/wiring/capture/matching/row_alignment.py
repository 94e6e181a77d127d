"""Which reference row belongs to which served row, and to its neighbours in the text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wiring.errors import WiringError


@dataclass(frozen=True)
class Rows:
    """Where rows of states come from: `positions` int64 [M] in their texts, `texts` int64 [M] the number of the text.

    Without `texts` all rows are of one text.
    """

    positions: Tensor
    texts: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def whole(cls, lengths: list[int] | tuple[int, ...]) -> Rows:
        """All positions of texts of these lengths, one text after the other."""
        positions = torch.cat([torch.arange(n) for n in lengths])
        return cls(positions, torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)))


def partners(served: Rows, reference: Rows, shift: int) -> Tensor:
    """For each served row the reference row of the same text `shift` positions later, or -1 where none: int64 [M].

    Raises WiringError when the positions and the texts of a side differ in length.
    """
    for name, rows in (("served", served), ("reference", reference)):
        if rows.texts is not None and len(rows.texts) != len(rows.positions):
            raise WiringError(
                f"the {name} rows are not told completely",
                expected="a text for each position",
                found=f"{len(rows.positions)} positions, {len(rows.texts)} texts",
            )
    wanted_at, have_at = served.positions.cpu() + shift, reference.positions.cpu()
    low = min(int(wanted_at.min()), int(have_at.min()))
    span = max(int(wanted_at.max()), int(have_at.max())) - low + 1
    wanted = _texts(served) * span + wanted_at - low
    have, order = (_texts(reference) * span + have_at - low).sort(stable=True)
    at = torch.searchsorted(have, wanted).clamp(max=len(have) - 1)
    return torch.where(have[at] == wanted, order[at], -1)


def _texts(rows: Rows) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.int64) if rows.texts is None else rows.texts.cpu().long()
