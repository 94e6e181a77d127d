"""Where the shipped pair lies."""

from pathlib import Path

import pytest

PAIR = Path(__file__).parents[3] / "data" / "tiny"


@pytest.fixture(scope="session")
def pair_folder():
    return PAIR
