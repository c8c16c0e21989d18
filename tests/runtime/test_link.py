"""Strangers among the members: they know all but the key, listen at the port, or sit in between."""

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
from levada.runtime.group import Abandoned, Group, PeerLost
from levada.runtime.link import knock
from levada.runtime.world import World
from tests.runtime.supervisor import free_port, wait_until

HERE = "127.0.0.1"


def world(key: str = "ours", address: str = HERE) -> World:
    return World(1, ("g1-0", "g1-1"), address, free_port(), key)


@contextlib.contextmanager
def waiting(rank: int, told: World) -> Iterator[threading.Event]:
    """A member that waits for the others of its world until the event is set; it must still wait then."""
    given_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        member = pool.submit(Framework().meet, told, rank, told.digest("job"), given_up.is_set)
        try:
            yield given_up
        finally:
            given_up.set()
        with pytest.raises(Abandoned):
            member.result(30)


def reached(port: int) -> socket.socket:
    """A connection to whoever listens there."""
    found: list[socket.socket] = []

    def reach() -> bool:
        with contextlib.suppress(OSError):
            found.append(socket.create_connection((HERE, port), timeout=10))
        return bool(found)

    wait_until(reach, "somebody listens", 30)
    return found[0]


def receiver(connection: socket.socket) -> Callable[[int], bytes]:
    def receive(count: int) -> bytes:
        data = connection.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise ConnectionResetError
        return data

    return receive


def test_a_guest_who_knows_all_but_the_key_is_turned_away() -> None:
    told = world()
    with waiting(0, told), reached(told.port) as stranger:
        guessed = told._replace(key="").digest("job")
        with pytest.raises(ConnectionError):  # it learns by it that it cannot prove anything
            knock(stranger, 1, guessed, receiver(stranger))
        for proof in (bytes(32), guessed):
            with reached(told.port) as blind:
                blind.sendall(struct.pack("<8sI32s", b"LEVADAG2", 1, bytes(32)))
                assert len(blind.recv(64, socket.MSG_WAITALL)) == 64
                blind.sendall(proof)
                assert blind.recv(1) == b""


def test_a_hub_that_knows_all_but_the_key_gets_nobody_and_hears_no_secret() -> None:
    told = world()
    guessed = told._replace(key="").digest("job")
    with socket.create_server((HERE, told.port)) as door, waiting(1, told):
        for answer in (os.urandom(64), bytes(32) + guessed):
            guest, _ = door.accept()
            with guest:
                hello = guest.recv(44, socket.MSG_WAITALL)
                assert told.digest("job") not in hello
                assert b"ours" not in hello
                guest.sendall(answer)
                assert guest.recv(32) == b""  # not even its own proof


def test_a_hub_that_mirrors_what_a_guest_says_gets_nobody() -> None:
    told = world()
    with socket.create_server((HERE, told.port)) as door, waiting(1, told):
        guest, _ = door.accept()
        with guest:
            hello = guest.recv(44, socket.MSG_WAITALL)
            guest.sendall(hello[12:] + hello[12:])
            assert guest.recv(32) == b""


def test_strangers_who_say_nothing_hold_nobody_up() -> None:
    told = world()
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        hub = pool.submit(Group.open, 0, 2, HERE, told.port, b"ours")
        for _ in range(30):
            stack.enter_context(reached(told.port))
        begin = time.monotonic()
        guest = pool.submit(Group.open, 1, 2, HERE, told.port, b"ours")
        for member in (hub.result(60), guest.result(60)):
            member.close()
        assert time.monotonic() - begin < 10


class Between:
    """Passes on what two members say to each other; what the guest says after the greeting goes through *change*."""

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
            guest, _ = self._door.accept()
        hub = reached(self._hub_port)
        self._ends += [guest, hub]
        self._threads.append(threading.Thread(target=self._pass_on, args=(hub, guest, lambda data: data)))
        self._threads[-1].start()
        for count in (44, 32):
            hub.sendall(guest.recv(count, socket.MSG_WAITALL))
        self._pass_on(guest, hub, self._change)

    def _pass_on(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(change(data))
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _gather_twice(group: Group) -> None:
    for _ in range(2):
        assert group.gather(b"")[1] == b"what it says"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),  # another content
        lambda data: bytes([data[0] ^ 1]) + data[1:],  # another operation
        lambda data: data[:4] + b"\xff" * 8 + data[12:],  # so much that it would never fit
        lambda data: data + data,  # the same again
    ],
)
def test_what_somebody_in_between_changes_or_repeats_is_no_message(change: Callable[[bytes], bytes]) -> None:
    port = free_port()
    between = Between(port, change)
    try:
        with ThreadPoolExecutor(2) as pool:
            hub = pool.submit(Group.open, 0, 2, HERE, port, b"ours")
            guest = pool.submit(Group.open, 1, 2, HERE, between.port, b"ours").result(30)
            telling = pool.submit(guest.gather, b"what it says")
            with pytest.raises(PeerLost, match="sign"):
                _gather_twice(hub.result(30))
            with contextlib.suppress(PeerLost):
                telling.result(30)
            guest.close()
    finally:
        between.close()


def test_no_stranger_makes_a_worker_run_code(tmp_path: Path) -> None:
    """As it was done once: be rank 1 before the real one is, claim most steps, and send a pickle."""

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    told = world()
    secret = told._replace(key="").digest("job")
    with waiting(0, told), reached(told.port) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(struct.pack("<8sI32s", b"LEVADAG2", 1, bytes(32)))
        stranger.recv(64, socket.MSG_WAITALL)
        standing, evil = b"[[1000000, 0, 0, 0, 0], false, 1]", pickle.dumps(Evil())
        for operation, data in ((3, standing), (4, evil)):
            stranger.sendall(secret + struct.pack("<IQ", operation, len(data)) + data)
        assert stranger.recv(1) == b""
    assert not (tmp_path / "made").exists()


def test_without_a_key_workers_do_not_meet_over_a_network() -> None:
    told = world(key="", address="192.0.2.7")
    with pytest.raises(RuntimeError, match="install the same Levada"):
        Framework().meet(told, 1, told.digest("job"), lambda: True)
    alone = told._replace(members=("g1-0",))
    assert Framework().meet(alone, 0, alone.digest("job"), lambda: True).size == 1
