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


def outlive_reader() -> None:
    """Replace sys.stdout, where it is this process's own, by one that no reader breaks."""
    own = sys.stdout
    if own is None or own is not sys.__stdout__:
        return
    own.flush()
    file = io.BufferedWriter(_UntilClosed(own.fileno(), "w", closefd=False))
    sys.stdout = io.TextIOWrapper(file, own.encoding, own.errors, line_buffering=own.isatty(), write_through=False)


def give_up() -> None:
    """Drop what could not be written, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
