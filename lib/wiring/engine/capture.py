"""Captured states: what a running server fed to the draft's `fc`, row by row. The reader's side.

A server started with `capture_environment` writes one file per request and draft forward (see `capture_plugin`). Row r
of a record is the state g_t of position t = positions[r], next to the token that the draft was fed with it, which is
the one after: x_{t+1}.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.boundary import Phase
from wiring.errors import WiringError

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "WIRING_CAPTURE_DIR"  # where records go; a server without it captures nothing
ROWS = "WIRING_CAPTURE_TOKENS"  # at most so many rows are recorded
PREFIX = "WIRING_CAPTURE_PREFIX"  # only requests whose id begins so; empty: all but the server's own health checks
DRAFTS = "WIRING_CAPTURE_DRAFTS"  # "1": what the draft proposed is recorded too (see `proposals`)
DEFAULT_ROWS = 4096
PATTERN = "record-*.safetensors"
ERROR = "capture-error.txt"


@dataclass(frozen=True)
class CaptureRecord:
    """The rows of one request in one draft forward.

    `phase` says where the target made the states (prefill or verify). M rows: `token_ids` [M] int64 are the tokens fed
    beside the states, x_{t+1} beside g_t; `positions` [M] int64 are the t; `states` [M, n*H] float32 are what `fc` is
    fed, n slots side by side, before any norm of the draft. `request` is the request's id, `index` counts the records
    of the server process in the order of its forwards.
    """

    phase: Phase
    token_ids: Tensor
    positions: Tensor
    states: Tensor
    request: str
    index: int


def capture_environment(
    folder: str | Path, rows: int = DEFAULT_ROWS, prefix: str = "", drafts: bool = False
) -> dict[str, str]:
    """The environment that makes a server capture into `folder`, which is made and must hold no records yet.

    At most `rows` rows are recorded, and only of requests whose id (`rid`) begins with `prefix`. With `drafts` every
    round's proposals are recorded beside them. Raises WiringError when the folder holds an earlier capture: the two
    would be taken for one.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob(PATTERN)) or (folder / ERROR).exists():
        raise WiringError(
            "this folder holds an earlier capture", where=folder, expected="an empty folder",
            remedy="Name another folder",
        )  # fmt: skip
    return {FOLDER: str(folder), ROWS: str(rows), PREFIX: prefix} | ({DRAFTS: "1"} if drafts else {})


def read_capture(folder: str | Path) -> tuple[CaptureRecord, ...]:
    """All records of a capture folder, in the order of the forwards; states come back as float32.

    Raises WiringError when the recorder reported an error, when there are no records, or when one is damaged.
    """
    folder = Path(folder)
    check_no_error(folder)
    files = sorted(folder.glob(PATTERN))
    if not files:
        raise WiringError(
            "nothing was captured", where=folder, expected=f"files {PATTERN}",
            remedy=f"Start the server with {FOLDER} set and with an EAGLE-3 draft, then send it a request",
        )  # fmt: skip
    return tuple(sorted((_read(file) for file in files), key=lambda record: record.index))


def check_no_error(folder: Path) -> None:
    """Raise WiringError when the recorder in the server reported an error."""
    if (folder / ERROR).exists():
        told = (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip()
        raise WiringError("the capture failed in the server", where=folder / ERROR, found=told.splitlines()[-1][:300],
                          remedy="Serving was not touched; the file holds the whole traceback")  # fmt: skip


def final_states(records: Iterable[CaptureRecord], tokens: Sequence[int]) -> dict[Phase, tuple[Tensor, Tensor]]:
    """The states of one request at the positions of its final text, phase by phase.

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
        raise WiringError("records of several requests", where="capture", expected="one request",
                          found=", ".join(requests[:4]), remedy="Choose by CaptureRecord.request")  # fmt: skip
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
                f"the capture is of another text: it differs at position {t + 1}", where=f"request {record.request}",
                expected=f"token {text[t + 1]}", found=f"token {fed}",
                remedy="Give prompt and output of this request",
            )  # fmt: skip


def _read(file: Path) -> CaptureRecord:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            note: dict[str, Any] = opened.metadata() or {}
            tokens, positions, states = (opened.get_tensor(name) for name in ("token_ids", "positions", "states"))
        if not tokens.shape == positions.shape == states.shape[:1] or states.dim() != 2:
            raise ValueError(f"shapes {tuple(tokens.shape)}, {tuple(positions.shape)}, {tuple(states.shape)}")
        phase, index = Phase(note["phase"]), int(note["index"])
        return CaptureRecord(phase, tokens, positions, states.float(), note["request"], index)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise WiringError(f"not a capture record: {error}", where=file, remedy="Capture again") from None
