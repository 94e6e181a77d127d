"""Report functions, classes, methods and properties of the package that no command, notebook or plugin reaches.

Tests are left out on purpose: code that only tests use is reported too. Exit status 1 where anything is found.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"function", "class", "method", "property", "import", "unreachable_code"}
# Called by a framework, not by name.
DECORATORS = ["@app.command", "@app.callback", "@*validator", "@*serializer", "@computed_field"]
NAMES = [
    "sgl_kernel*",  # the stand-in package that SGLang imports in a CPU server
    "create_module",  # called by the import system
    "exec_module",
    "leave_*",  # called by libcst for each node of a type
    "embedding_id",  # an entry point of pyproject.toml, which SGLang loads
    "_repr_html_",
    "__getattr__",
]


def notebook_code(folder: Path) -> str:
    """Return the code cells of all notebooks in `folder` as one module."""
    cells = [cell for path in sorted(folder.glob("*.ipynb")) for cell in json.loads(path.read_text())["cells"]]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def main() -> int:
    """Print one line for each piece of unused code; return the exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        notebooks = Path(scratch) / "notebooks.py"
        notebooks.write_text(notebook_code(ROOT / "notebooks"))
        vulture = Vulture(ignore_decorators=DECORATORS, ignore_names=NAMES)
        vulture.scavenge([str(ROOT / "lib"), str(ROOT / "tools"), str(notebooks)])
        found = [item for item in vulture.get_unused_code(min_confidence=60) if item.typ in KINDS]
    for item in found:
        print(f"{item.filename.relative_to(ROOT)}:{item.first_lineno}: unused {item.typ} {item.name!r}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
