"""Ending what a notebook started: its kernel's process group and every descendant that is left."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that none escapes (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_group(group: int | None, number: signal.Signals) -> None:
    """Send a signal to a process group, if there still is one."""
    if group is not None and group > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All living descendants of a process (default: this one), nearest first."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if _alive(child)]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_descendants(patience_s: float, grace_s: float, pid: int | None = None) -> list[str]:
    """End all descendants: wait `patience_s` for them to go, SIGTERM, wait `grace_s`, SIGKILL.

    A server's guard needs the patience: it sees its owner die and ends its server itself. Returns the
    command lines of those that had to be told.
    """
    if _gone(patience_s, pid):
        return []
    left = descendants(pid)
    told = [_command(process) for process in left]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    if not _gone(grace_s, pid):
        for process in descendants(pid):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _gone(2.0, pid)
    return told


def _gone(within_s: float, pid: int | None) -> bool:
    deadline = time.monotonic() + within_s
    while descendants(pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return f"process {process.pid}"
