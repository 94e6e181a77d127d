"""Read the draft records of a capture folder."""

from __future__ import annotations

import json
from pathlib import Path

from wiring.capture.proposals import DraftRecord


def read_drafts(folder: Path) -> tuple[DraftRecord, ...]:
    """Return all records of a capture folder in the order of the rounds."""
    rounds = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("drafts-*.json")]
    records = [
        DraftRecord(**(record | {name: tuple(record[name]) for name in ("tokens", "parents")}))
        for one in rounds
        for record in one
    ]
    return tuple(sorted(records, key=lambda record: record.index))
