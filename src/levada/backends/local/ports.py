"""Ports that nobody listens on, for the masters of generations."""

from __future__ import annotations

import random
import socket

#: Below the ports that the kernel gives to outgoing connections, which come and go.
FIRST, LAST = 20000, 32767
_TRIES = 200


class Ports:
    """Hands out free ports of this machine, each once in a long while."""

    def __init__(self) -> None:
        self._handed: dict[int, None] = {}

    def take(self) -> int:
        """A port that was free a moment ago and that nobody else was given lately."""
        for _ in range(_TRIES):
            port = random.randint(FIRST, LAST)
            if port not in self._handed and _is_free(port):
                self._handed[port] = None
                if len(self._handed) > (LAST - FIRST) // 2:
                    self._handed.pop(next(iter(self._handed)))
                return port
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
