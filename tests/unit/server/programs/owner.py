"""Own a supervised process until killed. usage: owner.py LOG [--fork] -- COMMAND...

With --fork a copy of the owner, open files included, outlives it.
"""

import os
import sys
import time
from pathlib import Path

from wiring.server.supervisor import start_supervised

if __name__ == "__main__":
    at = sys.argv.index("--")
    process = start_supervised(sys.argv[at + 1 :], os.environ, Path(sys.argv[1]))
    copy = os.fork() if "--fork" in sys.argv[:at] else -1
    if copy != 0:
        print(process.pid, copy, flush=True)
    time.sleep(600)
