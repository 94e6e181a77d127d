"""Starting an SGLang server that ends with us, or attaching to one that runs already."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from wiring.engines.sglang import SUPPORTED, Speculation
from wiring.errors import WiringError
from wiring.model.threads import NARROW
from wiring.server.client import ServerClient
from wiring.server.health import Progress, died_later, wait_until_healthy
from wiring.server.ports import HOST, free_port
from wiring.server.supervisor import start_supervised

# Room for a few short requests; a CPU server takes its KV cache from the memory that we and the reader share.
_CPU_SIZES = ("--max-total-tokens", "8192", "--max-running-requests", "4", "--mem-fraction-static", "0.3")
_GRACE_S = {"cpu": 0.0, "cuda": 6.0}  # a worker killed in the midst of its work can leave device memory taken
# A switch -> the plugin that it switches on. A switch reaches a server by its ServerSpec only, never by inheritance.
_PLUGIN_OF = {
    "WIRING_SGLANG_CPU": "wiring_cpu",
    "WIRING_CAPTURE_DIR": "wiring_capture",
    "WIRING_EMBEDDING_ID": "wiring_embedding_id",
}
# Ours unless the reader's environment says otherwise.
_DEFAULTS = {
    "HF_HUB_OFFLINE": "1",  # target and draft are folders: nothing is to be looked up
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",  # a health check must not generate
    # A failing server would otherwise wait 65 s for dumps of its workers before it ends.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false",
}


@dataclass(frozen=True)
class ServerSpec:
    """One server: what it serves and how.

    `draft` and `speculation` come together or not at all. `dtype` is SGLang's own word ("float32", "bfloat16",
    "auto"). `extra_flags` are handed to SGLang after ours, so they win. `env` reaches this server only: the switches
    of our plugins go there. `sglang` is a folder that holds a patched package sglang, by whose own reading of layer ids
    the draft is served; it comes first on this server's path, unless it holds the installed one. `sleep_on_idle` keeps
    an idle server from spinning beside another. `port` None takes a free one. Raises WiringError when half of the pair
    draft and speculation is missing.
    """

    target: Path
    draft: Path | None = None
    speculation: Speculation | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "float32"
    extra_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sglang: Path | None = None
    sleep_on_idle: bool = True
    port: int | None = None
    seed: int = 0

    def __post_init__(self):
        if (self.draft is None) != (self.speculation is None):
            raise WiringError(
                "a draft and its speculation arguments come together",
                where="server",
                found=f"draft {self.draft}, speculation {self.speculation}",
            )


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. `pid` and `log` are None for one that was attached to; `notes` are worth showing.

    Of one that is yielded while it starts, `ready` waits until it answers; of any other it has nothing to do.

    It is a context manager too, so that `with` takes a started and an attached server alike; leaving the block closes
    the client and ends nothing (`start` ends what it started).
    """

    url: str
    client: ServerClient
    pid: int | None = None
    log: Path | None = None
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ready: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()


@contextmanager
def start(
    spec: ServerSpec,
    log: Path,
    *,
    timeout_s: float = 300.0,
    progress: Progress | None = None,
    request_timeout_s: float = 600.0,
    wait: bool = True,
) -> Iterator[RunningServer]:
    """Start a server, wait until it is ready, and end all of its processes with the block, whatever ends the block.

    Without `wait` it is yielded while it starts, and `RunningServer.ready` waits, so that several can start side by
    side. (On one GPU they must not: SGLang takes a share of the memory that it finds free.) Its output goes to `log`,
    which is written anew. `progress` is called about four times a second until it is ready.
    Everything that can be known to fail is refused before a process starts (see `wiring.server.preflight`).

    Raises:
        WiringError: preflight refuses; or the server dies (at once) or is not ready within `timeout_s` seconds, with
            the log's last lines (without `wait` from `ready`).
    """
    from wiring.server.preflight import preflight

    notes = preflight(spec)
    port = spec.port or free_port()
    if spec.device == "cpu":
        # SGLang draws its workers' meeting point and binds it seconds later: servers side by side could draw alike.
        spec = replace(spec, extra_flags=("--nccl-port", str(free_port()), *spec.extra_flags))
    command = server_command(spec, port)
    process = start_supervised(
        command, server_environment(spec, os.environ), log, grace_s=_GRACE_S[spec.device], scratch=spec.device == "cpu"
    )

    def why_dead() -> WiringError | None:
        status = process.wait(10.0)  # the connection breaks a moment before the guard has tidied up
        return None if status is None else died_later(status, log)

    url = f"http://{HOST}:{port}"
    client = ServerClient(url, request_timeout_s, why_dead=why_dead)
    ready = partial(wait_until_healthy, client, process, log, timeout_s, progress, time.monotonic())
    try:
        if wait:
            ready()
        yield RunningServer(url, client, process.pid, log, tuple(command), notes, ready)
    finally:
        process.end()
        client.close()


