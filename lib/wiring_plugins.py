"""The entry points that SGLang loads in every server of this environment (group `sglang.srt.plugins`).

Each returns at once, having imported nothing, unless the environment variable of its own asks for
it: an ordinary server in an environment where `wiring` is installed stays as it is.
"""

import os


def cpu() -> None:
    """Serve EAGLE-3 on a CPU without AMX, where WIRING_SGLANG_CPU=1."""
    if os.environ.get("WIRING_SGLANG_CPU") == "1":
        from wiring.server.cpu.cpu_plugin import register

        register()


def capture() -> None:
    """Write what the draft is fed to the folder named by WIRING_CAPTURE_DIR."""
    if os.environ.get("WIRING_CAPTURE_DIR"):
        from wiring.capture.capture_plugin import register

        register()


def embedding_id() -> None:
    """Let the layer id -1 stand for the embedding output, where WIRING_EMBEDDING_ID=1."""
    if os.environ.get("WIRING_EMBEDDING_ID") == "1":
        from wiring.patch.embedding_plugin import register

        register()
