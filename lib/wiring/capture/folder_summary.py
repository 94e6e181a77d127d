"""What a capture folder holds and what it lacks, as data: which phases were seen, and why one was not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wiring.capture.records import BYTES, ERROR, FOLDER, NOTE, PATTERN, ROWS
from wiring.errors import WiringError
from wiring.layers import Phase

_HALF = {Phase.PREFILL: "prefill", Phase.VERIFY: "decode", Phase.DRAFT_EXTEND: "decode"}  # whose graphs a phase runs in
_EAGER = (
    "Compare with an eager run: start the same server once more with --disable-cuda-graph and another capture folder, "
    "and send it the same requests"
)


@dataclass(frozen=True)
class CaptureSummary:
    """What was seen.

    `phases_seen` and `missing` share out the phases; `reasons` and `remedies` say for each missing one why, and what
    shows it. `rows` counts the recorded rows by phase (a position that was recorded twice counts twice), `bytes` the
    records' size on disk. `truncated` names the bound that ended the capture, "rows" or "bytes"; empty where none did.
    """

    phases_seen: tuple[Phase, ...]
    missing: tuple[Phase, ...]
    reasons: Mapping[Phase, str]
    remedies: Mapping[Phase, str]
    rows: Mapping[Phase, int]
    bytes: int
    truncated: str

    def __str__(self) -> str:
        """One line for what was seen and one for each missing phase."""
        seen = ", ".join(f"{phase} ({self.rows[phase]} rows)" for phase in self.phases_seen) or "nothing"
        ended = f"; the bound on {self.truncated} ended the capture" if self.truncated else ""
        missing = [f"{phase} was not seen: {self.reasons[phase]}. {self.remedies[phase]}." for phase in self.missing]
        return "\n".join([f"seen: {seen}{ended}", *missing])


def summarize(folder: str | Path) -> CaptureSummary:
    """Look at a capture folder without reading the states. A phase that is missing is no error; it has a reason.

    Raises WiringError when a record or the note is damaged.
    """
    folder = Path(folder)
    rows: dict[Phase, int] = {}
    size = 0
    for file in sorted(folder.glob(PATTERN)):
        phase, count = _phase_and_rows(file)
        rows[phase] = rows.get(phase, 0) + count
        size += file.stat().st_size
    note = _read_note(folder)
    missing = tuple(phase for phase in Phase if phase not in rows)
    told = {phase: _why(phase, rows, note, folder) for phase in missing}
    return CaptureSummary(
        phases_seen=tuple(phase for phase in Phase if phase in rows),
        missing=missing,
        reasons={phase: why for phase, (why, _) in told.items()},
        remedies={phase: remedy for phase, (_, remedy) in told.items()},
        rows=rows,
        bytes=size,
        truncated=note["truncated"],
    )


def _why(phase: Phase, rows: Mapping[Phase, int], note: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """(reason, what shows the phase), the surest explanation first."""
    if (folder / ERROR).exists():
        last = (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"the recorder failed in the server: {''.join(last)[:300]}", f"Read {ERROR} and capture again"
    if note["truncated"] and _may_be_cut_off(phase, rows, note["truncated"]):
        setting = {"rows": ROWS, "bytes": BYTES}[note["truncated"]]
        return f"the bound on {note['truncated']} was reached before it", f"Raise {setting} and capture again"
    if not note["found"] and not rows:
        return (
            "no forward of the server was seen: the capture was not loaded, or no request came",
            f"Start the server with {FOLDER} set, in the environment in which this package is installed",
        )
    if note["algorithm"] not in ("EAGLE3", ""):
        return (
            f"the server runs without an EAGLE-3 draft (its algorithm is {note['algorithm']})",
            "Serve a draft, or take the server's own return of the states (wiring.server.aux_return)",
        )
    if not rows and (note["prefix"] or note["names"]):
        chosen = [f"begins with {note['prefix']!r}"] if note["prefix"] else []
        chosen += [f"is one of {', '.join(note['names'])}"] if note["names"] else []
        return f"no request was seen whose id {' and '.join(chosen)}", "Send the requests with these ids (rid)"
    backend = note["graphs"].get(_HALF[phase], "not known")
    ran = phase is Phase.PREFILL or bool({Phase.VERIFY, Phase.DRAFT_EXTEND} & set(rows))
    if backend != "disabled":
        other = "" if ran else "no request lived to a verify round, or "
        graphs = f"the server replays CUDA graphs for {_HALF[phase]} ({backend})"
        return f"{other}{graphs}, and the forward of this phase went through one unseen", _EAGER
    if not ran:
        return "no request lived to a verify round", "Ask for two new tokens or more"
    return "its forward went another way than those that are watched", "Compare the server's release with the hooks'"


def _may_be_cut_off(phase: Phase, rows: Mapping[Phase, int], bound: str) -> bool:
    """Whether a bound explains that a phase is missing: not where a later one was seen, nor half a pair by rows."""
    order = tuple(Phase)
    if any(later in rows for later in order[order.index(phase) + 1 :]):
        return False
    return bound == "bytes" or phase is not Phase.DRAFT_EXTEND or Phase.VERIFY not in rows


def _phase_and_rows(file: Path) -> tuple[Phase, int]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            return Phase((opened.metadata() or {})["phase"]), opened.get_slice("positions").get_shape()[0]
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise WiringError(f"not a capture record: {error}", where=file, remedy="Capture again") from None


def _read_note(folder: Path) -> dict[str, Any]:
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        if note["truncated"] not in ("", "rows", "bytes") or not isinstance(note["graphs"], dict):
            raise ValueError(f"truncated {note['truncated']!r}, graphs {note['graphs']!r}")
        return {name: note[name] for name in ("truncated", "graphs", "algorithm", "prefix", "names")} | {"found": True}
    except FileNotFoundError:
        return {"truncated": "", "graphs": {}, "algorithm": "", "prefix": "", "names": [], "found": False}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WiringError(f"not the note of a capture: {error}", where=folder / NOTE, remedy="Capture again") from None
