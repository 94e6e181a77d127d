"""`boundaries.json` beside training states: which boundary each stored slot holds, which no trainer writes down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wiring.checkpoints.atomic import write_json
from wiring.checkpoints.states.state_sample import Norm
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError
from wiring.layers import Layout, check_layout

SIDECAR = "boundaries.json"
_INNER = re.compile(r"rows_\d+-\d+|samples|hidden_states")  # folders that trainers put inside the folder of states


@dataclass(frozen=True)
class Sidecar:
    """What the file says. `norm` is None where it does not tell the norm of the last hidden state."""

    path: Path
    boundaries: Layout
    norm: Norm | None


def write_sidecar(folder: str | Path, boundaries: Sequence[int], norm: Norm | None = None) -> Path:
    """Name the stored slots of the training states in `folder`, and the norm of the last hidden state if known."""
    return write_json(Path(folder) / SIDECAR, {"boundaries": list(boundaries)} | ({"norm": norm} if norm else {}))


def find_sidecar(path: Path) -> Sidecar | None:
    """Read the sidecar of a folder of states or of one of its files; None when there is none.

    Raises WiringError when the file is not {"boundaries": [0, 3, 31], "norm": "post" or "pre"}.
    """
    folder = path if path.is_dir() else path.parent
    folders = [folder, folder.parent] if _INNER.fullmatch(folder.name) else [folder]
    for place in folders:
        if (place / SIDECAR).exists():
            return _read(place / SIDECAR)
    return None


def _read(path: Path) -> Sidecar:
    held = read_json(path, "the list of stored boundaries")
    boundaries, norm = held.get("boundaries"), held.get("norm")
    if not isinstance(boundaries, list) or not boundaries or not all(type(b) is int for b in boundaries):
        raise WiringError(
            "no list of boundaries", where=path, expected='{"boundaries": [0, 3, 31]}', found=repr(boundaries)
        )
    if norm not in (None, "post", "pre"):
        raise WiringError("no such norm", where=path, expected='"post" or "pre"', found=repr(norm))
    try:
        check_layout(boundaries)
    except WiringError as error:
        raise WiringError(error.problem, where=path, expected=error.expected, found=error.found) from None
    return Sidecar(path, tuple(boundaries), norm)
