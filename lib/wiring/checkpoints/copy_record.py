"""The record in a cured copy of a draft: where it comes from, and the layout that it was made to be fed."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from wiring.errors import WiringError
from wiring.layers import Layout

MARKER = ".wiring-patch.json"
MADE_FOR = f"the layout that this copy was made for, in {MARKER}"  # where a layout comes from, in words


class CopyRecord(BaseModel):
    """What `wiring.patch.draft_copy` writes beside a copy's config.json.

    `source` and `source_config_sha256`: the draft that was copied, and its config.json then. `form` is the cure's (see
    `wiring.patch.fix_kinds`), `ids` the layer ids that the copy asks for, `environment` what its server needs. `layout`
    are the boundaries that the draft was trained on, slot by slot, which the copy is made to be fed; None in records
    that were written before this was kept.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    source_config_sha256: str
    ids: tuple[int, ...]
    form: str = ""
    layout: Layout | None = None
    environment: dict[str, str] = {}


def read_copy_record(folder: Path) -> CopyRecord | None:
    """The record of the cured copy at `folder`; None where this is no copy.

    Raises WiringError, with file and field, where the record cannot be read.
    """
    path = folder / MARKER
    try:
        return CopyRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise WiringError(
            "the record of this cured copy cannot be read",
            where=f"{path}{', field ' if first['loc'] else ''}{'.'.join(map(str, first['loc']))}",
            found=first["msg"],
            remedy="Make the copy again with `wiring patch apply`",
        ) from None
