"""A peer's program that makes one pass over its data whenever it is asked, and says how long that took."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from peer_files import PROGRAMS, environment, peers_python


class PeerClock:
    """One running peer program; everything is loaded and run once before the first answer."""

    def __init__(self, process: subprocess.Popen[str], log: Path):
        self.process, self.log = process, log
        self.expect("ready")

    def expect(self, what: str = "") -> str:
        line = self.process.stdout.readline().strip()
        assert line and (not what or line == what), self.log.read_text()[-4000:]
        return line

    def seconds(self) -> float:
        """Seconds of one pass, by the peer's own clock."""
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        return float(self.expect())


@contextlib.contextmanager
def peer_clock(program: str, case: Path, threads: int) -> Iterator[PeerClock]:
    """Start a peer's program on one case with `threads` threads, and end it afterwards."""
    command = [str(peers_python()), str(PROGRAMS / program), str(case), "--time"]
    environ = environment() | {"OMP_NUM_THREADS": str(threads)}
    log = case / "timing.log"
    with open(log, "w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ, cwd=case
        )
        try:
            yield PeerClock(process, log)
        finally:
            process.stdin.close()  # its loop over stdin ends
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
