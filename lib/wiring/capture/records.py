"""Read captured states: what a running server's target computed and what its draft's `fc` was fed.

A server started with `capture_environment` writes one file per request and forward (see `capture_plugin`). Row r of a
record is the state g_t of position t = positions[r] with the next token x_{t+1}, which the draft was fed with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wiring.errors import WiringError
from wiring.layers import Phase

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "WIRING_CAPTURE_DIR"  # folder of the records; a server without it captures nothing
ROWS = "WIRING_CAPTURE_TOKENS"  # number of tokens that are recorded
BYTES = "WIRING_CAPTURE_BYTES"  # most bytes of records
PREFIX = "WIRING_CAPTURE_PREFIX"  # only requests whose id begins with it; empty: all but the server's health checks
NAMES = "WIRING_CAPTURE_NAMES"  # a JSON list: only requests of these ids; empty: every id
DRAFTS = "WIRING_CAPTURE_DRAFTS"  # "1": the draft's proposals are recorded too (see `proposals`)
DEFAULT_ROWS = 4096
DEFAULT_BYTES = 2**30
PATTERN = "record-*.safetensors"
ERROR = "capture-error.txt"
NOTE = "capture-note.json"  # bounds, which one was reached, how the server runs (see `folder_summary`)


@dataclass(frozen=True)
class CaptureRecord:
    """The rows of one request in one forward.

    Phases:

    - PREFILL: input of `fc` in the draft's forward after the target's prefill;
    - VERIFY: output of the target's verify forward;
    - DRAFT_EXTEND: input of `fc` in the draft's forward after that verify.

    The last two come in pairs, VERIFY first, with the request, positions and tokens that were accepted. In a correct
    server they are equal bit for bit.

    M rows: `token_ids` [M] int64 are the tokens x_{t+1}; `positions` [M] int64 the positions t; `states` [M, n*H]
    float32 n slots, before any norm of the draft. `dtype` is the served one ("bfloat16"), which float32 holds exactly.
    `index` counts the records of the server process in the order of its forwards.
    """

    phase: Phase
    token_ids: Tensor
    positions: Tensor
    states: Tensor
    request: str
    index: int
    dtype: str = "float32"


def capture_environment(
    folder: str | Path,
    rows: int = DEFAULT_ROWS,
    prefix: str = "",
    drafts: bool = False,
    *,
    names: Sequence[str] = (),
    max_bytes: int = DEFAULT_BYTES,
) -> dict[str, str]:
    """Return the environment with which a server captures into `folder`, which is created.

    The first `rows` tokens are recorded, of requests whose id (`rid`) begins with `prefix` and is one of `names` if
    there are any.
    A token counts once although its VERIFY and its DRAFT_EXTEND row are both written. `max_bytes` bounds the files.
    `drafts` records every round's proposals too.

    Raises WiringError if the folder holds an earlier capture.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob(PATTERN)) or any((folder / name).exists() for name in (ERROR, NOTE)):
        raise WiringError(
            "this folder holds an earlier capture",
            code="capture-folder-in-use",
            where=folder,
            expected="an empty folder",
            remedy="Name another folder",
        )
    listed = json.dumps(list(names)) if names else ""
    chosen = {FOLDER: str(folder), ROWS: str(rows), BYTES: str(max_bytes), PREFIX: prefix, NAMES: listed}
    return chosen | {DRAFTS: "1" if drafts else ""}


def final_states(records: Iterable[CaptureRecord], tokens: Sequence[int]) -> dict[Phase, tuple[Tensor, Tensor]]:
    """Return the states of one request at the positions of its final text, for each recorded phase.

    `tokens` is the whole text, prompt and output. Per phase: (positions [M] int64 ascending, states [M, n*H]); of a
    position that was recorded more than once the last record counts. Positions after the text are left out, because a
    round may verify more tokens than were requested. Raises WiringError if the records were fed other tokens.
    """
    import torch

    text = [int(token) for token in tokens]
    found: dict[Phase, dict[int, Tensor]] = {}
    for record in sorted(records, key=lambda record: record.index):
        rows = found.setdefault(record.phase, {})
        fed = zip(record.positions.tolist(), record.token_ids.tolist(), record.states, strict=True)
        for position, token, state in fed:
            if position + 1 < len(text) and token != text[position + 1]:
                raise WiringError(
                    "the capture is of another text",
                    code="capture-of-another-text",
                    where=f"request {record.request}, position {position + 1}",
                    expected=f"token {text[position + 1]}",
                    found=f"token {token}",
                    remedy="Give prompt and output of this request",
                )
            if position < len(text):
                rows[position] = state
    return {
        phase: (torch.tensor(sorted(found[phase])), torch.stack([found[phase][t] for t in sorted(found[phase])]))
        for phase in Phase
        if found.get(phase)
    }


def read_record(file: Path) -> CaptureRecord:
    """Read one record. Raises WiringError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            note = opened.metadata() or {}
            tokens, positions, states = (opened.get_tensor(name) for name in ("token_ids", "positions", "states"))
        if not tokens.shape == positions.shape == states.shape[:1] or states.dim() != 2:
            raise ValueError(f"shapes {tuple(tokens.shape)}, {tuple(positions.shape)}, {tuple(states.shape)}")
        phase, index, dtype = Phase(note["phase"]), int(note["index"]), str(states.dtype).removeprefix("torch.")
        return CaptureRecord(phase, tokens, positions, states.float(), note["request"], index, dtype)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise WiringError(
            "not a capture record", code="capture-record-damaged", where=file, found=error, remedy="Capture again"
        ) from None
