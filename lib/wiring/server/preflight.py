"""What can be known to fail before a server is started: one sentence each, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.engines.sglang import EMBEDDING_ID, SUPPORTED, requested_ids
from wiring.errors import WiringError
from wiring.layers import IdConvention, to_boundaries
from wiring.server.cpu.kit_version import installed_sglang
from wiring.server.memory import available_bytes, needed_bytes
from wiring.server.ports import is_free
from wiring.server.preflight_gpu import check_gpus

if TYPE_CHECKING:
    from wiring.server.launch import ServerSpec

_FITTING = ("fc.weight", "lm_head.weight", "d2t")  # the draft's tensors whose sizes depend on the target


def preflight(
    spec: ServerSpec,
    *,
    available: Callable[[str], int | None] = available_bytes,
    sglang: Callable[[], str | None] = installed_sglang,
    gpus: Callable[[Sequence[str]], None] = check_gpus,
) -> tuple[str, ...]:
    """Check everything about `spec` that can be checked without a process; return notes worth showing.

    `available` gives the free memory in bytes for a device (None: unknown, not checked), `sglang` the installed
    version; `gpus` refuses flags for which there are no GPUs here.

    Raises:
        WiringError: the GPUs are not there; SGLang is missing, or of a release that the device's route does not
            support; target or draft are not model folders; the draft does not fit the target; the port is taken; the
            memory does not suffice.
    """
    if spec.device == "cuda":
        gpus(spec.extra_flags)
    notes = _check_version(spec, sglang())
    _check_folder(spec.target, "the target")
    if spec.draft is not None:
        _check_folder(spec.draft, "the draft")
        notes += _check_draft(spec, spec.draft, rules_hold=not notes and spec.sglang is None)
    if spec.port is not None and not is_free(spec.port):
        raise WiringError(
            "the port is taken by another process",
            where=f"port {spec.port}",
            remedy="Choose another, or leave it out: a free one is found",
        )
    _check_memory(spec, available(spec.device))
    return notes


def _check_version(spec: ServerSpec, found: str | None) -> tuple[str, ...]:
    if found == SUPPORTED:
        return ()
    if found is None or spec.device == "cpu":
        raise WiringError(
            "SGLang is not installed here" if found is None else "the CPU server cannot run with this SGLang release",
            where="sglang",
            expected=SUPPORTED,
            found=found or "nothing",
            remedy=f"Install sglang=={SUPPORTED} into this environment (make run does)",
        )
    return (f"SGLang {found} is installed; layer ids and arguments are read by the rules of {SUPPORTED}",)


def _check_folder(folder: Path, what: str) -> None:
    if not folder.is_dir():
        raise WiringError(
            f"{what} is not a folder",
            where=folder,
            expected="a model folder",
            found="a file" if folder.exists() else "nothing",
            remedy="Correct the path",
        )
    if not (folder / "config.json").is_file():
        raise WiringError(
            f"{what} has no config.json",
            where=folder,
            expected="config.json beside the weights",
            remedy="Point to the folder that holds the model, not to one above it",
        )
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin")):
        raise WiringError(
            f"{what} has no weights",
            where=folder,
            expected="*.safetensors or pytorch_model.bin",
            remedy="Copy the weights into the folder",
        )


def _check_draft(spec: ServerSpec, draft: Path, rules_hold: bool) -> tuple[str, ...]:
    """Refuse a draft that does not fit. On another release, or a patched one, its layer ids may be right all the same:
    then a note."""
    from wiring.checkpoints.target_files import read_target_config
    from wiring.checkpoints.tensor_files import read_checkpoint, read_json, read_tensor, tensor_names
    from wiring.lint.fit import check_fit

    target = read_target_config(spec.target)
    config = _as_served(read_json(draft / "config.json", "the draft's config"), spec.env)
    if any(draft.glob("*.safetensors")):
        tensors = {name: read_tensor(draft, name) for name in _FITTING if name in tensor_names(draft)}
    else:
        tensors = read_checkpoint(draft)[0]
    problems = check_fit(target, config, tensors)
    notes = [] if rules_hold else [problem for problem in problems if problem.by_rule]
    problems = [problem for problem in problems if problem not in notes]
    if problems:
        raise WiringError(
            f"the draft does not fit the target: {'; '.join(map(str, problems))}",
            where=draft,
            expected=f"a draft for {spec.target}",
            remedy="Use the target that the draft was trained for",
        )
    return tuple(map(str, notes))


def _as_served(config: dict[str, Any], switches: Mapping[str, str]) -> dict[str, Any]:
    """The config as the server will read it: where the embedding plugin is on, ids with -1 in them are output ids."""
    ids = requested_ids(config)
    if switches.get("WIRING_EMBEDDING_ID") != "1" or ids is None or EMBEDDING_ID not in ids:
        return config
    nested = {**config["eagle_config"], "eagle_aux_hidden_state_layer_ids": to_boundaries(ids, IdConvention.OUTPUT_ID)}
    return {**config, "eagle_config": nested}


def _check_memory(spec: ServerSpec, free: int | None) -> None:
    needed = needed_bytes(spec.target, spec.draft, spec.dtype, spec.device)
    if free is not None and needed > free:
        where = "this machine" if spec.device == "cpu" else "the GPUs"
        raise WiringError(
            "the memory does not suffice for this server",
            where=where,
            expected=f"about {_gb(needed)} free",
            found=f"{_gb(free)}",
            remedy="End other programs, take a narrower dtype, or serve on a larger machine",
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