def attach(url: str, *, request_timeout_s: float = 600.0, api_key: str = "", read_only: bool = True) -> RunningServer:
    """Use a server that runs already, here or elsewhere; it is never stopped, and `read_only` keeps its prefix cache.

    Raises WiringError when nothing answers at `url`, when what answers is not SGLang, or when it is not healthy.
    """
    client = ServerClient(url, request_timeout_s, api_key=api_key, read_only=read_only)
    try:
        info = client.server_info()
        if not client.healthy(timeout=30.0):
            raise WiringError(
                "the server answers but is not healthy",
                where=client.url,
                remedy="Wait until it has started, or look at its own log",
            )
    except WiringError:
        client.close()
        raise
    version = str(info.get("version", "unknown"))
    notes = () if version == SUPPORTED else (version_note(version),)
    return RunningServer(client.url, client, notes=notes)


def version_note(version: str) -> str:
    """What to tell the reader of a server whose release is not the one that the rules were read from."""
    return f"this server runs SGLang {version}; layer ids and arguments are read by the rules of {SUPPORTED}"


def server_command(spec: ServerSpec, port: int) -> list[str]:
    """The argument list that starts `spec` on `port`; no shell is involved."""
    flags = ["--model-path", str(spec.target), "--host", HOST, "--port", str(port), "--dtype", spec.dtype]
    flags += ["--random-seed", str(spec.seed), "--enable-metrics"]
    if spec.sleep_on_idle:
        flags.append("--sleep-on-idle")
    if spec.draft is not None and spec.speculation is not None:
        # As asked, even where SGLang is known to change them: what it makes of them is part of what we show.
        asked = spec.speculation
        flags += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(spec.draft)]
        flags += ["--speculative-num-steps", str(asked.steps), "--speculative-eagle-topk", str(asked.topk)]
        flags += ["--speculative-num-draft-tokens", str(asked.draft_tokens)]
    if spec.device == "cpu":
        from wiring.server.cpu.launcher import cpu_command

        return cpu_command(sys.executable, [*flags, *_CPU_SIZES, *spec.extra_flags])
    return [sys.executable, "-m", "sglang.launch_server", *flags, *spec.extra_flags]


def _is_narrow(target: Path) -> bool:
    """Whether the target is so small that a second thread only waits for the first.

    Threads meet after every operation. Where other programs want the cores too, each meeting can cost a time slice:
    on a busy machine of two cores a verify round of 61 layers of width 64 took 40 s with two threads, 1 s with one.
    """
    try:
        width = json.loads((target / "config.json").read_text(encoding="utf-8")).get("hidden_size")
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(width, int) and width <= NARROW


def _is_installed(folder: Path) -> bool:
    """Whether the package sglang in `folder` is the one that is imported anyway."""
    try:
        found = importlib.util.find_spec("sglang")  # imports nothing: the name has no dot
    except ValueError:  # a module of this name without a spec stands in sys.modules
        return False
    places = found.submodule_search_locations if found is not None else None
    return any(Path(place).resolve() == (folder / "sglang").resolve() for place in places or ())


def server_environment(spec: ServerSpec, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of the server: `base` without our switches, what the device needs, then `spec.env`."""
    environment = {name: value for name, value in base.items() if name not in _PLUGIN_OF}
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    if spec.device == "cpu":
        from wiring.server.cpu.launcher import cpu_environment

        environment = cpu_environment(environment)
        if _is_narrow(spec.target):
            environment.setdefault("OMP_NUM_THREADS", "1")
    if spec.sglang is not None and not _is_installed(spec.sglang):
        path = [str(spec.sglang), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    environment.update(spec.env)
    if environment.get("SGLANG_PLUGINS"):  # a list that restricts the plugins must not lose those asked for
        wanted = [plugin for switch, plugin in _PLUGIN_OF.items() if environment.get(switch)]
        names = [name.strip() for name in environment["SGLANG_PLUGINS"].split(",") if name.strip()]
        environment["SGLANG_PLUGINS"] = ",".join(dict.fromkeys([*names, *wanted]))
    return environment
