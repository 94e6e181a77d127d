"""The record in a fixed copy of a draft: its source, and the layout that the copy is made to be served."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from wiring.checkpoints.config_fields import read_fields
from wiring.checkpoints.file_loading import read_json
from wiring.layers import Layout

MARKER = ".wiring-patch.json"
MADE_FOR = f"the layout that this copy was made for, in {MARKER}"  # the source of a layout, in words


class CopyRecord(BaseModel):
    """What `wiring.patch.copies` writes next to a copy's config.json.

    `source` and `source_config_sha256`: the draft that was copied, and the hash of its config.json. `form` is the kind
    of fix (see `wiring.patch.fix_kinds`), `ids` the layer ids of the copy, `environment` what its server needs.
    `layout`: the boundaries that the draft was trained on, slot by slot; None in old records.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    source_config_sha256: str
    ids: tuple[int, ...]
    form: str = ""
    layout: Layout | None = None
    environment: dict[str, str] = {}


def read_copy_record(folder: Path) -> CopyRecord | None:
    """Read the record of the fixed copy at `folder`; None if it is no copy. Raises WiringError with file and field."""
    path = folder / MARKER
    return read_fields(CopyRecord, read_json(path, "the record of this copy"), path) if path.exists() else None
