"""Rounds of the published simulator: both implementations agree with what is worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core.plane import DEVICE, FREE, SHARED, SLOT
from levada.kernels import published_world as world
from tests.kernel_modes import both_modes
from tests.kernels.twins import both

KERNELS = both_modes("published_world")


def see(owner: list[int], shared: list[tuple[int, int]], number: list[int], observed: list[int]) -> Any:
    """Turns and devices; *shared* are slots and devices of halves."""
    rows = np.zeros((6, len(shared)), np.int64)
    rows[[SLOT, DEVICE]] = np.array(shared, np.int64).reshape(-1, 2).T
    columns = np.array(number), np.arange(len(number)) + 1, np.array(observed)
    return both(KERNELS, "see", np.array(owner, np.int32), rows, np.arange(len(owner)) // 2, *columns)


def test_jobs_by_number_and_two_on_the_same_devices_as_one() -> None:
    owner = [2, SHARED, SHARED, 2, FREE, 0, 3]
    turns, devices = see(owner, [(4, 2), (1, 1), (4, 1), (1, 2)], [9, 8, 5, 6, 7], [1, 1, 2, 0, 1])
    assert turns[world.FIRST].tolist() == [5, 7, 9]
    assert turns[world.SECOND].tolist() == [-1, 8, -1]
    assert turns[world.TYPE].tolist() == [0, 0, 2]
    assert turns[world.STOP].tolist() == [2, 4, 5]
    assert devices.tolist() == [0, 3, 1, 2, 5]


@given(owner=st.lists(st.integers(-1, 4), max_size=12), observed=st.lists(st.integers(0, 1), min_size=5, max_size=5))
def test_every_device_of_a_job_that_runs_is_in_its_turn(owner: list[int], observed: list[int]) -> None:
    number = [4, 2, 9, 1, 0]
    turns, devices = see(owner, [], number, observed)
    stops = [0, *turns[world.STOP].tolist()]
    found = {first: devices[stops[t] : stops[t + 1]].tolist() for t, first in enumerate(turns[world.FIRST].tolist())}
    assert found == {
        number[slot]: [device for device, its in enumerate(owner) if its == slot]
        for slot in range(5)
        if observed[slot] and slot in owner
    }
    assert list(found) == sorted(found)
    work = np.zeros((3, 10))
    work[world.LEFT, 4] = math.nan
    alive = len(found.keys() - {4})
    assert both(KERNELS, "leases", turns, devices, turns, devices, work) == (alive, alive)
    moved = both(KERNELS, "leases", turns, devices, turns, devices + 1, work)
    assert moved == (alive, 0)


def test_the_end_of_a_round() -> None:
    #              done   fails  goes on  a pair of which one is done
    first, second = [0, 1, 2, 3], [-1, -1, -1, 4]
    turns = np.array([first, second, [0, 0, 1, 1], [1, 2, 1, 1], [1, 3, 4, 5]])
    rates = np.array([[1.0, 1.0, 2.5, 1.0], [0.0, 0.0, 0.0, 2.0]])
    work = np.array([[9.0] * 5, [5.0, 1.0, 2000.0, 100.0, 9000.0], [0.0, 4.0, 3.0, 0.0, 0.0]])
    used, prices = np.array([math.nan, 10.0, math.nan]), np.array([1.0, 2.0, 1.0])
    args = turns, rates, work, used, prices, 100.0, 40.0, 360.0, 7.0
    end, cost, done, done_at, dropped, goes_on, steps = both(KERNELS, "finish", *args, 5)
    assert end == 460.0
    assert (done.tolist(), done_at.tolist()) == ([0, 3], [105.0, 460.0])
    assert dropped.tolist() == [1]
    assert (goes_on.tolist(), steps.tolist()) == ([2, 4], [9.0 - 1100.0, 9.0 - 8280.0])
    hours = [65.0, 2 * 420.0, 2 * 420.0 * 2]
    assert math.isclose(cost, 7.0 + sum(hours) / 3600.0)
    assert both(KERNELS, "finish", *args, 6)[4].tolist() == []
    end, *_ = both(KERNELS, "finish", turns[:, 3:], np.zeros((2, 1)), work, used, prices, 100.0, 40.0, 360.0, 7.0, 5)
    assert end == 460.0
