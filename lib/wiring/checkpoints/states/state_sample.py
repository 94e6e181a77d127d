"""One sequence with the target's states, whatever trainer saved it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from torch import Tensor

Norm = Literal["post", "pre", "undecided"]


@dataclass(frozen=True)
class StateSample:
    """One sequence with the target's states. N tokens, n stored slots of width H; padding may trail.

    tokens [N] int64; loss_mask [N] int64, 1 where the trainer counts; states [N, n, H] not normed; boundaries[i] is
    the boundary in slot i, None where nobody said; last_hidden [N, H] after ("post") or before ("pre") the final norm
    as `norm` says, "undecided" where the format does not tell; source is the file, format what wrote it; mask_assumed:
    the file holds no loss mask, so that every token counts.
    """

    source: str
    tokens: Tensor
    loss_mask: Tensor
    states: Tensor
    boundaries: tuple[int, ...] | None
    last_hidden: Tensor
    norm: Norm = "post"
    format: str = "specforge"
    mask_assumed: bool = False

    def select(self, layout: Layout) -> Tensor:
        """The states of `layout` [N, len(layout), H]. Raises WiringError when a boundary is not stored."""
        if self.boundaries is None:
            raise WiringError(
                "nobody said which boundaries are stored",
                where=self.source,
                expected=f"the layout {tuple(layout)}",
                found=f"{self.states.shape[1]} states per token without names",
                remedy="Name the stored boundaries, slot by slot",
            )
        missing = [b for b in layout if b not in self.boundaries]
        if missing:
            raise WiringError(
                f"boundary {missing[0]} is not among the stored states",
                where=self.source,
                expected=f"the layout {tuple(layout)}",
                found=f"stored boundaries {self.boundaries}",
            )
        return self.states[:, [self.boundaries.index(b) for b in layout]]


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and why."""

    source: str
    reason: str
