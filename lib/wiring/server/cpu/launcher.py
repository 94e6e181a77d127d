"""The command line and the environment of a CPU server; nothing is started or imported here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

SWITCH = "WIRING_SGLANG_CPU"
"""Environment variable: the kit acts in processes that have it set to "1", and in no others."""

PLUGIN = "wiring_cpu"
"""The name of the kit's entry point in the group `sglang.srt.plugins`."""

KERNELS = Path(__file__).parent / "kernels"
"""The folder that holds the CPU `sgl_kernel` package. On the path of CPU server processes only:
on a GPU machine the real package of that name would be hidden by it."""

CPU_FLAGS: tuple[str, ...] = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    "--disable-overlap-schedule",
)
"""SGLang flags without which the CPU server does not work; everything else is the caller's choice."""

_PACKAGES = Path(__file__).parents[3]


def cpu_command(python: str, flags: Sequence[str]) -> list[str]:
    """The argument list that starts a CPU server: `flags` are SGLang's own, `CPU_FLAGS` come first."""
    return [python, "-m", "wiring.server.cpu.serve", *CPU_FLAGS, *flags]


def cpu_environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` plus what a CPU server's process and its children need; `base` is not changed.

    Graphics cards are hidden, so that SGLang does not take itself for a CUDA server on a machine
    that has one. A restricting `SGLANG_PLUGINS` in `base` keeps its entries and gains the kit's.
    """
    environment = dict(base)
    path = [str(KERNELS), str(_PACKAGES), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    environment[SWITCH] = "1"
    environment["SGLANG_USE_CPU_ENGINE"] = "1"
    environment["TORCHDYNAMO_DISABLE"] = "1"  # otherwise the first request waits for an inductor compile
    environment["CUDA_VISIBLE_DEVICES"] = ""
    if base.get("SGLANG_PLUGINS"):
        names = [name.strip() for name in base["SGLANG_PLUGINS"].split(",") if name.strip()]
        environment["SGLANG_PLUGINS"] = ",".join(dict.fromkeys([*names, PLUGIN]))
    return environment
