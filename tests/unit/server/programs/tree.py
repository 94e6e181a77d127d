"""Act as a server: a main process, a worker that ignores SIGTERM, and a worker in a session of its own.

usage: tree.py PIDS [exit-after SECONDS STATUS] -- writes the three process ids to the file PIDS once all run.
"""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def spawn(**options):
    child = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, **options)
    child.stdout.readline()
    return child


if __name__ == "__main__":
    children = [spawn(), spawn(start_new_session=True)]
    Path(tempfile.gettempdir(), "left-behind").write_text("a file that the server does not remove")
    with open(f"/dev/shm/sglang_stand_in_{os.getpid()}", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)  # as SGLang's workers do
    report = Path(sys.argv[1])
    report.with_suffix(".part").write_text(" ".join(str(pid) for pid in (os.getpid(), *(c.pid for c in children))))
    report.with_suffix(".part").rename(report)
    if sys.argv[2:3] == ["exit-after"]:
        time.sleep(float(sys.argv[3]))
        print("RuntimeError: the stand-in gave up", file=sys.stderr, flush=True)
        sys.exit(int(sys.argv[4]))
    signal.pause()
