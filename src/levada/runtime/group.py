"""Process group over TCP: collective operations with the standard library alone.

It serves NumPy and plain Python, and the agreement on stops and resizes. Rank 0 is the hub of a star. Sums are taken in
the order of ranks, so every run gives the same bits. A member that loses a peer closes its connections, so all others
notice within milliseconds.
"""

from __future__ import annotations

import selectors
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from levada.runtime.rendezvous import Abandoned, gather_members, reach_hub
from levada.runtime.secure_socket import Link, digest

__all__ = ["Abandoned", "Group", "PeerLost"]

_SUM, _AGREE, _GATHER, _BROADCAST = range(1, 5)
#: Formats of numbers that can be summed, as in `array` and NumPy.
_FORMATS = "dfqlih"


class PeerLost(ConnectionError):
    """A member is gone or did not answer in time; the group is unusable."""


class Group:
    """Members that call the same collective operations in the same order.

    `open` creates one. An operation takes at most *limit_s* seconds.
    """

    def __init__(self, rank: int, size: int, links: Sequence[Link], limit_s: float) -> None:
        self.rank = rank
        self.size = size
        self._limit_s = limit_s
        #: The hub has one link per other rank, in order; other members have one, to the hub.
        self._links = list(links)

    @classmethod
    def alone(cls) -> Group:
        """A group of one member, whose operations are free."""
        return cls(0, 1, (), 0.0)

    @classmethod
    def open(
        cls,
        rank: int,
        size: int,
        address: str,
        port: int,
        secret: bytes = b"",
        limit_s: float = 1800.0,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> Group:
        """Wait for all members and return the group; raises Abandoned once *is_abandoned* returns True.

        All members must pass the same *secret*; peers that do not know it are rejected.
        """
        if size == 1:
            return cls.alone()
        if rank == 0:
            links = gather_members(size, address, port, secret, is_abandoned)
        else:
            links = [reach_hub(rank, address, port, secret, is_abandoned)]
        for link in links:
            link.connection.settimeout(limit_s)
        return cls(rank, size, links, limit_s)

    def allreduce(self, values: Any) -> None:
        """Replace *values* (a contiguous, writable `array` or NumPy array) by their sum over all members."""
        if self.size == 1:
            return
        view = memoryview(values)
        if view.format not in _FORMATS or not view.contiguous or view.readonly:
            raise TypeError(f"allreduce needs a writable array of {', '.join(_FORMATS)} in one piece, not {values!r}")
        whole = view.cast("B")
        if self.rank == 0:
            for data in self._collect(_SUM, len(whole)):
                _add(view, data)
            self._send_all(_SUM, whole)
        else:
            self._send(0, _SUM, whole)
            self._receive_into(_SUM, whole)

    def agree(self, votes: Sequence[float]) -> list[float]:
        """The element-wise maximum of all members' votes."""
        if self.size == 1:
            return list(votes)
        mine = array("d", votes)
        if self.rank == 0:
            for data in self._collect(_AGREE, len(mine) * 8):
                mine = array("d", map(max, mine, array("d", data)))
            self._send_all(_AGREE, mine.tobytes())
        else:
            self._send(0, _AGREE, mine.tobytes())
            mine = array("d", self._receive(_AGREE))
        return mine.tolist()

    def gather(self, data: bytes) -> list[bytes]:
        """The data of every member in the order of ranks, for all members."""
        if self.size == 1:
            return [data]
        if self.rank == 0:
            parts = [data, *(bytes(part) for part in self._collect(_GATHER, None))]
            lengths = array("Q", map(len, parts)).tobytes()
            self._send_all(_GATHER, lengths + b"".join(parts))
            return parts
        self._send(0, _GATHER, data)
        received = bytes(self._receive(_GATHER))
        lengths_end = self.size * 8
        parts, at = [], lengths_end
        for length in array("Q", received[:lengths_end]):
            parts.append(received[at : at + length])
            at += length
        return parts

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """The data of rank *source*, for all members; data of other ranks is ignored."""
        if self.rank == source and data is None:
            raise TypeError("the source of a broadcast must give something")
        if self.size == 1:
            return data or b""
        if self.rank == 0:
            if source == 0:
                payload = data or b""
            else:
                payload = bytes(self._receive(_BROADCAST, source - 1))
            self._send_all(_BROADCAST, payload, but=source)
            return payload
        if self.rank == source:
            payload = data or b""
            self._send(0, _BROADCAST, payload)
            return payload
        return bytes(self._receive(_BROADCAST))

    def barrier(self) -> None:
        """Wait until all members have called it."""
        self.agree(())

    def close(self) -> None:
        """Leave the group; the next operation of the others raises PeerLost."""
        for link in self._links:
            link.close()
        self._links = []

    # ------------------------------------------------------------------------------------------------------ messages

    def _send(self, link: int, operation: int, data: bytes | memoryview, checksum: bytes | None = None) -> None:
        try:
            self._links[link].send(operation, data, checksum)
        except (OSError, IndexError) as error:
            raise self._lost(link, error) from None

    def _send_all(self, operation: int, data: bytes | memoryview, but: int = 0) -> None:
        checksum = digest(data)
        for link in range(self.size - 1):
            if link + 1 != but:
                self._send(link, operation, data, checksum)

    def _receive(self, operation: int, link: int = 0) -> bytearray:
        length, checksum = self._head(operation, link)
        data = bytearray(length)
        self._fill(link, memoryview(data), checksum)
        return data

    def _receive_into(self, operation: int, target: memoryview) -> None:
        length, checksum = self._head(operation, 0)
        if length != len(target):
            raise self._mismatch("arrays of different sizes")
        self._fill(0, target, checksum)

    def _head(self, operation: int, link: int) -> tuple[int, bytes]:
        try:
            received, length, checksum = self._links[link].receive_head()
        except (OSError, IndexError) as error:
            raise self._lost(link, error) from None
        if received != operation:
            raise self._mismatch("different operations")
        return length, checksum

    def _fill(self, link: int, target: memoryview, checksum: bytes) -> None:
        try:
            self._links[link].receive_body(target, checksum)
        except (OSError, IndexError) as error:
            raise self._lost(link, error) from None

    def _collect(self, operation: int, length: int | None) -> list[bytearray]:
        """One message of every other member in the order of ranks; read as they arrive, so a loss is seen at once."""
        messages: list[bytearray | None] = [None] * (self.size - 1)
        deadline = time.monotonic() + self._limit_s
        if not self._links:
            raise PeerLost("this group was closed before")
        with selectors.DefaultSelector() as selector:
            for at, link in enumerate(self._links):
                selector.register(link, selectors.EVENT_READ, at)
            while selector.get_map():
                ready = selector.select(deadline - time.monotonic())
                if not ready:
                    missing = [str(link + 1) for link, message in enumerate(messages) if message is None]
                    self.close()
                    raise PeerLost(f"rank {', '.join(missing)} did not answer in {self._limit_s:g} s")
                for key, _ in ready:
                    message = self._receive(operation, key.data)
                    if length is not None and len(message) != length:
                        raise self._mismatch("arrays of different sizes")
                    messages[key.data] = message
                    selector.unregister(key.fileobj)
        return [message for message in messages if message is not None]

    def _lost(self, link: int, error: Exception) -> PeerLost:
        self.close()
        return PeerLost(f"rank {link + 1 if self.rank == 0 else 0} is gone: {error}")

    def _mismatch(self, what: str) -> RuntimeError:
        self.close()
        return RuntimeError(f"members of the group came with {what}: all must do the same things in the same order")


def _add(total: memoryview, data: bytearray) -> None:
    """Add *data* to *total*, element by element."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        mine = numpy.frombuffer(total, dtype=total.format)
        mine += numpy.frombuffer(data, dtype=total.format)
        return
    flat = total.cast("B").cast(total.format)  # type: ignore[call-overload]  # one of _FORMATS
    for at, value in enumerate(memoryview(data).cast(total.format)):  # type: ignore[call-overload]  # as above
        flat[at] += value
