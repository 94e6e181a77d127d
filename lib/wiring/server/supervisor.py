"""`python -m wiring.server.supervisor`: starts one server and sees to it that nothing of it outlives its owner.

The owner (a notebook, the command line) holds the write end of a pipe and never writes. When the owner ends, by
whatever means, the kernel closes that end, the guard reads end-of-file and ends the server. The guard also ends it on
SIGTERM, and when the server's main process ends by itself it ends what that left behind.

The server runs in a session of its own, and the guard is the reaper of every descendant that loses its parent, so
"no child left" means that the whole tree is gone, whatever sessions its members moved to. Should the guard itself be
killed, the kernel kills the server's main process (parent-death signal), and with it SGLang's workers, which ask for
the same.
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
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S, _LOOK_S = 0.1, 3.0
# Shared memory that SGLang and Python's multiprocessing name; whoever is killed cannot remove its own.
_SHARED = ("/dev/shm/sglang_", "/dev/shm/sgl_shm", "/dev/shm/sem.mp-")
_KILL_S = 1.75  # how long processes may take to vanish after SIGKILL (a GPU driver may hold one for a while)


def main(arguments: list[str] | None = None) -> int:
    """Run the command given after `--` until it ends or the owner does; return its exit status as a shell would."""
    options = _parse(arguments)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    scratch = tempfile.mkdtemp(prefix="wiring-server-") if options.scratch else ""
    try:
        server = _spawn(options.command, scratch)
        _report(options.report, server.pid)
        shared, look_again = set[Path](), 0.0
        while server.poll() is None and not asked and not _owner_is_gone(options.watch, options.owner):
            if time.monotonic() >= look_again:  # now and then: a server that dies by itself cannot be asked any more
                shared |= _shared_memory()
                look_again = time.monotonic() + _LOOK_S
        return _end(server, options.grace, shared | _shared_memory())
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wiring.server.supervisor", description=__doc__)
    parser.add_argument("--owner", type=int, required=True, help="process id of the owner")
    parser.add_argument("--watch", type=int, required=True, help="file descriptor: read end of the owner's pipe")
    parser.add_argument("--report", type=int, required=True, help="file descriptor on which the server's pid is told")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--scratch", action="store_true", help="give the server a TMPDIR that goes away with it")
    parser.add_argument("command", nargs="+", help="the server's command, after --")
    return parser.parse_args(arguments)


def _spawn(command: list[str], scratch: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TMPDIR": scratch} if scratch else None
    guard = os.getpid()

    def die_with_guard() -> None:  # in the child, between fork and exec
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the line above
            os._exit(1)

    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True, preexec_fn=die_with_guard
    )


def _report(descriptor: int, pid: int) -> None:
    with suppress(OSError):  # an owner that is gone already is noticed by the watch
        os.write(descriptor, f"{pid}\n".encode())
    with suppress(OSError):
        os.close(descriptor)


def _owner_is_gone(watch: int, owner: int) -> bool:
    """Wait one poll interval; True at end-of-file, or when the owner is no longer the parent.

    The second test covers an owner that forked: its copy keeps the pipe open after the owner's death.
    """
    readable, _, _ = select.select([watch], [], [], _POLL_S)
    return bool(readable and not os.read(watch, 1)) or os.getppid() != owner


def _end(server: subprocess.Popen[bytes], grace_s: float, shared: set[Path]) -> int:
    """End the server and every descendant of this process, remove their `shared` memory; return the exit status."""
    if server.poll() is None and grace_s > 0:
        server.terminate()
        _until(lambda: server.poll() is not None, grace_s)
    if server.poll() is None:
        server.kill()
    _until(lambda: server.poll() is not None, _KILL_S)
    _until(_no_child_left, _KILL_S)
    for file in shared:
        file.unlink(missing_ok=True)
    code = server.poll()
    return 1 if code is None else code if code >= 0 else 128 - code


def _shared_memory() -> set[Path]:
    """The shared-memory files that the descendants of this process have open now."""
    found: set[Path] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            found |= {Path(part) for part in maps.split() if part.startswith(_SHARED)}
    return found


def _no_child_left() -> bool:
    """Kill and reap what is left; True when this process has no child any more, adopted ones included."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _until(done: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":  # elsewhere the pipe alone must do
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
