"""Entry points that SGLang loads in every server of this environment (group `sglang.srt.plugins`).

Each returns at once and imports nothing unless its environment variable is set, so an ordinary server in an environment
with `wiring` is not changed.
"""

import os


def cpu() -> None:
    """Serve EAGLE-3 on a CPU without AMX, where WIRING_SGLANG_CPU=1."""
    if os.environ.get("WIRING_SGLANG_CPU") == "1":
        from wiring.server.cpu.launcher import installed_sglang, require_sglang

        require_sglang(installed_sglang())  # before the import of what only this release has
        from wiring.server.cpu.torch_native import register

        register()


def capture() -> None:
    """Record the draft's input states in the folder named by WIRING_CAPTURE_DIR."""
    if os.environ.get("WIRING_CAPTURE_DIR"):
        from wiring.capture.capture_plugin import register

        register()


def embedding_id() -> None:
    """Read the layer id -1 as the embedding output, where WIRING_EMBEDDING_ID=1."""
    if os.environ.get("WIRING_EMBEDDING_ID") == "1":
        from wiring.patch.embedding_plugin import register

        register()
