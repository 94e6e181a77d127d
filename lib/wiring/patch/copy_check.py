"""A cured copy read again: what was written stands, the draft is as it was, and the rules serve the layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wiring.checkpoints.copy_record import MARKER, CopyRecord, read_copy_record
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.resolve import served_layout
from wiring.engines.sglang import requested_ids
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.patch.draft_copy import config_digest
from wiring.patch.fix_kinds import Form


@dataclass(frozen=True)
class CopyCheck:
    """One thing about a copy, in a reader's words: whether it is so, and what was found."""

    what: str
    stands: bool
    text: str


def verify_copy(
    folder: Path, version: str, target_config: Mapping[str, Any], *, cuda_graphs: bool = True
) -> tuple[CopyRecord, tuple[CopyCheck, ...]]:
    """The record of the copy at `folder`, and what became of it, on SGLang `version` and this target.

    Whether SGLang's files are edited, which the source form needs, is not looked at here. Raises WiringError where
    `folder` is no cured copy, or its config cannot be read, and for a release or a target without rules.
    """
    record = read_copy_record(folder)
    if record is None:
        raise WiringError("not a cured copy made by this workbook", where=folder, expected=f"a folder with {MARKER}")
    config = read_json(folder / "config.json", "the copy's config")
    ids = requested_ids(config)
    gone = sorted(entry.name for entry in folder.iterdir() if not entry.exists())
    checks = [
        CopyCheck("layer ids of the copy", ids == record.ids, f"{ids}, written were {record.ids}"),
        CopyCheck("files of the draft that it links to", not gone, f"gone: {', '.join(gone)}" if gone else "all there"),
        _original(record),
    ]
    if record.form != Form.SOURCE and record.layout is not None:
        plugin = record.form == Form.PLUGIN
        served = served_layout(
            "sglang", version, target_config, config, cuda_graphs=cuda_graphs, embedding_plugin=plugin
        )
        told = ", ".join(f"{phase} {served[phase]}" for phase in Phase)
        right = all(served[phase] == record.layout for phase in Phase)
        checks.append(CopyCheck(f"layout by the rules of SGLang {version}", right, f"{told}; trained {record.layout}"))
    return record, tuple(checks)


def _original(record: CopyRecord) -> CopyCheck:
    what, draft = "config of the draft itself", Path(record.source)
    if not (draft / "config.json").is_file():
        return CopyCheck(what, False, f"{draft / 'config.json'} is gone")
    same = config_digest(draft) == record.source_config_sha256
    return CopyCheck(what, same, "as it was" if same else f"{draft / 'config.json'} changed since the copy was made")
