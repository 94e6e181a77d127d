"""Run a command under a supervisor that ends its whole process tree when this process exits.

`start_supervised` starts `python -m wiring.server.supervisor`, which starts the command and polls its own parent, the
owner. The tree ends when the owner dies (by SIGKILL too), when the owner calls `SupervisedProcess.end`, on SIGTERM,
SIGHUP or SIGINT to the supervisor, and when the command exits but leaves processes behind.

The supervisor is a subreaper (Linux): descendants that lose their parent become its children, so it finds them even
after they have moved to another session. If the supervisor itself is killed, the kernel kills the command
(PR_SET_PDEATHSIG), and the owner kills the rest of its session.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from wiring.errors import WiringError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.1
_SHARED_MEMORY_POLL_S = 3.0
_KILL_S = 1.75  # a GPU driver may hold a process for a while after SIGKILL
_END_LIMIT_S = 10.0  # above the sum of the supervisor's own time limits
# Shared memory of SGLang and of Python's multiprocessing, which a killed process cannot remove.
_SHARED_MEMORY = ("/dev/shm/sglang_", "/dev/shm/sgl_shm", "/dev/shm/sem.mp-")


class SupervisedProcess:
    """A process tree that ends with this process; made by `start_supervised`."""

    def __init__(self, supervisor: subprocess.Popen[bytes], pid: int):
        self._supervisor = supervisor
        self.pid = pid
        """Process id of the command, which is also the id of its session."""
        threading.Thread(target=self._wait_and_clean_up, name=f"supervisor of {pid}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether any process of the tree may still run."""
        return self.exit_status is None

    @property
    def exit_status(self) -> int | None:
        """None while the tree lives, then the command's exit status as a shell reports it (128 + signal)."""
        return self._supervisor.poll()

    def wait(self, limit_s: float) -> int | None:
        """Wait at most `limit_s` seconds for the tree to end; return `exit_status`."""
        with suppress(subprocess.TimeoutExpired):
            return self._supervisor.wait(limit_s)
        return None

    def end(self) -> None:
        """End the whole tree and return when it is gone, within 10 s. May be called more than once."""
        self._supervisor.terminate()
        if self.wait(_END_LIMIT_S) is None:
            self._supervisor.kill()
        self._wait_and_clean_up()

    def _wait_and_clean_up(self) -> None:
        if self._supervisor.wait() < 0:  # killed by a signal, so it could not end the tree
            _kill_session(self.pid)


def start_supervised(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    grace_s: float = 0.0,
    scratch: bool = False,
) -> SupervisedProcess:
    """Start `command` under a supervisor; its stdout and stderr replace the contents of `log`, stdin is empty.

    `grace_s` is the time between SIGTERM and SIGKILL when the tree is ended; 0 sends SIGKILL at once. With `scratch`
    the command gets a TMPDIR that is removed when the tree has ended.

    Raises:
        WiringError: the log cannot be written ("log-not-writable") or the command cannot be executed
            ("command-not-executable").
    """
    pid_reader, pid_writer = os.pipe()
    options = ["--owner", str(os.getpid()), "--report", str(pid_writer), "--grace", str(grace_s)]
    packages = [str(Path(__file__).parents[2]), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", __name__, *options, *(["--scratch"] * scratch), "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages))},
                pass_fds=(pid_writer,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(pid_reader)
        raise WiringError(
            "the log of a process cannot be written", code="log-not-writable", where=log, found=error.strerror
        ) from None
    finally:
        os.close(pid_writer)
    pid = b""
    try:
        if select.select([pid_reader], [], [], 30.0)[0]:
            pid = os.read(pid_reader, 32)
    finally:
        os.close(pid_reader)
        if not pid:  # also after Ctrl-C
            supervisor.terminate()
            supervisor.wait()
    if not pid:
        raise WiringError("the command cannot be executed", code="command-not-executable", where=log, found=command[0])
    return SupervisedProcess(supervisor, int(pid))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command given after `--` until it ends or the owner does; return its exit status as a shell would."""
    parser = argparse.ArgumentParser(prog="python -m wiring.server.supervisor", description=__doc__)
    parser.add_argument("--owner", type=int, required=True, help="process id of the owner, this process's parent")
    parser.add_argument("--report", type=int, required=True, help="file descriptor to write the command's pid to")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--scratch", action="store_true", help="give the command a TMPDIR that is removed with it")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args(arguments)
    requests: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda received, frame: requests.append(received))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    scratch = tempfile.mkdtemp(prefix="wiring-") if options.scratch else ""
    try:
        process = _spawn(options.command, scratch)
        with suppress(BrokenPipeError):  # the owner died already; the loop below notices
            os.write(options.report, f"{process.pid}\n".encode())
        os.close(options.report)
        shared, next_look = set[Path](), 0.0
        while process.poll() is None and not requests and os.getppid() == options.owner:
            if time.monotonic() >= next_look:  # a process that dies unexpectedly leaves no mapping to read
                shared |= _shared_memory()
                next_look = time.monotonic() + _SHARED_MEMORY_POLL_S
            time.sleep(_POLL_S)
        shared |= _shared_memory()
        status = _end_tree(process, options.grace)
        for file in shared:
            file.unlink(missing_ok=True)
        return status
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _spawn(command: list[str], scratch: str) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()

    def die_with_supervisor() -> None:  # runs in the child, between fork and exec
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor died before the call above
            os._exit(1)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": scratch} if scratch else None,
        start_new_session=True,
        preexec_fn=die_with_supervisor,
    )


def _end_tree(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """End `process` and every other descendant of this process; return the exit status of `process`."""
    deadline = time.monotonic() + grace_s
    if process.poll() is None and grace_s > 0:
        process.terminate()
        _wait_until(lambda: process.poll() is not None, deadline)
    if grace_s > 0:  # a supervisor among the descendants then ends its own tree and removes its files
        children = [child for child in psutil.Process().children(recursive=True) if child.pid != process.pid]
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        psutil.wait_procs(children, timeout=max(0.0, deadline - time.monotonic()))
    if process.poll() is None:
        process.kill()
    _wait_until(lambda: process.poll() is not None, time.monotonic() + _KILL_S)
    _wait_until(_kill_and_reap_children, time.monotonic() + _KILL_S)
    code = process.poll()
    return 1 if code is None else code if code >= 0 else 128 - code


def _kill_and_reap_children() -> bool:
    """Kill and reap what is left; return True when this process has no child any more, adopted ones included."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _shared_memory() -> set[Path]:
    """Return the shared-memory files that descendants of this process have mapped now."""
    found: set[Path] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            found |= {Path(part) for part in maps.split() if part.startswith(_SHARED_MEMORY)}
    return found


def _kill_session(session: int) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session:
                process.kill()


def _wait_until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
