"""One thread for narrow models, in a process of its own: the setting is the whole process's."""

import os
import subprocess
import sys

import pytest

CODE = (
    "import torch; torch.set_num_threads(2); from wiring.model.threads import limit_threads_for_small_model; "
    "limit_threads_for_small_model({width}); print(torch.get_num_threads())"
)


@pytest.mark.parametrize(("width", "asked", "threads"), [(64, None, 1), (4096, None, 2), (64, "2", 2)])
def test_threads_of_narrow_and_wide_models(width, asked, threads):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if asked:
        environment["OMP_NUM_THREADS"] = asked
    ran = subprocess.run([sys.executable, "-c", CODE.format(width=width)], env=environment, capture_output=True)
    assert int(ran.stdout) == threads, ran.stderr
