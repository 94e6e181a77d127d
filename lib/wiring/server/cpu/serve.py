"""The CPU server's main script: `python -m wiring.server.cpu.serve <SGLang's flags>`.

Use `launcher.cpu_command` and `launcher.cpu_environment` to build the call. The import of `boot`
stands at the top level, because children of the server run this module's top level again, under
another name and before their own work.
"""

from __future__ import annotations

import os
import sys

from wiring.errors import WiringError
from wiring.server.cpu.kit_version import installed_sglang, require_sglang

try:
    require_sglang(installed_sglang())
    import wiring.server.cpu.boot  # noqa: F401
except WiringError as problem:
    sys.exit(str(problem))


def main(flags: list[str]) -> None:
    """Serve until told to stop; end the children in any case."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(flags))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
