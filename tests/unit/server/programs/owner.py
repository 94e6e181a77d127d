"""Owns a guarded process until it is killed. usage: owner.py LOG [--fork] -- COMMAND...

With --fork a copy of the owner, pipe and all, goes on living after it.
"""

import os
import sys
import time
from pathlib import Path

from wiring.server.supervised import GuardedProcess

if __name__ == "__main__":
    at = sys.argv.index("--")
    process = GuardedProcess.spawn(sys.argv[at + 1 :], os.environ, Path(sys.argv[1]), grace_s=0.0, scratch=False)
    copy = os.fork() if "--fork" in sys.argv[:at] else -1
    if copy != 0:
        print(process.pid, copy, flush=True)
    time.sleep(600)
