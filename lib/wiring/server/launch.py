"""Start an SGLang server that is killed when this process exits, or attach to a running one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from wiring.engines.sglang import SUPPORTED
from wiring.errors import WiringError
from wiring.server.client import ServerClient
from wiring.server.health import server_died, wait_until_healthy
from wiring.server.ports import HOST, free_port
from wiring.server.preflight import preflight, release_note
from wiring.server.server_spec import ServerSpec, server_command, server_environment
from wiring.server.supervisor import start_supervised

_GRACE_S = {"cpu": 0.0, "cuda": 6.0}  # a GPU worker killed in the middle of its work can leave device memory taken


@dataclass(frozen=True)
class RunningServer:
    """A server and its client; a context manager that closes the client and does not end the server.

    `pid` and `log` are set for a server that `start` started. `notes` are warnings for the user. `ready`
    waits until a server that was started with `wait=False` answers, and returns at once for any other.
    """

    url: str
    client: ServerClient
    pid: int | None = None
    log: Path | None = None
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
    progress: Callable[[str], object] | None = None,
    wait: bool = True,
) -> Iterator[RunningServer]:
    """Start an SGLang server that is killed when this process exits, or when the `with` block ends.

    With `wait=False` the server is yielded while it starts, so that several can start at the same time; call
    `RunningServer.ready` before using it. (On one GPU start them one by one: SGLang takes a share of the free memory.)

    Args:
        log: file for the server's output; its old contents are replaced.
        timeout_s: time limit of the start.
        progress: receives a line when the start reaches another stage, and every 30 s.

    Raises:
        WiringError: a check of `wiring.server.preflight` fails; or the server dies or is not ready in time (from
            `ready` with `wait=False`).
    """
    notes = preflight(spec)
    port = free_port()
    if spec.device == "cpu":
        # SGLang draws its workers' port and binds it seconds later, so two servers could draw the same one.
        spec = replace(spec, extra_flags=("--nccl-port", str(free_port()), *spec.extra_flags))
    command, environment = server_command(spec, port), server_environment(spec, os.environ)
    process = start_supervised(command, environment, log, grace_s=_GRACE_S[spec.device], scratch=spec.device == "cpu")

    def why_dead() -> WiringError | None:
        status = process.wait(10.0)  # the connection breaks a moment before the supervisor exits
        return None if status is None else server_died(status, log)

    url = f"http://{HOST}:{port}"
    client = ServerClient(url, why_dead=why_dead)
    ready = partial(wait_until_healthy, client, process, log, timeout_s, progress, time.monotonic())
    try:
        if wait:
            ready()
        yield RunningServer(url, client, process.pid, log, notes, ready)
    finally:
        process.end()
        client.close()


def attach(url: str, *, api_key: str = "", read_only: bool = True) -> RunningServer:
    """Connect to a running SGLang server, local or remote. It is never stopped; `read_only` protects its prefix cache.

    Raises WiringError as `ServerClient.server_info` does, and "server-unhealthy" where /health fails.
    """
    client = ServerClient(url, api_key=api_key, read_only=read_only)
    try:
        info = client.server_info()
        if not client.healthy(timeout=30.0):
            raise WiringError(
                "the server answers but is not healthy",
                code="server-unhealthy",
                where=client.url,
                remedy="Wait until it has started, or look at its log",
            )
    except WiringError:
        client.close()
        raise
    version = str(info.get("version", "unknown"))
    notes = () if version == SUPPORTED else (release_note(f"this server runs SGLang {version}"),)
    return RunningServer(client.url, client, notes=notes)


def check_attached(url: str, where: str, *, drafts: bool, api_key: str = "") -> None:
    """Check that a running server can be used and that it drafts, or does not; `where` names the setting with `url`.

    Raises WiringError ("server-not-usable", "server-without-draft", "baseline-with-draft").
    """
    where = f"{where}: {url}"
    try:
        with attach(url, api_key=api_key) as server:
            algorithm = server.client.server_info().get("speculative_algorithm")
    except WiringError as error:
        raise WiringError(
            "the server cannot be used",
            code="server-not-usable",
            where=where,
            found=str(error),
            remedy="A server on another machine needs a tunnel: ssh -N -L PORT:127.0.0.1:PORT HOST",
        ) from error
    remedy = "engine.url is the server with the draft, engine.plain_url the one without"
    if drafts and not algorithm:
        raise WiringError(
            "this server runs without a draft",
            code="server-without-draft",
            where=where,
            expected="EAGLE3",
            found="no speculative algorithm",
            remedy=remedy,
        )
    if algorithm and not drafts:
        raise WiringError(
            "this server drafts, so it is no baseline",
            code="baseline-with-draft",
            where=where,
            expected="no speculative algorithm",
            found=algorithm,
            remedy=remedy,
        )
