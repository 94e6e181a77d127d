from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    from cases import Cases
    from planting import Ground
    from tiny_bench import bench

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Cases(Ground(bench(), tmp_path_factory.mktemp("drafts")))
    torch.set_num_threads(threads)


@pytest.fixture
def recorded_run():
    return Path(__file__).parents[4] / "data" / "recorded" / "cpu-tiny"
