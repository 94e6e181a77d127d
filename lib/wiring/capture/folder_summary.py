"""Read a capture folder, and explain which phases were recorded and why others are missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wiring.capture.records import BYTES, ERROR, FOLDER, NOTE, PATTERN, ROWS, CaptureRecord, read_record
from wiring.errors import WiringError
from wiring.layers import Phase

_NO_NOTE = {"truncated": "", "graphs": {}, "algorithm": "", "prefix": "", "names": []}
_NO_ROUND = "no request reached a verify round"


@dataclass(frozen=True)
class CaptureSummary:
    """Recorded rows by phase (a position recorded twice counts twice), reason and remedy for each missing phase.

    `truncated` is the bound that ended the capture, "rows" or "bytes"; empty if none did.
    """

    rows: Mapping[Phase, int]
    reasons: Mapping[Phase, str]
    remedies: Mapping[Phase, str]
    truncated: str

    @property
    def missing(self) -> tuple[Phase, ...]:
        """The phases without rows."""
        return tuple(self.reasons)


def summarize(folder: str | Path) -> CaptureSummary:
    """Summarize a capture folder. Raises WiringError if a record or the note is damaged."""
    folder = Path(folder)
    rows: dict[Phase, int] = {}
    for file in sorted(folder.glob(PATTERN)):
        record = read_record(file)
        rows[record.phase] = rows.get(record.phase, 0) + len(record.positions)
    note = _read_note(folder)
    why = {phase: _explain(phase, rows, note, folder) for phase in Phase if phase not in rows}
    reasons, remedies = ({phase: both[i] for phase, both in why.items()} for i in range(2))
    return CaptureSummary(rows, reasons, remedies, (note or _NO_NOTE)["truncated"])


def read_capture(folder: str | Path) -> tuple[CaptureRecord, ...]:
    """Read all records of a capture folder, in the order of the forwards, with states as float32.

    Raises WiringError if the recorder reported an error, if there are no records, or if one is damaged.
    """
    folder = Path(folder)
    if (folder / ERROR).exists():
        raise WiringError(
            "the capture failed in the server",
            code="capture-failed",
            where=folder / ERROR,
            found=_last_line(folder / ERROR),
            remedy="Read the traceback in the file; serving was not affected",
        )
    records = [read_record(file) for file in folder.glob(PATTERN)]
    if not records:
        summary = summarize(folder)
        raise WiringError(
            f"nothing was captured: {summary.reasons[Phase.PREFILL]}",
            code="nothing-captured",
            where=folder,
            expected=f"files {PATTERN}",
            remedy=summary.remedies[Phase.PREFILL],
        )
    return tuple(sorted(records, key=lambda record: record.index))


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def _explain(phase: Phase, rows: Mapping[Phase, int], note: dict[str, Any] | None, folder: Path) -> tuple[str, str]:
    """Return (reason, remedy) for a missing phase, the most certain explanation first."""
    if (folder / ERROR).exists():
        return f"the recorder failed in the server: {_last_line(folder / ERROR)}", f"Read {ERROR} and capture again"
    if note is None and not rows:
        remedy = f"Start the server with {FOLDER} set, in the environment in which this package is installed"
        return "the server ran no forward: the capture was not loaded, or no request came", remedy
    note = note or _NO_NOTE
    bound = note["truncated"]
    later = tuple(Phase)[tuple(Phase).index(phase) + 1 :]
    half_a_round = bound == "rows" and phase is Phase.DRAFT_EXTEND and Phase.VERIFY in rows
    if bound and not half_a_round and not set(later) & set(rows):
        setting = {"rows": ROWS, "bytes": BYTES}[bound]
        return f"the bound on {bound} was reached before it", f"Raise {setting} and capture again"
    if note["algorithm"] not in ("EAGLE3", ""):
        return f"the server runs without an EAGLE-3 draft (algorithm {note['algorithm']})", "Serve an EAGLE-3 draft"
    if not rows and (note["prefix"] or note["names"]):
        chosen = [f"begins with {note['prefix']!r}"] if note["prefix"] else []
        chosen += [f"is one of {', '.join(note['names'])}"] if note["names"] else []
        return f"no request had an id (rid) that {' and '.join(chosen)}", "Send requests with such an id"
    half = "prefill" if phase is Phase.PREFILL else "decode"
    backend = note["graphs"].get(half, "unknown")
    no_round = phase is not Phase.PREFILL and not {Phase.VERIFY, Phase.DRAFT_EXTEND} & set(rows)
    if backend != "disabled":
        reason = f"the server replays CUDA graphs for {half} ({backend}), in which the plugin cannot see this forward"
        remedy = "Capture the same requests from a server with --disable-cuda-graph"
        return f"{_NO_ROUND}, or {reason}" if no_round else reason, remedy
    if no_round:
        return _NO_ROUND, "Request two new tokens or more"
    return "its forward did not pass the hooks", "Compare the server's release with the hooks' release"


def _read_note(folder: Path) -> dict[str, Any] | None:
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        if note["truncated"] not in ("", "rows", "bytes") or not isinstance(note["graphs"], dict):
            raise ValueError(f"truncated {note['truncated']!r}, graphs {note['graphs']!r}")
        return {name: note[name] for name in _NO_NOTE}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WiringError(
            "the note of the capture is damaged",
            code="capture-note-damaged",
            where=folder / NOTE,
            found=error,
            remedy="Capture again",
        ) from None
