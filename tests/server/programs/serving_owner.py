"""Serve a pair until killed; print the url and process id as one line of JSON.

usage: serving_owner.py TARGET DRAFT LOG CAPTURE
"""

import json
import sys
import time
from pathlib import Path

from wiring.capture.records import capture_environment
from wiring.engines.sglang import Speculation
from wiring.server.launch import start
from wiring.server.server_spec import ServerSpec

if __name__ == "__main__":
    target, draft, log, capture = map(Path, sys.argv[1:])
    spec = ServerSpec(
        target,
        draft,
        Speculation(5, 1, 8),
        extra_flags=("--chunked-prefill-size", "16"),
        env=capture_environment(capture, prefix="test-"),
    )
    with start(spec, log, timeout_s=500) as server:
        print(json.dumps({"url": server.url, "pid": server.pid}), flush=True)
        time.sleep(3600)
