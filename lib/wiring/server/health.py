"""Wait for a server to become healthy, and read from its log why it did not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from wiring.errors import WiringError
from wiring.server.client import ServerClient
from wiring.server.supervisor import SupervisedProcess

_POLL_S, _PROGRESS_S = 0.25, 30.0
_TAIL_BYTES = 256_000
# Lines that SGLang logs during its start, latest stage first: (text in the log, the stage that begins there).
_STAGES = (
    ("The server is fired up", "ready"),
    ("Uvicorn running", "warming up"),
    ("CUDA graph begin", "capturing CUDA graphs"),
    ("Memory pool end", "setting up attention"),
    ("Load weight end", "allocating the KV cache"),
    ("Load weight begin", "loading weights"),
)
# An exception, after SGLang's time stamp or at the start of a line, or argparse's error.
_RAISED = re.compile(
    r"^(?:\[[^\]]*\] )?(?P<error>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception)(?:: .*)?|[\w. ]+: error: .*)$"
)
# uvicorn's error for a port that is taken. SGLang 0.5.23 does not exit after it: its workers live on.
_BIND_FAILED = re.compile(r"error while attempting to bind on address .*")


def wait_until_healthy(
    client: ServerClient,
    process: SupervisedProcess,
    log: Path,
    timeout_s: float,
    progress: Callable[[str], object] | None,
    begin: float,
) -> None:
    """Return when the server answers /health.

    `progress` receives a line when the server reaches another stage of its start, and every 30 s.

    Raises:
        WiringError: the server died ("server-died-at-start"), its port is taken ("server-port-taken"), or it is not
            ready `timeout_s` seconds after `begin`, a value of time.monotonic ("server-not-ready").
    """
    shown, shown_at = "", 0.0
    while True:
        elapsed_s = time.monotonic() - begin
        text = log_text(log)
        stage = next((stage for mark, stage in _STAGES if mark in text), "importing")
        if progress is not None and (stage != shown or elapsed_s - shown_at >= _PROGRESS_S):
            shown, shown_at = stage, elapsed_s
            progress(f"SGLang server: {stage}, {elapsed_s:.0f} s so far (log: {log})")
        if process.exit_status is not None:
            cause, found = _cause_of_death(process.exit_status, log)
            raise WiringError(
                f"the server died while starting{cause}",
                code="server-died-at-start",
                where=log,
                found=found,
                remedy=f"Fix the error above; the log ends:\n{log_tail(log)}",
            )
        if taken := _BIND_FAILED.search(text):
            raise WiringError(
                "the server cannot listen on its port",
                code="server-port-taken",
                where=log,
                found=taken[0],
                remedy="Another program took the port during the start: start the server again, or set another port",
            )
        if client.healthy():
            return
        if elapsed_s > timeout_s:
            raise WiringError(
                "the server did not become ready in time",
                code="server-not-ready",
                where=log,
                expected=f"ready after {timeout_s:.0f} s",
                found=f"still {stage}",
                remedy=f"Allow more time (engine.startup_timeout_s) or read its log, which ends:\n{log_tail(log)}",
            )
        process.wait(_POLL_S)


def server_died(status: int, log: Path) -> WiringError:
    """Return the error for a server that was ready and has exited since."""
    cause, found = _cause_of_death(status, log)
    return WiringError(
        f"the server died while it was in use{cause}",
        code="server-died",
        where=log,
        found=found,
        remedy="Read its log and start it again",
    )


def _cause_of_death(status: int, log: Path) -> tuple[str, str]:
    """Return ": " with the exception of the log, or nothing, and the exit status in words."""
    cause = raised_in(log_text(log))
    return f": {cause}" if cause else "", describe_status(status, explained=bool(cause))


def describe_status(status: int, explained: bool = False) -> str:
    """Describe an exit status, in which a shell adds 128 to the number of the signal that ended a process.

    `explained`: the log names a cause. Without one a SIGKILL mostly comes from the kernel, for lack of memory.
    """
    if status == 137 and not explained:
        return "ended by signal 9 (often: the machine ran out of memory)"
    return f"ended by signal {status - 128}" if status > 128 else f"exit status {status}"


def log_text(log: Path) -> str:
    """Return the last 256 kB of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the last non-blank lines of a log, indented and cut to 300 characters (SGLang logs all its arguments)."""
    kept = [line.rstrip()[:300] for line in log_text(log).splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in kept[-lines:]) or "  (the log is empty)"


def raised_in(text: str) -> str:
    """Return the exception that brought a server down, from the text of its log; empty when there is none.

    The exception of a worker comes first, after SGLang's "hit an exception", followed by errors of the main process
    about the dead worker. So the first exception after that mark is taken, and without the mark the last one.
    """
    _, marker, after = text.partition("hit an exception")
    raised = [match["error"] for line in (after if marker else text).splitlines() if (match := _RAISED.match(line))]
    if not raised:
        return ""
    return (raised[0] if marker else raised[-1])[:300].rstrip(". ")
