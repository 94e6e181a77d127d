"""Ports on this machine: find a free one, or say that one is taken."""

from __future__ import annotations

import random
import socket

from wiring.errors import WiringError

HOST = "127.0.0.1"
# Below the range from which Linux hands out ports to outgoing connections (32768 on): a port found free there
# is not taken by a passing connection in the seconds before the server binds it. And clear of 22000 to 29999, from
# which SGLang 0.5.23 draws its workers' meeting point (srt/utils/network.py, get_free_port_below_ephemeral): it
# does not spare the port that it was told to serve on.
_LOWEST, _HIGHEST = 10_000, 22_000
_TRIES = 200
_given: set[int] = set()  # by this process: a server that is still starting does not listen yet


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT can be listened on
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now and that this process was not given yet, chosen at random.

    Raises WiringError where 200 tries find none.
    """
    for _ in range(_TRIES):
        port = random.SystemRandom().randrange(_LOWEST, _HIGHEST)
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise WiringError(
        "no free port was found for a server",
        where=HOST,
        expected=f"a port from {_LOWEST} to {_HIGHEST - 1} that nothing listens on",
        found=f"{_TRIES} taken ones",
        remedy="End the programs that hold them (`ss -ltn` lists them)",
    )
