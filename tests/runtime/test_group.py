"""Group over TCP: members are threads, the sockets are real."""

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


def run_members(size: int, member: Callable[[Group], T], **options: Any) -> list[T]:
    """Run *member* in every member of a group; return the results by rank."""
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
def test_sums_include_all_members(rows: list[list[int]], kind: str) -> None:
    def member(group: Group) -> tuple[list[float], list[float]]:
        plain, matrix = array(kind, rows[group.rank]), np.array(rows[group.rank], dtype=kind).reshape(2, 2)
        group.allreduce(plain)
        group.allreduce(matrix)
        return plain.tolist(), matrix.ravel().tolist()

    expected = [float(sum(column)) for column in zip(*rows, strict=True)]
    assert run_members(len(rows), member) == [(expected, expected)] * len(rows)


def test_sums_are_bit_identical_on_all_members() -> None:
    def member(group: Group) -> bytes:
        values = np.random.default_rng(group.rank).normal(size=1000) * 10.0**group.rank
        group.allreduce(values)
        return values.tobytes()

    assert len({*run_members(4, member), *run_members(4, member)}) == 1


def test_broadcast_and_gather_reach_all_members() -> None:
    def member(group: Group) -> Any:
        gathered = group.gather(b"x" * group.rank)
        large = group.broadcast(bytes(5_000_000) if group.rank == 2 else None, source=2)
        small = group.broadcast(b"hub" if group.rank == 0 else None)
        group.barrier()
        return gathered, len(large), small, group.agree([group.rank, -group.rank, math.inf])

    assert run_members(3, member) == [([b"", b"x", b"xx"], 5_000_000, b"hub", [2, 0, math.inf])] * 3


def test_a_single_member_supports_every_operation() -> None:
    group = Group.alone()
    values = array("d", [1.5])
    group.allreduce(values)
    assert (values[0], group.gather(b"a"), group.broadcast(b"b"), group.agree([3])) == (1.5, [b"a"], b"b", [3])


@pytest.mark.parametrize("lost_rank", [0, 1, 2])
def test_a_lost_member_is_detected_by_all(lost_rank: int) -> None:
    def member(group: Group) -> float | None:
        group.barrier()
        if group.rank == lost_rank:
            return None
        begin = time.monotonic()
        with pytest.raises(PeerLost):
            group.allreduce(array("d", [1.0]))
        return time.monotonic() - begin

    waits = [wait for wait in run_members(3, member) if wait is not None]
    assert len(waits) == 2
    assert max(waits) < 5


def test_a_member_that_does_not_respond_is_lost() -> None:
    timed_out = threading.Event()

    def member(group: Group) -> str:
        if group.rank == 1:
            timed_out.wait(30)
            return ""
        try:
            group.barrier()
        except PeerLost as error:
            return str(error)
        finally:
            timed_out.set()
        return "no PeerLost"

    assert run_members(2, member, limit_s=0.2)[0] == "rank 1 did not answer in 0.2 s"


def test_different_operations_raise_a_clear_error() -> None:
    def member(group: Group) -> str:
        try:
            if group.rank:
                group.gather(b"")
            else:
                group.barrier()
        except (RuntimeError, PeerLost) as error:
            return str(error)
        return ""

    assert "all must do the same things in the same order" in run_members(2, member)[0]


def test_values_that_cannot_be_summed_are_rejected() -> None:
    def member(group: Group) -> str:
        with pytest.raises(TypeError) as caught:
            group.allreduce(bytearray(8))
        return str(caught.value)

    assert all("writable array" in text for text in run_members(2, member))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_waiting_member_can_be_cancelled(rank: int) -> None:
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Group.open, rank, 2, "127.0.0.1", free_port(), is_abandoned=cancelled.is_set)
        cancelled.set()
        with pytest.raises(Abandoned):
            waiting.result(30)


def test_unauthenticated_connections_are_closed_without_effect() -> None:
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        hub = pool.submit(Group.open, 0, 2, "127.0.0.1", port, b"right key")
        deadline = time.monotonic() + 30
        while True:
            try:
                intruder = socket.create_connection(("127.0.0.1", port), timeout=1)
                break
            except OSError:
                assert time.monotonic() < deadline
        intruder.sendall(b"GET / HTTP/1.1\r\nHost: example\r\nAccept: everything\r\n\r\n")
        cancel = threading.Event()
        wrong = pool.submit(Group.open, 1, 2, "127.0.0.1", port, b"wrong key", is_abandoned=cancel.is_set)
        right = pool.submit(Group.open, 1, 2, "127.0.0.1", port, b"right key")
        groups = [hub.result(30), right.result(30)]
        cancel.set()
        with pytest.raises(Abandoned):
            wrong.result(30)
        intruder.close()
        sums = list(pool.map(lambda group: group.agree([group.rank]), groups))
        for group in groups:
            group.close()
    assert sums == [[1], [1]]
