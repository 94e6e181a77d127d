"""Fixtures of all unit tests."""

import sys

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Run torch on one thread: tiny tensors gain nothing from more, and threads of a busy machine wait."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
