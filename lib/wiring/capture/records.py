"""Captured states: what a running server's target put out and what its draft's `fc` was fed. The reader's side.

A server started with `capture_environment` writes one file per request and forward (see `capture_plugin`). Row r of a
record is the state g_t of position t = positions[r], next to the token that the draft was fed with it, which is the one
after: x_{t+1}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError
from wiring.layers import Phase

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "WIRING_CAPTURE_DIR"  # where records go; a server without it captures nothing
ROWS = "WIRING_CAPTURE_TOKENS"  # the first so many tokens are recorded
BYTES = "WIRING_CAPTURE_BYTES"  # at most so many bytes of records are written
PREFIX = "WIRING_CAPTURE_PREFIX"  # only requests whose id begins so; empty: all but the server's own health checks
NAMES = "WIRING_CAPTURE_NAMES"  # a JSON list: only requests of these ids; empty: every id
DRAFTS = "WIRING_CAPTURE_DRAFTS"  # "1": what the draft proposed is recorded too (see `proposals`)
DEFAULT_ROWS = 4096
DEFAULT_BYTES = 2**30
PATTERN = "record-*.safetensors"
ERROR = "capture-error.txt"
NOTE = "capture-note.json"  # the bounds, whether one was reached, and how the server runs (see `capture_summary`)


@dataclass(frozen=True)
class CaptureRecord:
    """The rows of one request in one forward.

    `phase` says which:

    - PREFILL: what `fc` is fed in the draft's forward after the target's prefill;
    - VERIFY: what the target's verify forward put out, before anything else has touched it;
    - DRAFT_EXTEND: what `fc` is fed in the draft's forward after that verify.

    The last two come in pairs, VERIFY first, of the same request, positions and tokens: those that were accepted. In a
    sound server they are equal bit for bit.

    M rows: `token_ids` [M] int64 are the tokens beside the states, x_{t+1} beside g_t; `positions` [M] int64 are the t;
    `states` [M, n*H] float32 are n slots side by side, before any norm of the draft. `dtype` is what they were served
    in ("bfloat16"), which float32 holds exactly. `request` is the request's id, `index` counts the records of the
    server process in the order of its forwards. `note` says what else is to be known of these rows.
    """

    phase: Phase
    token_ids: Tensor
    positions: Tensor
    states: Tensor
    request: str
    index: int
    dtype: str = "float32"
    note: str = ""


def capture_environment(
    folder: str | Path,
    rows: int = DEFAULT_ROWS,
    prefix: str = "",
    drafts: bool = False,
    *,
    names: Sequence[str] = (),
    max_bytes: int = DEFAULT_BYTES,
) -> dict[str, str]:
    """The environment that makes a server capture into `folder`, which is made and must hold no records yet.

    The first `rows` tokens are recorded, and only of requests whose id (`rid`) begins with `prefix` and, where `names`
    are given, is one of them. A token counts once although both its VERIFY and its DRAFT_EXTEND row are written. The
    records take at most `max_bytes` bytes on disk. With `drafts` every round's proposals are recorded beside them.

    Raises WiringError when the folder holds an earlier capture: the two would be taken for one.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob(PATTERN)) or any((folder / name).exists() for name in (ERROR, NOTE)):
        raise WiringError(
            "this folder holds an earlier capture",
            where=folder,
            expected="an empty folder",
            remedy="Name another folder",
        )
    listed = json.dumps(list(names)) if names else ""
    chosen = {FOLDER: str(folder), ROWS: str(rows), BYTES: str(max_bytes), PREFIX: prefix, NAMES: listed}
    return chosen | {DRAFTS: "1" if drafts else ""}


def read_capture(folder: str | Path) -> tuple[CaptureRecord, ...]:
    """All records of a capture folder, in the order of the forwards; states come back as float32.

    Raises WiringError when the recorder reported an error, when there are no records, or when one is damaged.
    """
    folder = Path(folder)
    check_no_error(folder)
    files = sorted(folder.glob(PATTERN))
    if not files:
        from wiring.capture.folder_summary import summarize

        seen = summarize(folder)
        raise WiringError(
            f"nothing was captured: {seen.reasons[Phase.PREFILL]}",
            where=folder,
            expected=f"files {PATTERN}",
            remedy=seen.remedies[Phase.PREFILL],
        )
    return tuple(sorted((_read(file) for file in files), key=lambda record: record.index))


def check_no_error(folder: Path) -> None:
    """Raise WiringError when the recorder in the server reported an error."""
    if (folder / ERROR).exists():
        told = (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip()
        raise WiringError(
            "the capture failed in the server",
            where=folder / ERROR,
            found=told.splitlines()[-1][:300],
            remedy="Serving was not touched; the file holds the whole traceback",
        )


def final_states(records: Iterable[CaptureRecord], tokens: Sequence[int]) -> dict[Phase, tuple[Tensor, Tensor]]:
    """The states of one request at the positions of its final text, for each phase that was seen.

    `tokens` is the whole text, prompt and output. Per phase: (positions [M] int64 ascending, states [M, n*H]); where a
    position was recorded more than once, the last record holds. Positions beyond the text are left out (a round may
    verify further than the request was allowed to go). A phase without rows is absent.

    Raises:
        WiringError: the records are of several requests, or the tokens fed are not those of `tokens`.
    """
    import torch

    chosen, text = tuple(records), [int(token) for token in tokens]
    requests = sorted({record.request for record in chosen})
    if len(requests) > 1:
        raise WiringError(
            "records of several requests",
            where="capture",
            expected="one request",
            found=", ".join(requests[:4]),
            remedy="Choose by CaptureRecord.request",
        )
    result: dict[Phase, tuple[Tensor, Tensor]] = {}
    for phase in Phase:
        rows: dict[int, Tensor] = {}
        for record in sorted((r for r in chosen if r.phase is phase), key=lambda r: r.index):
            _check_text(record, text)
            positions = record.positions.tolist()
            rows |= {t: state for t, state in zip(positions, record.states, strict=True) if t < len(text)}
        if rows:
            ordered = sorted(rows)
            result[phase] = torch.tensor(ordered, dtype=torch.int64), torch.stack([rows[t] for t in ordered])
    return result


def _check_text(record: CaptureRecord, text: Sequence[int]) -> None:
    for t, fed in zip(record.positions.tolist(), record.token_ids.tolist(), strict=True):
        if t + 1 < len(text) and fed != text[t + 1]:
            raise WiringError(
                f"the capture is of another text: it differs at position {t + 1}",
                where=f"request {record.request}",
                expected=f"token {text[t + 1]}",
                found=f"token {fed}",
                remedy="Give prompt and output of this request",
            )


def _read(file: Path) -> CaptureRecord:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            note: dict[str, Any] = opened.metadata() or {}
            tokens, positions, states = (opened.get_tensor(name) for name in ("token_ids", "positions", "states"))
        if not tokens.shape == positions.shape == states.shape[:1] or states.dim() != 2:
            raise ValueError(f"shapes {tuple(tokens.shape)}, {tuple(positions.shape)}, {tuple(states.shape)}")
        phase, index, served = Phase(note["phase"]), int(note["index"]), str(states.dtype).removeprefix("torch.")
        return CaptureRecord(phase, tokens, positions, states.float(), note["request"], index, served)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise WiringError(f"not a capture record: {error}", where=file, remedy="Capture again") from None
