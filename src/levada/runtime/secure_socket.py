"""Authenticated connection between two members of a group.

Both ends prove that they know the secret of the group, and every message is signed:

    guest   LEVADAG2, its rank, a nonce
    hub     a nonce, and a proof over both nonces
    guest   its proof over both nonces

The secret itself is never sent. Each later message has a number and a signature under a key that only these two can
derive, one per direction. So messages that a third party injects, changes, replays or reflects are rejected.
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
#: Operation, length and digest of the body; followed by the signature of these and of the message number.
_HEADER = struct.Struct("<IQ32s")
_HEAD = _HEADER.size + _PROOF
_NUMBER = struct.Struct("<Q")
#: Messages up to this size are sent with one call.
_SMALL = 1 << 16


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """The digest of *data* in the head of a message."""
    return hashlib.sha256(data).digest()


class Link:
    """One end of an authenticated connection; created by `Handshake` or `connect`."""

    def __init__(self, connection: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self.connection = connection
        self._send_key, self._receive_key = send_key, receive_key
        self._sent_count = self._received_count = 0

    def fileno(self) -> int:
        """The file descriptor, for selectors."""
        return self.connection.fileno()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def send(self, operation: int, data: bytes | memoryview, checksum: bytes | None = None) -> None:
        """Send a message; *checksum* is the digest of *data*, if it is known."""
        head = _HEADER.pack(operation, len(data), checksum or digest(data))
        head += _sign(self._send_key, _NUMBER.pack(self._sent_count), head)
        self._sent_count += 1
        if len(data) <= _SMALL:
            self.connection.sendall(head + bytes(data))
        else:
            self.connection.sendall(head)
            self.connection.sendall(data)

    def receive_head(self) -> tuple[int, int, bytes]:
        """Operation, length and digest of the next message; raises ConnectionError if the peer did not sign it."""
        head = bytearray(_HEAD)
        self._fill(memoryview(head))
        header, signature = bytes(head[: _HEADER.size]), bytes(head[_HEADER.size :])
        if not hmac.compare_digest(signature, _sign(self._receive_key, _NUMBER.pack(self._received_count), header)):
            raise ConnectionAbortedError("invalid signature")
        self._received_count += 1
        operation, length, checksum = _HEADER.unpack(header)
        return operation, length, checksum

    def receive_body(self, target: memoryview, checksum: bytes) -> None:
        """Read the body of a message into *target*; raises ConnectionError if it does not match the head."""
        self._fill(target)
        if not hmac.compare_digest(digest(target), checksum):
            raise ConnectionAbortedError("the body does not match its signed digest")

    def _fill(self, target: memoryview) -> None:
        while target:
            count = self.connection.recv_into(target)
            if count == 0:
                raise ConnectionResetError("the connection was closed")
            target = target[count:]


class Handshake:
    """The hub's side of a handshake with a peer; never blocks."""

    def __init__(self, connection: socket.socket, size: int, secret: bytes) -> None:
        self.connection = connection
        self.rank = 0
        self._size, self._secret = size, secret
        self._received = bytearray()
        self._nonces = b""

    def receive(self) -> Link | None:
        """Read from the peer; returns the link once it has authenticated. Raises OSError if it is not a member."""
        wanted = _PROOF if self._nonces else _HELLO.size
        data = self.connection.recv(wanted - len(self._received))
        if not data:
            raise ConnectionResetError
        self._received += data
        if len(self._received) < wanted:
            return None
        message, self._received = bytes(self._received), bytearray()
        if not self._nonces:
            self._answer(message)
            return None
        if not hmac.compare_digest(message, _prove(self._secret, b"guest", self.rank, self._nonces)):
            raise ConnectionAbortedError
        mine, its = _keys(self._secret, self.rank, self._nonces)
        return Link(self.connection, mine, its)

    def _answer(self, message: bytes) -> None:
        magic, self.rank, nonce = _HELLO.unpack(message)
        if magic != _MAGIC or not 0 < self.rank < self._size:
            raise ConnectionAbortedError
        mine = os.urandom(_NONCE)
        self._nonces = nonce + mine
        # Small enough for the send buffer of a new connection.
        self.connection.sendall(mine + _prove(self._secret, b"hub", self.rank, self._nonces))


def connect(connection: socket.socket, rank: int, secret: bytes, receive: Callable[[int], bytes]) -> Link:
    """Authenticate with the hub; *receive* reads the given number of bytes. Raises ConnectionError on failure."""
    nonce = os.urandom(_NONCE)
    connection.sendall(_HELLO.pack(_MAGIC, rank, nonce))
    answer = receive(_ANSWER)
    nonces, proof = nonce + answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _prove(secret, b"hub", rank, nonces)):
        raise ConnectionAbortedError("the peer is not the hub")
    connection.sendall(_prove(secret, b"guest", rank, nonces))
    its, mine = _keys(secret, rank, nonces)
    return Link(connection, mine, its)


def _prove(secret: bytes, who: bytes, rank: int, nonces: bytes) -> bytes:
    return _sign(secret, b"levada " + who, struct.pack("<I", rank), nonces)


def _keys(secret: bytes, rank: int, nonces: bytes) -> tuple[bytes, bytes]:
    """The signing keys of the hub and of the guest for this connection."""
    hub, guest = (_prove(secret, who, rank, nonces) for who in (b"hub signs", b"guest signs"))
    return hub, guest


def _sign(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")
