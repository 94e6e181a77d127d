"""Ports on this machine: find a free one, or say that one is taken."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
# Below the range from which Linux hands out ports to outgoing connections (32768 on): a port found free there
# is not taken by a passing connection in the seconds before the server binds it.
_LOWEST, _HIGHEST = 20_000, 32_000
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
    """A port of 127.0.0.1 that nothing listens on now and that this process was not given yet, chosen at random."""
    for _ in range(200):
        port = random.SystemRandom().randrange(_LOWEST, _HIGHEST)
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:  # a crowded machine: let the kernel choose
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
