"""Write training states as SpecForge's offline capture does."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import TYPE_CHECKING

from wiring.checkpoints.atomic import replacing

if TYPE_CHECKING:
    from torch import Tensor


def write_state(path: str | Path, tokens: Tensor, loss_mask: Tensor, states: Tensor, last_hidden: Tensor) -> Path:
    """Write a sample of tokens [N], loss_mask [N], states [N, n, H] and last_hidden [N, H], whole or not at all.

    Compressed when `path` ends in .gz; floats keep their type. The same sample gives the same bytes.
    """
    import torch

    record = {
        "input_ids": tokens.to("cpu", torch.int64).clone(),  # a view would take its whole batch into the file
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
