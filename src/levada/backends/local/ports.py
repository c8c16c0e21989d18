"""Free TCP ports of this machine, for the rendezvous of workers."""

from __future__ import annotations

import random
import socket

#: Below the kernel's ephemeral port range.
FIRST, LAST = 20000, 32767
_TRIES = 200


class Ports:
    """Allocates free ports, with a long time before one is reused."""

    def __init__(self) -> None:
        self._taken: dict[int, None] = {}

    def take(self) -> int:
        """A port that is free now and was not taken recently."""
        for _ in range(_TRIES):
            port = random.randint(FIRST, LAST)
            if port not in self._taken and _is_free(port):
                self._taken[port] = None
                if len(self._taken) > (LAST - FIRST) // 2:
                    self._taken.pop(next(iter(self._taken)))
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
