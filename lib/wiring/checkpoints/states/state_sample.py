"""One sequence with the target's states, and how it is written."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wiring.checkpoints.atomic import replacing
from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from torch import Tensor

Norm = Literal["post", "pre", "undecided"]


@dataclass(frozen=True)
class StateSample:
    """One sequence with the target's states. N tokens, n stored slots of width H; padding may follow the sequence.

    source: the file. tokens [N] int64. loss_mask [N] int64, 1 for tokens that the trainer counts. states [N, n, H], not
    normed. boundaries[i]: the boundary in slot i; None if unknown. last_hidden [N, H], after ("post") or before ("pre")
    the final norm by `norm`, "undecided" if the format does not record it. format: the trainer's format. mask_assumed:
    the file holds no loss mask, so every token counts.
    """

    source: str
    tokens: Tensor
    loss_mask: Tensor
    states: Tensor
    boundaries: Layout | None
    last_hidden: Tensor
    norm: Norm = "post"
    format: str = "specforge"
    mask_assumed: bool = False

    def select(self, layout: Layout) -> Tensor:
        """Return the states of `layout` [N, len(layout), H]. Raises WiringError if a boundary is not stored."""
        missing = [b for b in layout if b not in (self.boundaries or ())]
        if missing:
            stored = f"{self.states.shape[1]} states per token without names"
            raise WiringError(
                f"boundary {missing[0]} is not among the stored states",
                code="boundary-not-stored",
                where=self.source,
                expected=f"the layout {tuple(layout)}",
                found=stored if self.boundaries is None else f"stored boundaries {self.boundaries}",
                remedy="Name the stored boundaries, slot by slot" if self.boundaries is None else "",
            )
        return self.states[:, [(self.boundaries or ()).index(b) for b in layout]]


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and the reason."""

    source: str
    reason: str


def write_state(path: str | Path, tokens: Tensor, loss_mask: Tensor, states: Tensor, last_hidden: Tensor) -> Path:
    """Write tokens [N], loss_mask [N], states [N, n, H] and last_hidden [N, H] as SpecForge's offline capture does.

    The file is compressed if `path` ends in .gz; floats keep their type. The same sample gives the same bytes.
    """
    import torch

    record = {
        "input_ids": tokens.to("cpu", torch.int64).clone(),  # a view would write its whole batch to the file
        "loss_mask": loss_mask.to("cpu", torch.int64).clone(),
        "aux_hidden_state": states.detach().cpu().flatten(1)[None].clone(),
        "hidden_state": last_hidden.detach().cpu()[None].clone(),
    }
    buffer = io.BytesIO()  # through memory: torch.save writes its file's own name into the archive
    torch.save(record, buffer)
    content = buffer.getvalue()
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content)
    return Path(path)
