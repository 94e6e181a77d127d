"""Progress of long work: quiet lines on the error stream, which neither notebooks nor JSON on stdout mix with."""

from __future__ import annotations

import sys
import time

_START = time.monotonic()


def say(text: str) -> None:
    """Print one line with the seconds since this process began to talk."""
    print(f"[{time.monotonic() - _START:5.0f} s] {text}", file=sys.stderr, flush=True)
