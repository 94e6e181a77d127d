"""The committed notebooks, executed and saved twice on one machine, have the same bytes."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import pytest
from hygiene import problems

from wiring.figures.save_reference import save_reference

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.long  # minutes for all; tests/unit/figures/test_save_reference.py tests small ones


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_twice_a_notebook_has_the_same_bytes(path, tmp_path):
    copy = tmp_path / path.name
    shutil.copyfile(path, copy)
    save_reference(copy)
    first = copy.read_bytes()
    changed = save_reference(copy)
    second = copy.read_bytes()
    diff = difflib.unified_diff(first.decode().splitlines(), second.decode().splitlines(), n=2, lineterm="")
    assert changed is False, "\n".join(diff)
    assert second == first
    assert problems(copy) == []
