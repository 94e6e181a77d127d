"""Waiting for a server to become healthy, with progress; and what its log says when it does not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wiring.errors import WiringError
from wiring.server.client import ServerClient
from wiring.server.supervisor import SupervisedProcess

_POLL_S = 0.25
_TAIL_BYTES = 256_000
# What SGLang logs on its way up, latest stage first: (text in the log, what the server is doing from then on).
_STAGES = (
    ("The server is fired up", "ready"),
    ("Uvicorn running", "warming up"),
    ("CUDA graph begin", "capturing CUDA graphs"),
    ("Memory pool end", "setting up attention"),
    ("Load weight end", "allocating the KV cache"),
    ("Load weight begin", "loading weights"),
)
# An exception ("[2025-01-31 12:00:00] " may stand before it, its name may be dotted), or a refused command line.
_RAISED = re.compile(
    r"^(?:\[[^\]]*\] )?(?P<error>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception)(?:: .*)?|[\w. ]+: error: .*)$"
)
# uvicorn's word for a port that is taken. SGLang 0.5.23 does not end after it: its workers live on.
_BIND_FAILED = re.compile(r"error while attempting to bind on address .*")


@dataclass(frozen=True)
class StartProgress:
    """One moment of a server's start: seconds since it was launched, what it is doing, where its log is."""

    elapsed_s: float
    stage: str
    log: Path

    def __str__(self) -> str:
        return f"SGLang server: {self.stage}, {self.elapsed_s:.0f} s so far (log: {self.log})"


Progress = Callable[[StartProgress], None]


def quiet_lines(emit: Callable[[str], object] = print, every_s: float = 15.0) -> Progress:
    """A progress callback that emits a line when the stage changes, and otherwise every `every_s` seconds."""
    last: list[StartProgress] = []

    def show(now: StartProgress) -> None:
        if not last or now.stage != last[-1].stage or now.elapsed_s - last[-1].elapsed_s >= every_s:
            last[:] = [now]
            emit(str(now))

    return show


def wait_until_healthy(
    client: ServerClient,
    process: SupervisedProcess,
    log: Path,
    timeout_s: float,
    progress: Progress | None,
    begin: float,
) -> None:
    """Return when the server answers /health.

    Raises WiringError once it has died or its port is taken, or `timeout_s` seconds after `begin` (time.monotonic).
    """
    while True:
        elapsed_s = time.monotonic() - begin
        if progress is not None:
            progress(StartProgress(elapsed_s, _stage(log_text(log)), log))
        if process.exit_status is not None:
            raise died_in_startup(process.exit_status, log)
        if taken := _BIND_FAILED.search(log_text(log)):
            raise WiringError(
                "the server cannot listen on its port",
                where=log,
                found=taken[0],
                remedy="Another program took the port while the server started: start it again, or give it another",
            )
        if client.healthy():
            return
        if elapsed_s > timeout_s:
            raise WiringError(
                f"the server was not ready after {timeout_s:.0f} s (it was {_stage(log_text(log))})",
                where=log,
                remedy=f"Allow more time (engine.startup_timeout_s) or read its log, which ends:\n{log_tail(log)}",
            )
        process.wait(_POLL_S)


def died_in_startup(status: int, log: Path) -> WiringError:
    """The error for a server that ended before it was ready: its own last words, and the log's last lines."""
    cause = raised_in(log_text(log))
    return WiringError(
        f"the server died while starting{f': {cause}' if cause else ''}",
        where=log,
        found=describe_status(status, explained=bool(cause)),
        remedy=f"Mend what it names; its log ends:\n{log_tail(log)}",
    )


def died_later(status: int, log: Path) -> WiringError:
    """The error for a server that was ready once and ended since."""
    cause = raised_in(log_text(log))
    return WiringError(
        f"the server died while it was in use{f': {cause}' if cause else ''}",
        where=log,
        found=describe_status(status, explained=bool(cause)),
        remedy="Read its log and start it again",
    )


def describe_status(status: int, explained: bool = False) -> str:
    """An exit status in words: shells add 128 to the number of the signal that ended a process.

    `explained` says that the log names a cause; a lone SIGKILL is most often the kernel's, for want of memory.
    """
    if status == 137 and not explained:
        return "ended by signal 9 (often: the machine ran out of memory)"
    return f"ended by signal {status - 128}" if status > 128 else f"exit status {status}"


def log_text(log: Path) -> str:
    """The last part of a log (at most 256 kB); empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def log_tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log that hold text, indented and cut to 300 characters (SGLang logs all its arguments)."""
    kept = [line.rstrip()[:300] for line in log_text(log).splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in kept[-lines:]) or "  (the log is empty)"


def raised_in(text: str) -> str:
    """The exception that brought a server down, as its log tells it; empty when the log holds none.

    A worker's exception comes first and the main process's complaints about the dead worker after it: so the first
    one after SGLang's own "hit an exception" is taken where there is one, otherwise the last of all.
    """
    _, marker, after = text.partition("hit an exception")
    raised = [match["error"] for line in (after if marker else text).splitlines() if (match := _RAISED.match(line))]
    if not raised:
        return ""
    return (raised[0] if marker else raised[-1])[:300].rstrip(". ")


def _stage(text: str) -> str:
    return next((stage for mark, stage in _STAGES if mark in text), "importing")
