"""How the members of a group find each other: rank 0 opens a door, the others knock, and all prove who they are."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable

from levada.runtime.link import Knock, Link, knock

_WELCOME = 0
_POLL_S = 0.02
#: Seconds between two attempts to reach the hub, in the first few seconds and later.
_SHORT_S, _HURRY_S, _LONG_S = 0.004, 3.0, 0.05
#: Who knocks has so long to prove itself, and no more than so many do it at a time.
_PROOF_S, _KNOCKS = 5.0, 256


class Abandoned(Exception):
    """Nobody waits for this group any more."""


def gather_members(size: int, address: str, port: int, secret: bytes, is_abandoned: Callable[[], bool]) -> list[Link]:
    """The hub's links in the order of ranks, as soon as all are there. Strangers hold nobody up."""
    members: dict[int, Link] = {}
    #: Until when each may take.
    knocks: dict[Knock, float] = {}
    try:
        with _listen(address, port, is_abandoned) as door, selectors.DefaultSelector() as selector:
            door.setblocking(False)
            selector.register(door, selectors.EVENT_READ)
            while len(members) < size - 1:
                if is_abandoned():
                    raise Abandoned
                for key, _ in selector.select(_POLL_S):
                    if key.data is None:
                        _open(door, selector, knocks, size, secret)
                    elif key.data in knocks:
                        _hear(key.data, selector, knocks, members)
                for late in [each for each, until in knocks.items() if time.monotonic() > until]:
                    _send_away(late, selector, knocks)
        for member in members.values():
            member.connection.settimeout(_PROOF_S)
            member.send(_WELCOME, b"")
    except BaseException:
        for member in members.values():
            member.close()
        raise
    finally:
        for each in knocks:
            each.connection.close()
    return [members[rank] for rank in range(1, size)]


def _open(
    door: socket.socket, selector: selectors.BaseSelector, knocks: dict[Knock, float], size: int, secret: bytes
) -> None:
    with contextlib.suppress(OSError):
        guest, _ = door.accept()
        guest.setblocking(False)
        _make_quick(guest)
        if len(knocks) >= _KNOCKS:
            _send_away(next(iter(knocks)), selector, knocks)
        fresh = Knock(guest, size, secret)
        knocks[fresh] = time.monotonic() + _PROOF_S
        selector.register(guest, selectors.EVENT_READ, fresh)


def _hear(guest: Knock, selector: selectors.BaseSelector, knocks: dict[Knock, float], members: dict[int, Link]) -> None:
    try:
        link = guest.hear()
    except BlockingIOError:
        return
    except OSError:
        _send_away(guest, selector, knocks)
        return
    if link is not None:
        selector.unregister(guest.connection)
        del knocks[guest]
        if guest.rank in members:
            members[guest.rank].close()  # it came again
        members[guest.rank] = link


def _send_away(guest: Knock, selector: selectors.BaseSelector, knocks: dict[Knock, float]) -> None:
    selector.unregister(guest.connection)
    guest.connection.close()
    del knocks[guest]


def _listen(address: str, port: int, is_abandoned: Callable[[], bool]) -> socket.socket:
    while True:
        door = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((address, port))
            door.listen(128)
            return door
        except OSError as error:
            door.close()
            if error.errno == errno.EADDRNOTAVAIL and address:
                # The others know this machine by an address that is not its own: behind a translation, say.
                address = ""
            elif error.errno != errno.EADDRINUSE:
                raise
            if is_abandoned():
                raise Abandoned from None
            time.sleep(_POLL_S)


def reach_hub(rank: int, address: str, port: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Link:
    """The link to the hub, as soon as it has all members."""
    since = time.monotonic()
    while not is_abandoned():
        # Everybody stands still at first; who waits for a job to start is in no hurry.
        pause_s = _SHORT_S if time.monotonic() - since < _HURRY_S else _LONG_S
        try:
            connection = socket.create_connection((address, port), timeout=1.0)
        except OSError:
            time.sleep(pause_s)
            continue
        try:
            link = _knock(connection, rank, secret, is_abandoned)
            if link is not None:
                return link
        except OSError:
            pass
        connection.close()
        time.sleep(pause_s)
    raise Abandoned


def _knock(connection: socket.socket, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Link | None:
    """The link, once the hub has proved itself and has all members; None where something else answers."""

    def receive(count: int) -> bytes:
        until = time.monotonic() + _PROOF_S
        data = b""
        while len(data) < count:
            try:
                more = connection.recv(count - len(data))
            except TimeoutError:
                if is_abandoned() or time.monotonic() > until:
                    raise
                continue
            if not more:
                raise ConnectionResetError
            data += more
        return data

    _make_quick(connection)
    connection.settimeout(_POLL_S)
    link = knock(connection, rank, secret, receive)
    # The hub waits for the others, perhaps for long.
    while True:
        try:
            connection.recv(1, socket.MSG_PEEK)
            break
        except TimeoutError:
            if is_abandoned():
                raise
    connection.settimeout(_PROOF_S)
    return link if link.receive_head()[0] == _WELCOME else None


def _make_quick(link: socket.socket) -> None:
    """Sends small messages at once, and notices a machine that vanished without a word."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The last, in ms: while something that was sent is not acknowledged, nobody is asked whether he is alive.
    limits = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
    for name, value in limits:
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
