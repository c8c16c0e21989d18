"""The group over TCP: members are threads here, the sockets are real."""

from __future__ import annotations

import math
import socket
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.group import Abandoned, Group, PeerLost
from tests.runtime.supervisor import free_port

T = TypeVar("T")


def together(size: int, member: Callable[[Group], T], **options: Any) -> list[T]:
    """What every member of a group returns, in the order of ranks."""
    port = free_port()

    def join(rank: int) -> T:
        group = Group.open(rank, size, "127.0.0.1", port, **options)
        try:
            return member(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


numbers = st.lists(st.integers(-1000, 1000), min_size=4, max_size=4)


@given(st.lists(numbers, min_size=1, max_size=4), st.sampled_from("dfqi"))
def test_sums_are_of_all_members_for_arrays_and_numpy(rows: list[list[int]], kind: str) -> None:
    def member(group: Group) -> tuple[list[float], list[float]]:
        plain, matrix = array(kind, rows[group.rank]), np.array(rows[group.rank], dtype=kind).reshape(2, 2)
        group.allreduce(plain)
        group.allreduce(matrix)
        return plain.tolist(), matrix.ravel().tolist()

    expected = [float(sum(column)) for column in zip(*rows, strict=True)]
    assert together(len(rows), member) == [(expected, expected)] * len(rows)


def test_sums_have_the_same_bits_everywhere_and_every_time() -> None:
    def member(group: Group) -> bytes:
        values = np.random.default_rng(group.rank).normal(size=1000) * 10.0**group.rank
        group.allreduce(values)
        return values.tobytes()

    assert len({*together(4, member), *together(4, member)}) == 1


def test_everything_else_reaches_everybody() -> None:
    def member(group: Group) -> Any:
        told = group.gather(b"x" * group.rank)
        large = group.broadcast(bytes(5_000_000) if group.rank == 2 else None, source=2)
        small = group.broadcast(b"hub" if group.rank == 0 else None)
        group.barrier()
        return told, len(large), small, group.agree([group.rank, -group.rank, math.inf])

    assert together(3, member) == [([b"", b"x", b"xx"], 5_000_000, b"hub", [2, 0, math.inf])] * 3


def test_alone_every_operation_is_there() -> None:
    group = Group.alone()
    values = array("d", [1.5])
    group.allreduce(values)
    assert (values[0], group.gather(b"a"), group.broadcast(b"b"), group.agree([3])) == (1.5, [b"a"], b"b", [3])


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_lost_member_is_noticed_by_all_at_once(gone: int) -> None:
    def member(group: Group) -> float | None:
        group.barrier()
        if group.rank == gone:
            return None
        begin = time.monotonic()
        with pytest.raises(PeerLost):
            group.allreduce(array("d", [1.0]))
        return time.monotonic() - begin

    waits = [wait for wait in together(3, member) if wait is not None]
    assert len(waits) == 2
    assert max(waits) < 5


def test_a_member_that_does_not_answer_counts_as_lost() -> None:
    answered = threading.Event()

    def member(group: Group) -> str:
        if group.rank == 1:
            answered.wait(30)
            return ""
        try:
            group.barrier()
        except PeerLost as error:
            return str(error)
        finally:
            answered.set()
        return "nothing was noticed"

    assert together(2, member, limit_s=0.2)[0] == "rank 1 did not answer in 0.2 s"


def test_different_operations_are_a_clear_mistake() -> None:
    def member(group: Group) -> str:
        try:
            if group.rank:
                group.gather(b"")
            else:
                group.barrier()
        except (RuntimeError, PeerLost) as error:
            return str(error)
        return ""

    assert "all must do the same things in the same order" in together(2, member)[0]


def test_what_cannot_be_added_is_refused() -> None:
    def member(group: Group) -> str:
        with pytest.raises(TypeError) as caught:
            group.allreduce(bytearray(8))
        return str(caught.value)

    assert all("writable array" in text for text in together(2, member))


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waits_in_vain_can_be_called_off(rank: int) -> None:
    called_off = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Group.open, rank, 2, "127.0.0.1", free_port(), is_abandoned=called_off.is_set)
        called_off.set()
        with pytest.raises(Abandoned):
            waiting.result(30)


def test_strangers_at_the_door_are_sent_away_and_nobody_minds() -> None:
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        hub = pool.submit(Group.open, 0, 2, "127.0.0.1", port, b"ours")
        deadline = time.monotonic() + 30
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
                break
            except OSError:
                assert time.monotonic() < deadline
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: everything\r\n\r\n")
        give_up = threading.Event()
        wrong = pool.submit(Group.open, 1, 2, "127.0.0.1", port, b"theirs", is_abandoned=give_up.is_set)
        right = pool.submit(Group.open, 1, 2, "127.0.0.1", port, b"ours")
        groups = [hub.result(30), right.result(30)]
        give_up.set()
        with pytest.raises(Abandoned):
            wrong.result(30)
        stranger.close()
        sums = list(pool.map(lambda group: group.agree([group.rank]), groups))
        for group in groups:
            group.close()
    assert sums == [[1], [1]]
