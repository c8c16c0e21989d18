"""Many HTTP clients in one cheap process: plain sockets, one thread.

Each client sends the next submission when it has the response, over a persistent connection.
`python -m bench.clients FOLDER SUBMISSIONS CLIENTS DOCUMENT` prints the seconds of each submission, then its own CPU
seconds.
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_HEAD_END = b"\r\n\r\n"


class Client:
    """One connection and its current submission."""

    def __init__(self, address: tuple[str, int], name: str, head: bytes, body: bytes, submissions: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waits: list[float] = []
        self._name, self._head, self._body, self.left = name, head, body, submissions
        self._received = b""

    def send(self) -> None:
        """Send the next submission, with a new idempotency key."""
        key = b"Idempotency-Key: %s-%d\r\n\r\n" % (self._name.encode(), self.left)
        self._received, self._began = b"", time.monotonic()
        self.socket.sendall(self._head + key + self._body)

    def receive(self) -> None:
        """Receive part of a response; after a whole one, send the next submission."""
        part = self.socket.recv(1 << 16)
        if not part:
            raise ConnectionError("the server closed the connection")
        self._received += part
        head, end, body = self._received.partition(_HEAD_END)
        if not end or len(body) < _length(head):
            return
        self.waits.append(time.monotonic() - self._began)
        if not head.startswith(b"HTTP/1.1 201 "):
            raise RuntimeError(self._received.decode())
        self.left -= 1
        if self.left:
            self.send()


def _length(head: bytes) -> int:
    at = head.lower().index(b"content-length:") + len(b"content-length:")
    return int(head[at:].split(b"\r\n", 1)[0])


def run(folder: Path, document: dict[str, Any], submissions: int, count: int) -> list[float]:
    """Send *submissions* over *count* clients and return the seconds of each."""
    server = json.loads((folder / "server.json").read_text())
    url = urlsplit(server["url"])
    assert url.hostname is not None
    assert url.port is not None
    body = json.dumps([document]).encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {server['token']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    ).encode()
    counts = [submissions // count + (n < submissions % count) for n in range(count)]
    prefix = secrets.token_hex(4)
    clients = [Client((url.hostname, url.port), f"{prefix}-{n}", head, body, share) for n, share in enumerate(counts)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send()
        while any(client.left for client in clients):
            for key, _ in selector.select():
                key.data.receive()
    for client in clients:
        client.socket.close()
    return [wait for client in clients for wait in client.waits]


def main() -> None:
    """Run the clients with the arguments of the command line."""
    from levada.sdk.prepare import sendable

    folder, submissions, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    document = json.loads(sys.argv[4])
    print("\n".join(f"{wait:.6f}" for wait in run(folder, sendable(document), submissions, count)))
    print(f"{time.process_time():.3f}")


if __name__ == "__main__":
    main()
