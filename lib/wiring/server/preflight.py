"""Check before a server is started that this machine can run it: SGLang's release, files, draft, GPUs, memory."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from wiring.checkpoints.target_files import TargetConfig, read_target_config
from wiring.checkpoints.tensor_files import read_checkpoint, read_json, read_tensor, tensor_names
from wiring.engines.sglang import EMBEDDING_ID, SUPPORTED, requested_ids
from wiring.errors import WiringError
from wiring.layers import IdConvention, to_boundaries
from wiring.lint.fit import check_fit
from wiring.server.cpu.launcher import installed_sglang, require_sglang
from wiring.server.server_spec import ServerSpec

_FITTING = ("fc.weight", "lm_head.weight", "d2t")  # the draft's tensors with sizes that depend on the target
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2}
_PROCESS_BYTES = 1_500_000_000  # a CPU server's processes without weights: 1.4 to 1.6 GB with SGLang 0.5.23


def preflight(spec: ServerSpec) -> tuple[str, ...]:
    """Check what can be checked about `spec` without starting a process; return warnings for the user.

    Raises:
        WiringError: SGLang is missing or of an unsupported release ("sglang-missing", "sglang-unsupported"); target or
            draft has no readable config or no weights ("weights-missing"); the draft does not fit the target
            ("draft-does-not-fit"); the memory does not suffice ("memory-too-small"); or as `check_gpus`.
    """
    if spec.device == "cuda":
        check_gpus(spec.extra_flags)
    found = installed_sglang()
    if found is None or spec.device == "cpu":
        require_sglang(found)
    notes = () if found == SUPPORTED else (release_note(f"SGLang {found} is installed"),)
    target = read_target_config(spec.target)
    for folder in (spec.target, spec.draft):
        if folder is not None and not _weight_files(folder):
            raise WiringError(
                "the model folder has no weights",
                code="weights-missing",
                where=folder,
                expected="*.safetensors or pytorch_model.bin",
                remedy="Correct the path, or copy the weights into the folder",
            )
    if spec.draft is not None:
        notes += _check_draft(spec, spec.draft, target, rules_hold=not notes and spec.sglang is None)
    needed, free = needed_bytes(spec), available_bytes(spec.device)
    if free is not None and needed > free:
        raise WiringError(
            "the memory does not suffice for this server",
            code="memory-too-small",
            where="this machine" if spec.device == "cpu" else "the GPUs",
            expected=f"about {needed / 1e9:.1f} GB free",
            found=f"{free / 1e9:.1f} GB",
            remedy="End other programs, take a narrower dtype, or serve on a larger machine",
        )
    return notes


def release_note(problem: str) -> str:
    """Return the warning for an SGLang release other than the supported one."""
    return f"{problem}; layer ids and arguments are read by the rules of {SUPPORTED}"


def check_gpus(flags: Sequence[str], where: object = "this machine") -> None:
    """Check that this machine has the GPUs for a CUDA server; a device of an unknown kind passes.

    Args:
        flags: SGLang's flags of the server.
        where: named in the error, such as the profile's field.

    Raises:
        WiringError: there is no GPU ("no-gpu"), there are fewer than the flags need ("too-few-gpus"), or torch is a
            build without CUDA ("torch-without-cuda").
    """
    found, needed = visible_gpus(), gpus_needed(flags)
    expected = f"{needed} CUDA device{'s' if needed > 1 else ''} (device: cuda)"
    if found == 0:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise WiringError(
            "there is no GPU here",
            code="no-gpu",
            where=where,
            expected=expected,
            found="none" if hidden is None else f"none, CUDA_VISIBLE_DEVICES={hidden!r}",
            remedy="Use a machine with GPUs. `wiring accuracy`, `lint`, `search` and `diagnose` work from files, and "
            "`wiring throughput` measures servers elsewhere (engine.url and engine.plain_url, over a tunnel)",
        )
    if found is not None and found < needed:
        raise WiringError(
            "there are fewer GPUs here than the server's flags need",
            code="too-few-gpus",
            where=where,
            expected=expected,
            found=found,
            remedy="Lower --tp-size in engine.extra_flags, or list more devices in CUDA_VISIBLE_DEVICES",
        )
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return
    if "+cpu" in torch:
        raise WiringError(
            "this environment was installed for the CPU",
            code="torch-without-cuda",
            where=where,
            expected="torch with CUDA",
            found=f"torch {torch}",
            remedy="make setup ROUTE=gpu",
        )


def visible_gpus() -> int | None:
    """Return how many GPUs a process of this environment sees; None where that is unknown (not NVIDIA's driver).

    CUDA_VISIBLE_DEVICES is read as CUDA does: devices up to the first invalid one (-1); an empty value hides all.
    """
    listed, chosen = _listed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not listed or chosen is None:
        return listed
    names = [name.strip() for name in chosen.split(",")]
    shown = next((at for at, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return shown if any(name.startswith("MIG-") for name in names) else min(shown, listed)


def _listed_gpus() -> int | None:
    listing = _nvidia_smi("-L")
    if listing is not None:
        return sum(line.startswith("GPU ") for line in listing.splitlines())
    files = sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))
    return None if not files and Path("/dev/kfd").exists() else files


def _nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi; None where it is missing or does not run."""
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None


def gpus_needed(flags: Sequence[str]) -> int:
    """Return the number of GPUs that SGLang's flags need on this node: tensor x pipeline parallel / nodes.

    Data parallel does not count: as attention DP it needs no further GPUs. SGLang itself refuses invalid numbers.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    # SGLang 0.5.23, srt/arg_groups/fields/parallel.py
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--pp-size", "--pipeline-parallel-size", "--pp", type=int, default=1)
    parser.add_argument("--nnodes", type=int, default=1)
    try:
        size = parser.parse_known_args(flags)[0]
    except argparse.ArgumentError:
        return 1
    return max(1, math.ceil(size.tp_size * size.pp_size / max(1, size.nnodes)))


def _check_draft(spec: ServerSpec, draft: Path, target: TargetConfig, rules_hold: bool) -> tuple[str, ...]:
    """Refuse a draft that does not fit the target.

    Where the layer-id rules of the supported release may not hold, problems that only these rules show are returned.
    """
    config = _config_as_served(read_json(draft / "config.json", "the draft's config"), spec.env)
    if any(draft.glob("*.safetensors")):
        tensors = {name: read_tensor(draft, name) for name in _FITTING if name in tensor_names(draft)}
    else:
        tensors = read_checkpoint(draft)[0]
    problems = check_fit(target, config, tensors)
    fatal = [str(problem) for problem in problems if rules_hold or not problem.by_rule]
    if fatal:
        raise WiringError(
            f"the draft does not fit the target: {'; '.join(fatal)}",
            code="draft-does-not-fit",
            where=draft,
            expected=f"a draft for {spec.target}",
            remedy="Use the target that the draft was trained for",
        )
    return tuple(str(problem) for problem in problems)


def _config_as_served(config: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the draft's config as the server reads it: with the embedding plugin, ids with a -1 are output ids."""
    ids = requested_ids(config)
    if environment.get("WIRING_EMBEDDING_ID") != "1" or ids is None or EMBEDDING_ID not in ids:
        return config
    nested = {**config["eagle_config"], "eagle_aux_hidden_state_layer_ids": to_boundaries(ids, IdConvention.OUTPUT_ID)}
    return {**config, "eagle_config": nested}


def needed_bytes(spec: ServerSpec) -> int:
    """Return a low estimate of a server's memory: weights as loaded and, on the CPU, its processes.

    On GPUs the sum is over all devices. The KV cache does not count: SGLang sizes it by what is left.
    """
    weights = sum(_loaded_bytes(folder, spec.dtype) for folder in (spec.target, spec.draft) if folder is not None)
    return weights + (_PROCESS_BYTES if spec.device == "cpu" else 0)


def _loaded_bytes(folder: Path, dtype: str) -> int:
    """Return the bytes of a model's weights once converted from the config's data type to `dtype`."""
    config = read_json(folder / "config.json", "the model's config")
    stored = _DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")))
    size = sum(file.stat().st_size for file in _weight_files(folder))
    return size * _DTYPE_BYTES.get(dtype, stored) // stored if stored else size


def _weight_files(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))


def available_bytes(device: str) -> int | None:
    """Return the free memory of this machine, or of all GPUs together for "cuda"; None where unknown."""
    if device == "cpu":
        return psutil.virtual_memory().available
    listing = _nvidia_smi("--query-gpu=memory.free", "--format=csv,noheader,nounits")
    try:
        return sum(int(line) for line in (listing or "").split()) * 2**20 or None
    except ValueError:
        return None
