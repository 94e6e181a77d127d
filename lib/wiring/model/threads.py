"""Limit the number of torch threads for a small model on the CPU."""

from __future__ import annotations

import os

NARROW = 512  # hidden size up to which one thread is at least as fast as two


def limit_threads_for_small_model(hidden_size: int) -> None:
    """Let torch use one thread in this process for a model up to `NARROW` wide, unless OMP_NUM_THREADS is set.

    Products this small gain nothing from a second thread, and on a busy machine the threads wait for each other at
    every product: minutes instead of seconds.
    """
    import torch

    if hidden_size <= NARROW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
