"""`python -m wiring.workbook.jupyter_kernel [--gpu]`: register this environment as a Jupyter kernel.

The committed notebooks name the kernel "python3": papermill, nbval and every other Jupyter find it, and in the Lab of
this environment it is this environment's Python. The kernel "wiring" is the same Python under a name of its own, for a
Lab that has others; "wiring-gpu" has the variables beside it that say which GPUs, which CUDA and which caches.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from wiring.checkpoints.atomic import write_json

CPU, GPU = "wiring", "wiring-gpu"
_TITLES = {CPU: "wiring", GPU: "wiring (GPU)"}
_ALWAYS = {"PLOTLY_RENDERER": "plotly_mimetype"}  # plotly would guess its renderer from the surroundings
_LAB = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
_OF_A_GPU = re.compile(r"(CUDA|NVIDIA|NCCL|SGLANG|FLASHINFER|TORCH|TRITON|HF)_\w+|LD_LIBRARY_PATH")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL")


def kernel_environment(surroundings: Mapping[str, str], gpu: bool) -> dict[str, str]:
    """Return what is added to a kernel's environment; with `gpu` also the GPU variables of `surroundings`.

    Variables whose names sound like a secret are left out: a kernel's environment is a file that others may read.
    """
    taken = {
        name: value
        for name, value in sorted(surroundings.items())
        if gpu and _OF_A_GPU.fullmatch(name) and not _SECRET.search(name)
    }
    return {**taken, **_ALWAYS}


def register(gpu: bool, surroundings: Mapping[str, str], prefix: str = sys.prefix) -> tuple[str, dict[str, str]]:
    """Write the kernel's folder below `prefix`; return its path and the environment that it adds."""
    from ipykernel.kernelspec import install

    name, environment = (GPU if gpu else CPU), kernel_environment(surroundings, gpu)
    path = install(kernel_name=name, display_name=_TITLES[name], prefix=prefix, env=dict(environment))
    return path, environment


def quiet_lab(prefix: str = sys.prefix) -> Path:
    """Turn off the Lab's news and update checks below `prefix`; return the settings file."""
    path = Path(prefix) / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return write_json(path, settings | _LAB)


def main(arguments: Sequence[str] | None = None) -> int:
    """Register the kernel and return the exit status."""
    from wiring.errors import WiringError
    from wiring.server.preflight import check_gpus

    parser = argparse.ArgumentParser(prog="python -m wiring.workbook.jupyter_kernel", description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="the kernel wiring-gpu, with this shell's GPU variables")
    options = parser.parse_args(arguments)
    path, environment = register(options.gpu, os.environ)
    print(f"Kernel {GPU if options.gpu else CPU}: {path}, with {', '.join(environment)}")
    if not options.gpu:
        quiet_lab()
        return 0
    try:
        check_gpus(())
    except WiringError as error:  # registered all the same: the GPUs may be those of another node
        print(f"Registered, but no server for a GPU can be started here. {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
