"""Rendezvous of a group: members connect to rank 0 and authenticate each other."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable

from levada.runtime.secure_socket import Handshake, Link, connect

_WELCOME = 0
_POLL_S = 0.02
#: Pause between two attempts to reach the hub, in the first 3 s and later.
_FAST_S, _FAST_FOR_S, _SLOW_S = 0.004, 3.0, 0.05
#: Time limit of a handshake, and most handshakes at a time.
_PROOF_S, _MAX_HANDSHAKES = 5.0, 256


class Abandoned(Exception):
    """The group is no longer wanted."""


def gather_members(size: int, address: str, port: int, secret: bytes, is_abandoned: Callable[[], bool]) -> list[Link]:
    """Wait for all members; returns the hub's links in the order of ranks. Strangers cannot block it."""
    members: dict[int, Link] = {}
    #: Handshakes under way, and their deadlines.
    handshakes: dict[Handshake, float] = {}
    try:
        with _listen(address, port, is_abandoned) as listener, selectors.DefaultSelector() as selector:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
            while len(members) < size - 1:
                if is_abandoned():
                    raise Abandoned
                for key, _ in selector.select(_POLL_S):
                    if key.data is None:
                        _accept(listener, selector, handshakes, size, secret)
                    elif key.data in handshakes:
                        _continue(key.data, selector, handshakes, members)
                for late in [handshake for handshake, until in handshakes.items() if time.monotonic() > until]:
                    _reject(late, selector, handshakes)
        for member in members.values():
            member.connection.settimeout(_PROOF_S)
            member.send(_WELCOME, b"")
    except BaseException:
        for member in members.values():
            member.close()
        raise
    finally:
        for handshake in handshakes:
            handshake.connection.close()
    return [members[rank] for rank in range(1, size)]


def _accept(
    listener: socket.socket,
    selector: selectors.BaseSelector,
    handshakes: dict[Handshake, float],
    size: int,
    secret: bytes,
) -> None:
    with contextlib.suppress(OSError):
        peer, _ = listener.accept()
        peer.setblocking(False)
        _tune(peer)
        if len(handshakes) >= _MAX_HANDSHAKES:
            _reject(next(iter(handshakes)), selector, handshakes)
        handshake = Handshake(peer, size, secret)
        handshakes[handshake] = time.monotonic() + _PROOF_S
        selector.register(peer, selectors.EVENT_READ, handshake)


def _continue(
    peer: Handshake, selector: selectors.BaseSelector, handshakes: dict[Handshake, float], members: dict[int, Link]
) -> None:
    try:
        link = peer.receive()
    except BlockingIOError:
        return
    except OSError:
        _reject(peer, selector, handshakes)
        return
    if link is not None:
        selector.unregister(peer.connection)
        del handshakes[peer]
        if peer.rank in members:
            members[peer.rank].close()  # it reconnected
        members[peer.rank] = link


def _reject(peer: Handshake, selector: selectors.BaseSelector, handshakes: dict[Handshake, float]) -> None:
    selector.unregister(peer.connection)
    peer.connection.close()
    del handshakes[peer]


def _listen(address: str, port: int, is_abandoned: Callable[[], bool]) -> socket.socket:
    while True:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRNOTAVAIL and address:
                # Other machines reach this one at an address that is not its own, e.g. behind NAT.
                address = ""
            elif error.errno != errno.EADDRINUSE:
                raise
            if is_abandoned():
                raise Abandoned from None
            time.sleep(_POLL_S)


def reach_hub(rank: int, address: str, port: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Link:
    """Connect to the hub and wait until it has all members; returns the link."""
    since = time.monotonic()
    while not is_abandoned():
        # Fast at first, since all members stand still; a start of a job may take longer.
        pause_s = _FAST_S if time.monotonic() - since < _FAST_FOR_S else _SLOW_S
        try:
            connection = socket.create_connection((address, port), timeout=1.0)
        except OSError:
            time.sleep(pause_s)
            continue
        try:
            link = _authenticate(connection, rank, secret, is_abandoned)
            if link is not None:
                return link
        except OSError:
            pass
        connection.close()
        time.sleep(pause_s)
    raise Abandoned


def _authenticate(connection: socket.socket, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Link | None:
    """Authenticate with the hub and wait until it has all members; None if the peer is not the hub."""

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

    _tune(connection)
    connection.settimeout(_POLL_S)
    link = connect(connection, rank, secret, receive)
    # The hub may wait long for the other members.
    while True:
        try:
            connection.recv(1, socket.MSG_PEEK)
            break
        except TimeoutError:
            if is_abandoned():
                raise
    connection.settimeout(_PROOF_S)
    return link if link.receive_head()[0] == _WELCOME else None


def _tune(link: socket.socket) -> None:
    """Send small messages at once and detect machines that vanish."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The last one, in ms, replaces keepalive probes while sent data is not acknowledged.
    limits = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000))
    for name, value in limits:
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
