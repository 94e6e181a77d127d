"""The owner's side of the guard: start a guarded process, see whether it lives, end it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from wiring.errors import WiringError

_STOP_S = 10.0  # the guard's own limits add up to less


class GuardedProcess:
    """A process tree that ends with this process. Made by `spawn`; `stop` may be called more than once."""

    def __init__(self, guard: subprocess.Popen[bytes], lifeline: int, pid: int):
        self._guard, self._lifeline = guard, lifeline
        self._lock = threading.Lock()
        self.pid = pid
        """Process id of the command itself; also the id of its session."""
        # Only a SIGKILL of the guard makes this thread do anything: it then sweeps the session.
        threading.Thread(target=self._sweep_after_guard, name=f"guard of {pid}", daemon=True).start()

    @classmethod
    def spawn(
        cls, command: Sequence[str], environment: Mapping[str, str], log: Path, *, grace_s: float, scratch: bool
    ) -> GuardedProcess:
        """Start `command` behind a guard, its output written to `log` (what an earlier server left there goes).

        `grace_s` lies between SIGTERM and SIGKILL when it is ended; 0 means SIGKILL at once. `scratch` gives the
        process a TMPDIR that is removed after it. Raises WiringError when the log cannot be written or the command
        cannot be executed.
        """
        watch, lifeline = os.pipe()
        heard, report = os.pipe()
        options = ["--owner", str(os.getpid()), "--watch", str(watch), "--report", str(report), "--grace", str(grace_s)]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as output:
                guard = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "wiring.server.supervisor",
                        *options,
                        *(["--scratch"] * scratch),
                        "--",
                        *command,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_guard_path(environment),
                    pass_fds=(watch, report),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(lifeline), os.close(heard)
            raise WiringError("the server's log cannot be written", where=log, found=error.strerror) from None
        finally:
            os.close(watch), os.close(report)
        try:
            pid = _read_pid(heard)
        except BaseException:
            os.close(lifeline)
            guard.wait()
            raise
        finally:
            os.close(heard)
        if pid is None:
            os.close(lifeline)
            guard.wait()
            raise WiringError("the server's command cannot be executed", where=log, found=command[0])
        return cls(guard, lifeline, pid)

    @property
    def exit_status(self) -> int | None:
        """None while the process tree lives; otherwise its exit status as a shell gives it (128 + signal)."""
        return self._guard.poll()

    def wait(self, limit_s: float) -> int | None:
        """`exit_status` after at most `limit_s` seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self._guard.wait(limit_s)
        return None

    def stop(self) -> None:
        """End the whole tree; returns when it is gone, within 10 s."""
        self._cut()
        try:
            self._guard.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        if self._guard.returncode < 0:
            _kill_session(self.pid)

    def _cut(self) -> None:
        with self._lock:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def _sweep_after_guard(self) -> None:
        # Popen.wait is safe beside other waiters of the same process: it locks.
        if self._guard.wait() < 0:
            _kill_session(self.pid)


def _guard_path(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with this package on its path, so that the guard starts from any folder."""
    path = [str(Path(__file__).parents[2]), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _read_pid(descriptor: int) -> int | None:
    readable, _, _ = select.select([descriptor], [], [], 30.0)
    line = os.read(descriptor, 32) if readable else b""
    return int(line) if line.strip() else None


def _kill_session(session: int) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session:
                process.kill()
