"""Attackers without the key: wrong peers, a fake hub, a man in the middle."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from levada.runtime.framework import Framework
from levada.runtime.generation_file import World
from levada.runtime.group import Abandoned, Group, PeerLost
from levada.runtime.secure_socket import connect
from tests.runtime.supervisor import free_port, wait_until

HERE = "127.0.0.1"


def new_world(key: str = "ours", address: str = HERE) -> World:
    return World(1, ("g1-0", "g1-1"), address, free_port(), key)


@contextlib.contextmanager
def waiting(rank: int, world: World) -> Iterator[threading.Event]:
    """A member that waits for its peers until the event is set, and must still wait then."""
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        member = pool.submit(Framework().form_group, world, rank, world.digest("job"), cancel.is_set)
        try:
            yield cancel
        finally:
            cancel.set()
        with pytest.raises(Abandoned):
            member.result(30)


def connect_to(port: int) -> socket.socket:
    """A connection to the listener on *port*."""
    connections: list[socket.socket] = []

    def reach() -> bool:
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection((HERE, port), timeout=10))
        return bool(connections)

    wait_until(reach, "a listener", 30)
    return connections[0]


def receiver(connection: socket.socket) -> Callable[[int], bytes]:
    def receive(count: int) -> bytes:
        data = connection.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise ConnectionResetError
        return data

    return receive


def test_a_peer_without_the_key_is_rejected() -> None:
    world = new_world()
    with waiting(0, world), connect_to(world.port) as attacker:
        guessed = world._replace(key="").digest("job")
        with pytest.raises(ConnectionError):  # the hub rejects it
            connect(attacker, 1, guessed, receiver(attacker))
        for proof in (bytes(32), guessed):
            with connect_to(world.port) as blind:
                blind.sendall(struct.pack("<8sI32s", b"LEVADAG2", 1, bytes(32)))
                assert len(blind.recv(64, socket.MSG_WAITALL)) == 64
                blind.sendall(proof)
                assert blind.recv(1) == b""


def test_a_hub_without_the_key_gets_no_peer_and_no_secret() -> None:
    world = new_world()
    guessed = world._replace(key="").digest("job")
    with socket.create_server((HERE, world.port)) as listener, waiting(1, world):
        for answer in (os.urandom(64), bytes(32) + guessed):
            peer, _ = listener.accept()
            with peer:
                hello = peer.recv(44, socket.MSG_WAITALL)
                assert world.digest("job") not in hello
                assert b"ours" not in hello
                peer.sendall(answer)
                assert peer.recv(32) == b""  # the peer sends no proof of its key


def test_a_hub_that_replays_the_handshake_gets_no_peer() -> None:
    world = new_world()
    with socket.create_server((HERE, world.port)) as listener, waiting(1, world):
        peer, _ = listener.accept()
        with peer:
            hello = peer.recv(44, socket.MSG_WAITALL)
            peer.sendall(hello[12:] + hello[12:])
            assert peer.recv(32) == b""


def test_silent_connections_do_not_block_others() -> None:
    world = new_world()
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        hub = pool.submit(Group.open, 0, 2, HERE, world.port, b"ours")
        for _ in range(30):
            stack.enter_context(connect_to(world.port))
        begin = time.monotonic()
        peer = pool.submit(Group.open, 1, 2, HERE, world.port, b"ours")
        for member in (hub.result(60), peer.result(60)):
            member.close()
        assert time.monotonic() - begin < 10


class ModifyingProxy:
    """Proxy between two members that applies *change* to data of the peer after the handshake."""

    def __init__(self, port: int, change: Callable[[bytes], bytes]) -> None:
        self._door = socket.create_server((HERE, 0))
        self.port = int(self._door.getsockname()[1])
        self._hub_port, self._change = port, change
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run)]
        self._threads[0].start()

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for end in self._ends:
            end.close()

    def _run(self) -> None:
        with self._door:
            peer, _ = self._door.accept()
        hub = connect_to(self._hub_port)
        self._ends += [peer, hub]
        self._threads.append(threading.Thread(target=self._forward, args=(hub, peer, lambda data: data)))
        self._threads[-1].start()
        for count in (44, 32):
            hub.sendall(peer.recv(count, socket.MSG_WAITALL))
        self._forward(peer, hub, self._change)

    def _forward(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(change(data))
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _gather_twice(group: Group) -> None:
    for _ in range(2):
        assert group.gather(b"")[1] == b"data"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # modified content
        lambda data: bytes([data[0] ^ 1]) + data[1:],  # modified operation
        lambda data: data[:4] + b"\xff" * 8 + data[12:],  # a length that is too large
        lambda data: data + data,  # replayed message
    ],
)
def test_modified_and_replayed_messages_are_rejected(change: Callable[[bytes], bytes]) -> None:
    port = free_port()
    proxy = ModifyingProxy(port, change)
    try:
        with ThreadPoolExecutor(2) as pool:
            hub = pool.submit(Group.open, 0, 2, HERE, port, b"ours")
            peer = pool.submit(Group.open, 1, 2, HERE, proxy.port, b"ours").result(30)
            gathering = pool.submit(peer.gather, b"data")
            with pytest.raises(PeerLost, match="sign"):
                _gather_twice(hub.result(30))
            with contextlib.suppress(PeerLost):
                gathering.result(30)
            peer.close()
    finally:
        proxy.close()


def test_an_attacker_cannot_run_code_in_a_worker(tmp_path: Path) -> None:
    """A former exploit: connect as rank 1 before the real one, claim the most steps, send a pickle."""

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    world = new_world()
    secret = world._replace(key="").digest("job")
    with waiting(0, world), connect_to(world.port) as attacker, contextlib.suppress(ConnectionError):
        attacker.sendall(struct.pack("<8sI32s", b"LEVADAG2", 1, bytes(32)))
        attacker.recv(64, socket.MSG_WAITALL)
        standing, evil = b"[[1000000, 0, 0, 0, 0], false, 1]", pickle.dumps(Evil())
        for operation, data in ((3, standing), (4, evil)):
            attacker.sendall(secret + struct.pack("<IQ", operation, len(data)) + data)
        assert attacker.recv(1) == b""
    assert not (tmp_path / "made").exists()


def test_without_a_key_workers_do_not_connect_over_a_network() -> None:
    world = new_world(key="", address="192.0.2.7")
    with pytest.raises(RuntimeError, match="install the same version of Levada"):
        Framework().form_group(world, 1, world.digest("job"), lambda: True)
    alone = world._replace(members=("g1-0",))
    assert Framework().form_group(alone, 0, alone.digest("job"), lambda: True).size == 1
