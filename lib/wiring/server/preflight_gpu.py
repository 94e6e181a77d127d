"""Are the GPUs there that a server asks for? Told in a second, by the driver and by how torch was installed."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from wiring.errors import WiringError

# SGLang 0.5.23, srt/arg_groups/fields/parallel.py; argparse takes the short forms too.
_WIDTHS = {
    "tp": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "pp": ("--pp-size", "--pipeline-parallel-size", "--pp"),
    "nodes": ("--nnodes",),
}
_WITHOUT = (
    "Run it on the GPU machine. Here `wiring accuracy`, `lint`, `search` and `diagnose` work from files, and `wiring "
    "throughput` measures servers that run elsewhere (engine.url and engine.plain_url, over a tunnel)"
)


def listed_gpus() -> int | None:
    """How many devices NVIDIA's driver lists; None where that does not tell (another vendor's device, no answer)."""
    query = shutil.which("nvidia-smi")
    if query is not None:
        try:
            told = subprocess.run([query, "-L"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return sum(line.startswith("GPU ") for line in told.stdout.splitlines())
    files = sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    return None if not files and Path("/dev/kfd").exists() else files


def visible_gpus(
    environment: Mapping[str, str] = os.environ, listed: Callable[[], int | None] = listed_gpus
) -> int | None:
    """How many of the listed devices a process of this environment sees (CUDA_VISIBLE_DEVICES); None where unknown.

    As CUDA reads the variable: names or numbers up to the first that is none (-1), an empty one hides all.
    """
    found, chosen = listed(), environment.get("CUDA_VISIBLE_DEVICES")
    if not found or chosen is None:
        return found
    names = [name.strip() for name in chosen.split(",")]
    shown = next((at for at, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return shown if any(name.startswith("MIG-") for name in names) else min(shown, found)


def installed_torch() -> str:
    """The version of torch in this environment ("2.13.0+cpu"), "" where there is none; torch is not imported."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def gpus_asked(flags: Sequence[str]) -> int:
    """The least number of GPUs on this node that SGLang's flags ask for: tensor x pipeline parallel, over the nodes.

    Data parallel is not counted: as attention DP it takes no GPUs of its own. What is no number is SGLang's to refuse.
    """
    width = {name: _value(flags, spellings) for name, spellings in _WIDTHS.items()}
    return math.ceil(width["tp"] * width["pp"] / width["nodes"])


def _value(flags: Sequence[str], spellings: Sequence[str]) -> int:
    value = "1"
    for at, flag in enumerate(flags):
        name, equals, text = flag.partition("=")
        if name in spellings:
            value = text if equals else next(iter(flags[at + 1 : at + 2]), "1")
    return int(value) if value.isdigit() and int(value) else 1


def check_gpus(
    flags: Sequence[str],
    where: object = "this machine",
    *,
    visible: Callable[[], int | None] = visible_gpus,
    torch: Callable[[], str] = installed_torch,
) -> None:
    """Refuse a CUDA server that this machine cannot run. What cannot be known (another vendor's device) passes.

    `flags` are SGLang's own; `visible` counts the devices, `torch` names the installed build.

    Raises:
        WiringError: there is no GPU, there are fewer than the flags ask for, or torch is a build without CUDA.
    """
    found, asked = visible(), gpus_asked(flags)
    expected = f"{asked} CUDA device{'s' if asked > 1 else ''} (device: cuda)"
    if found == 0:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "none" if hidden is None else f"none, CUDA_VISIBLE_DEVICES={hidden!r}"
        raise WiringError("there is no GPU here", where=where, expected=expected, found=seen, remedy=_WITHOUT)
    if found is not None and found < asked:
        raise WiringError(
            "there are fewer GPUs here than the server's flags ask for",
            where=where,
            expected=expected,
            found=found,
            remedy="Lower --tp-size in engine.extra_flags, or widen CUDA_VISIBLE_DEVICES",
        )
    if "+cpu" in torch():
        raise WiringError(
            "this environment was installed for the CPU",
            where=where,
            expected="torch with CUDA",
            found=f"torch {torch()}",
            remedy="make setup ROUTE=gpu",
        )
