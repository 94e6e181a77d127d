"""Command line and environment of a CPU server; imports neither torch nor SGLang."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from wiring.engines.sglang import SUPPORTED
from wiring.errors import WiringError

SWITCH = "WIRING_SGLANG_CPU"
"""Environment variable: the kit acts in processes that have it set to "1", and in no others."""

KERNELS = Path(__file__).parent / "kernels"
"""Folder of the package `sgl_kernel`, on the path of CPU servers only: it would hide the real package elsewhere."""

CPU_FLAGS = ("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule")
"""SGLang flags without which the CPU server does not work."""


def cpu_command(python: str, flags: Sequence[str]) -> list[str]:
    """Return the argument list that starts a CPU server with `CPU_FLAGS`, then `flags`."""
    return [python, "-m", "wiring.server.cpu.serve", *CPU_FLAGS, *flags]


def cpu_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with what a CPU server's processes need; GPUs are hidden, since SGLang would use them."""
    path = [str(KERNELS), str(Path(__file__).parents[3]), *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        SWITCH: "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # otherwise the first request waits for an inductor compile
        "CUDA_VISIBLE_DEVICES": "",
    }


def installed_sglang() -> str | None:
    """Return the version of SGLang in this environment, or None; SGLang itself is not imported."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def require_sglang(found: str | None) -> None:
    """Refuse other SGLang releases: the kit replaces functions of the supported one by name and signature.

    Raises:
        WiringError: `found` is None ("sglang-missing") or another version ("sglang-unsupported").
    """
    remedy = f"Install sglang=={SUPPORTED} into this environment (make run does)"
    if found is None:
        raise WiringError(
            "SGLang is not installed here", code="sglang-missing", where="sglang", expected=SUPPORTED, remedy=remedy
        )
    if found != SUPPORTED:
        raise WiringError(
            "the CPU server cannot run with this SGLang release",
            code="sglang-unsupported",
            where="sglang",
            expected=SUPPORTED,
            found=found,
            remedy=f"{remedy}, or serve on a GPU",
        )
