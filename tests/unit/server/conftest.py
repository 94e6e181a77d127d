"""Fixtures of the tests of servers and of the CPU kit."""

import importlib
import sys
from pathlib import Path

import pytest

from wiring.server.cpu.launcher import KERNELS, SWITCH


@pytest.fixture
def kernels(monkeypatch):
    """The CPU server's package `sgl_kernel`, imported as in a CPU server and removed afterwards."""
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.syspath_prepend(str(KERNELS))
    module = importlib.import_module("sgl_kernel")
    assert Path(module.__file__).is_relative_to(KERNELS)
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "sgl_kernel"]:
        del sys.modules[name]
