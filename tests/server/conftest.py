"""Fixtures of tests on real servers."""

import pytest


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The small random target and draft, with transformers' greedy continuations (see cpu_pair.py)."""
    from wiring.model.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()  # before transformers' models are imported
    import cpu_pair

    return cpu_pair.build_pair(tmp_path_factory.mktemp("pair"))
