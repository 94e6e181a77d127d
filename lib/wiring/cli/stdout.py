"""stdout of the command line: a reader that stops early (`| head`) ends no command and changes no exit status."""

from __future__ import annotations

import io
import os
import sys


class _UntilClosed(io.FileIO):
    """A descriptor whose reader may go: what is written after that goes nowhere."""

    def write(self, data) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def ignore_broken_pipe() -> None:
    """Replace sys.stdout, where it is this process's own, by one that no reader breaks."""
    own = sys.stdout
    if own is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process)
        return
    if own is not sys.__stdout__ or not isinstance(own, io.TextIOWrapper):
        return
    own.flush()
    raw = _UntilClosed(own.fileno(), "w", closefd=False)
    whole = own.encoding.lower().startswith("utf")
    sys.stdout = io.TextIOWrapper(
        raw if own.write_through else io.BufferedWriter(raw),  # `python -u`: at once
        own.encoding,
        own.errors if whole else "replace",  # tables have characters that a locale may lack
        line_buffering=own.isatty(),
        write_through=own.write_through,
    )


def give_up() -> None:
    """Drop what could not be written, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
