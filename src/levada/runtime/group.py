"""A small group of processes over TCP, with the standard library alone: for NumPy and plain Python, and for agreeing.

Rank 0 is the hub: the others send to it, it answers. Sums are taken in the order of ranks, so that every run gives the
same bits. Whoever loses a peer closes its connections, so that the others know within milliseconds too.
"""

from __future__ import annotations

import selectors
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from levada.runtime.link import Link, digest
from levada.runtime.meeting import Abandoned, gather_members, reach_hub

__all__ = ["Abandoned", "Group", "PeerLost"]

_SUM, _AGREE, _GATHER, _BROADCAST = range(1, 5)
#: What can be added: numbers of the machine, as `array` and NumPy name them.
_NUMBERS = "dfqlih"


class PeerLost(ConnectionError):
    """A member of the group is gone, or did not answer in time: the group cannot be used any more."""


class Group:
    """Members that do the same operations in the same order; every operation is of all of them.

    `open` makes one. An operation takes *limit_s* seconds at most.
    """

    def __init__(self, rank: int, size: int, links: Sequence[Link], limit_s: float) -> None:
        self.rank = rank
        self.size = size
        self._limit_s = limit_s
        #: The hub has one link for each other rank, in their order; the others have one, to the hub.
        self._links = list(links)

    @classmethod
    def alone(cls) -> Group:
        """A group of one: every operation is free."""
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
        """The group, as soon as all members are there; raises Abandoned as soon as *is_abandoned* says so.

        *secret* must be the same everywhere and known to nobody else: who does not know it is kept out.
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
        """Replaces *values* (an `array` or a NumPy array, in one piece and writable) by their sum over all."""
        if self.size == 1:
            return
        view = memoryview(values)
        if view.format not in _NUMBERS or not view.contiguous or view.readonly:
            raise TypeError(f"allreduce needs a writable array of {', '.join(_NUMBERS)} in one piece, not {values!r}")
        whole = view.cast("B")
        if self.rank == 0:
            for data in self._collect(_SUM, len(whole)):
                _add(view, data)
            self._send_all(_SUM, whole)
        else:
            self._send(0, _SUM, whole)
            self._receive_into(_SUM, whole)

    def agree(self, votes: Sequence[float]) -> list[float]:
        """The largest vote of all members at each place."""
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
        """What every member gave, in the order of ranks; everybody gets all of it."""
        if self.size == 1:
            return [data]
        if self.rank == 0:
            parts = [data, *(bytes(part) for part in self._collect(_GATHER, None))]
            lengths = array("Q", map(len, parts)).tobytes()
            self._send_all(_GATHER, lengths + b"".join(parts))
            return parts
        self._send(0, _GATHER, data)
        told = bytes(self._receive(_GATHER))
        lengths_end = self.size * 8
        parts, at = [], lengths_end
        for length in array("Q", told[:lengths_end]):
            parts.append(told[at : at + length])
            at += length
        return parts

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """What *source* gave, to everybody; what the others give does not count."""
        if self.rank == source and data is None:
            raise TypeError("the source of a broadcast must give something")
        if self.size == 1:
            return data or b""
        if self.rank == 0:
            if source == 0:
                given = data or b""
            else:
                given = bytes(self._receive(_BROADCAST, source - 1))
            self._send_all(_BROADCAST, given, but=source)
            return given
        if self.rank == source:
            given = data or b""
            self._send(0, _BROADCAST, given)
            return given
        return bytes(self._receive(_BROADCAST))

    def barrier(self) -> None:
        """Returns when all members have come here."""
        self.agree(())

    def close(self) -> None:
        """Leaves the group; the others lose a peer at their next operation."""
        for link in self._links:
            link.close()
        self._links = []

    # ------------------------------------------------------------------------------------------------------ messages

    def _send(self, link: int, operation: int, data: bytes | memoryview, known: bytes | None = None) -> None:
        try:
            self._links[link].send(operation, data, known)
        except (OSError, IndexError) as error:
            raise self._lost(link, error) from None

    def _send_all(self, operation: int, data: bytes | memoryview, but: int = 0) -> None:
        known = digest(data)
        for link in range(self.size - 1):
            if link + 1 != but:
                self._send(link, operation, data, known)

    def _receive(self, operation: int, link: int = 0) -> bytearray:
        length, known = self._head(operation, link)
        data = bytearray(length)
        self._fill(link, memoryview(data), known)
        return data

    def _receive_into(self, operation: int, target: memoryview) -> None:
        length, known = self._head(operation, 0)
        if length != len(target):
            raise self._different("arrays of different sizes")
        self._fill(0, target, known)

    def _head(self, operation: int, link: int) -> tuple[int, bytes]:
        try:
            told, length, known = self._links[link].receive_head()
        except (OSError, IndexError) as error:
            raise self._lost(link, error) from None
        if told != operation:
            raise self._different("different operations")
        return length, known

    def _fill(self, link: int, target: memoryview, known: bytes) -> None:
        try:
            self._links[link].receive_body(target, known)
        except (OSError, IndexError) as error:
            raise self._lost(link, error) from None

    def _collect(self, operation: int, length: int | None) -> list[bytearray]:
        """One message of every other member, in the order of ranks, read as they come: a lost one is seen at once."""
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
                        raise self._different("arrays of different sizes")
                    messages[key.data] = message
                    selector.unregister(key.fileobj)
        return [message for message in messages if message is not None]

    def _lost(self, link: int, error: Exception) -> PeerLost:
        self.close()
        return PeerLost(f"rank {link + 1 if self.rank == 0 else 0} is gone: {error}")

    def _different(self, what: str) -> RuntimeError:
        self.close()
        return RuntimeError(f"members of the group came with {what}: all must do the same things in the same order")


def _add(total: memoryview, data: bytearray) -> None:
    """Adds *data* to *total*, number by number."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        mine = numpy.frombuffer(total, dtype=total.format)
        mine += numpy.frombuffer(data, dtype=total.format)
        return
    flat = total.cast("B").cast(total.format)  # type: ignore[call-overload]  # one of _NUMBERS
    for place, value in enumerate(memoryview(data).cast(total.format)):  # type: ignore[call-overload]  # as above
        flat[place] += value
