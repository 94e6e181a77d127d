"""Import nbformat without jsonschema's slow rfc3987 grammar."""

from __future__ import annotations

import sys
from types import ModuleType


def nbformat() -> ModuleType:
    """Return the module nbformat. Call this before importing papermill, nbclient or nbconvert, which import it too.

    nbformat imports jsonschema, and that compiles the grammar of international URLs (rfc3987_syntax) in three
    seconds of every process, for a format that no notebook uses. jsonschema does without where it cannot be imported.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    import nbformat

    return nbformat
