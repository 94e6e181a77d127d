"""Fixtures of the CPU kit's tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from wiring.server.cpu.launcher import KERNELS, SWITCH


@pytest.fixture
def kernels(monkeypatch):
    """The CPU server's `sgl_kernel` package, imported as a CPU server would and forgotten afterwards."""
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.syspath_prepend(str(KERNELS))
    module = importlib.import_module("sgl_kernel")
    assert Path(module.__file__).is_relative_to(KERNELS)
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "sgl_kernel"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The small random target and draft, with transformers' greedy continuations (see cpu_pair.py)."""
    from wiring.model.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()  # before transformers' models are imported
    import cpu_pair

    return cpu_pair.build_pair(tmp_path_factory.mktemp("pair"))
