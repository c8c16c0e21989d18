"""A connection between two members of a group: both have proved that they know its secret, and every message is signed.

    guest   LEVADAG2, its rank, a nonce
    hub     a nonce, and a proof over both nonces
    guest   its proof over both nonces

The secret itself never travels. After that each message has a number and a signature under a key that only these two
can make, for each direction another one: what a stranger sends, changes, repeats or mirrors is no message.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Callable

_MAGIC = b"LEVADAG2"
_NONCE = _PROOF = 32
_HELLO = struct.Struct(f"<8sI{_NONCE}s")
_ANSWER = _NONCE + _PROOF
#: Operation, bytes that follow, and their digest; then comes the signature of these and of the message's number.
_HEADER = struct.Struct("<IQ32s")
_HEAD = _HEADER.size + _PROOF
_NUMBER = struct.Struct("<Q")
#: Messages up to so many bytes are sent in one piece.
_SMALL = 1 << 16


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """What stands for *data* in a message's head."""
    return hashlib.sha256(data).digest()


class Link:
    """One end of a connection whose other end is known; `Knock` and `knock` make them."""

    def __init__(self, connection: socket.socket, sends: bytes, hears: bytes) -> None:
        self.connection = connection
        self._sends, self._hears = sends, hears
        self._sent = self._heard = 0

    def fileno(self) -> int:
        """For selectors."""
        return self.connection.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    def send(self, operation: int, data: bytes | memoryview, known: bytes | None = None) -> None:
        """Sends a message; *known* is the digest of *data*, where somebody has it already."""
        head = _HEADER.pack(operation, len(data), known or digest(data))
        head += _sign(self._sends, _NUMBER.pack(self._sent), head)
        self._sent += 1
        if len(data) <= _SMALL:
            self.connection.sendall(head + bytes(data))
        else:
            self.connection.sendall(head)
            self.connection.sendall(data)

    def receive_head(self) -> tuple[int, int, bytes]:
        """Operation, length and digest of the next message; raises ConnectionError where it is not of the peer."""
        head = bytearray(_HEAD)
        self._fill(memoryview(head))
        told, signature = bytes(head[: _HEADER.size]), bytes(head[_HEADER.size :])
        if not hmac.compare_digest(signature, _sign(self._hears, _NUMBER.pack(self._heard), told)):
            raise ConnectionAbortedError("what came is not signed by it")
        self._heard += 1
        operation, length, known = _HEADER.unpack(told)
        return operation, length, known

    def receive_body(self, target: memoryview, known: bytes) -> None:
        """Fills *target* with what follows a head; raises ConnectionError where it is not what the head says."""
        self._fill(target)
        if not hmac.compare_digest(digest(target), known):
            raise ConnectionAbortedError("what came is not what it signed")

    def _fill(self, target: memoryview) -> None:
        while target:
            count = self.connection.recv_into(target)
            if count == 0:
                raise ConnectionResetError("its end is closed")
            target = target[count:]


class Knock:
    """Somebody at the hub's door, until it has proved that it is a member. Nothing here waits."""

    def __init__(self, connection: socket.socket, size: int, secret: bytes) -> None:
        self.connection = connection
        self.rank = 0
        self._size, self._secret = size, secret
        self._said = bytearray()
        self._nonces = b""

    def hear(self) -> Link | None:
        """Takes what it has said: the link, once it has proved itself; raises OSError where it is a stranger."""
        wanted = _PROOF if self._nonces else _HELLO.size
        data = self.connection.recv(wanted - len(self._said))
        if not data:
            raise ConnectionResetError
        self._said += data
        if len(self._said) < wanted:
            return None
        said, self._said = bytes(self._said), bytearray()
        if not self._nonces:
            self._answer(said)
            return None
        if not hmac.compare_digest(said, _prove(self._secret, b"guest", self.rank, self._nonces)):
            raise ConnectionAbortedError
        mine, its = _keys(self._secret, self.rank, self._nonces)
        return Link(self.connection, mine, its)

    def _answer(self, said: bytes) -> None:
        magic, self.rank, nonce = _HELLO.unpack(said)
        if magic != _MAGIC or not 0 < self.rank < self._size:
            raise ConnectionAbortedError
        mine = os.urandom(_NONCE)
        self._nonces = nonce + mine
        # So little fits into the buffer of a new connection at once.
        self.connection.sendall(mine + _prove(self._secret, b"hub", self.rank, self._nonces))


def knock(connection: socket.socket, rank: int, secret: bytes, receive: Callable[[int], bytes]) -> Link:
    """The link of a guest to the hub; *receive* gives so many bytes. Raises ConnectionError where it is not the hub."""
    nonce = os.urandom(_NONCE)
    connection.sendall(_HELLO.pack(_MAGIC, rank, nonce))
    answer = receive(_ANSWER)
    nonces, proof = nonce + answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _prove(secret, b"hub", rank, nonces)):
        raise ConnectionAbortedError("whoever listens there is not the hub")
    connection.sendall(_prove(secret, b"guest", rank, nonces))
    its, mine = _keys(secret, rank, nonces)
    return Link(connection, mine, its)


def _prove(secret: bytes, who: bytes, rank: int, nonces: bytes) -> bytes:
    return _sign(secret, b"levada " + who, struct.pack("<I", rank), nonces)


def _keys(secret: bytes, rank: int, nonces: bytes) -> tuple[bytes, bytes]:
    """What the hub and what the guest signs with, in this connection alone."""
    hub, guest = (_prove(secret, who, rank, nonces) for who in (b"hub signs", b"guest signs"))
    return hub, guest


def _sign(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")
