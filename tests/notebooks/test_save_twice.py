"""The committed notebooks, executed and saved twice on one machine, have the same bytes."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import pytest

from wiring.chain.hygiene import problems
from wiring.show.save_reference import save_reference

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.long  # minutes for all of them; what makes it so is tested on small ones in tests/show


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_twice_a_notebook_has_the_same_bytes(path, tmp_path):
    copy = tmp_path / path.name
    shutil.copyfile(path, copy)
    save_reference(copy)
    first = copy.read_text(encoding="utf-8").splitlines()
    changed = save_reference(copy)
    second = copy.read_text(encoding="utf-8").splitlines()
    assert not changed, "\n".join(difflib.unified_diff(first, second, "first", "second", n=2, lineterm=""))
    assert first == second
    assert problems(copy) == []
