"""Functions that test and choose TCP ports of this machine."""

from __future__ import annotations

import random
import socket

from wiring.errors import WiringError

HOST = "127.0.0.1"
# Below Linux's range for outgoing connections (from 32768), which could take a free port before the server binds it,
# and clear of 22000 to 29999, where SGLang 0.5.23 draws a port for its workers without sparing its own port
# (srt/utils/network.py, get_free_port_below_ephemeral).
_LOWEST, _HIGHEST = 10_000, 22_000
_TRIES = 200
_given: set[int] = set()  # by this process: a server that is starting does not listen yet


def _is_free(port: int) -> bool:
    """Return whether a server could listen on `port` of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT can be listened on
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a random free port of 127.0.0.1, each at most once per process.

    Raises WiringError ("no-free-port") where 200 tries find none.
    """
    for _ in range(_TRIES):
        port = random.SystemRandom().randrange(_LOWEST, _HIGHEST)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise WiringError(
        "no free port was found for a server",
        code="no-free-port",
        where=HOST,
        expected=f"a free port from {_LOWEST} to {_HIGHEST - 1}",
        found=f"{_TRIES} taken ones",
        remedy="End the programs that hold them (`ss -ltn` lists them)",
    )
