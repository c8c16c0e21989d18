"""Rounds of the published simulator: both modes agree with results computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.kernels import published_world as world
from levada.core.assignment import DEVICE, FREE, SHARED, SLOT
from tests.kernel_modes import both_modes
from tests.kernels.mode_parity import equal_in_both_modes

KERNELS = both_modes("published_world", "levada.compat.gavel.kernels")


def current_turns(owner: list[int], shared: list[tuple[int, int]], number: list[int], observed: list[int]) -> Any:
    """Turns and devices; *shared* are slots and devices of packed jobs."""
    rows = np.zeros((6, len(shared)), np.int64)
    rows[[SLOT, DEVICE]] = np.array(shared, np.int64).reshape(-1, 2).T
    columns = np.array(number), np.arange(len(number)) + 1, np.array(observed)
    return equal_in_both_modes(
        KERNELS, "current_turns", np.array(owner, np.int32), rows, np.arange(len(owner)) // 2, *columns
    )


def test_turns_are_ordered_by_number_and_packed_jobs_have_one_turn() -> None:
    owner = [2, SHARED, SHARED, 2, FREE, 0, 3]
    turns, devices = current_turns(owner, [(4, 2), (1, 1), (4, 1), (1, 2)], [9, 8, 5, 6, 7], [1, 1, 2, 0, 1])
    assert turns[world.FIRST].tolist() == [5, 7, 9]
    assert turns[world.SECOND].tolist() == [-1, 8, -1]
    assert turns[world.TYPE].tolist() == [0, 0, 2]
    assert turns[world.STOP].tolist() == [2, 4, 5]
    assert devices.tolist() == [0, 3, 1, 2, 5]


@given(owner=st.lists(st.integers(-1, 4), max_size=12), observed=st.lists(st.integers(0, 1), min_size=5, max_size=5))
def test_a_turn_has_every_device_of_its_job(owner: list[int], observed: list[int]) -> None:
    number = [4, 2, 9, 1, 0]
    turns, devices = current_turns(owner, [], number, observed)
    stops = [0, *turns[world.STOP].tolist()]
    devices_of = {
        first: devices[stops[t] : stops[t + 1]].tolist() for t, first in enumerate(turns[world.FIRST].tolist())
    }
    assert devices_of == {
        number[slot]: [device for device, owner_slot in enumerate(owner) if owner_slot == slot]
        for slot in range(5)
        if observed[slot] and slot in owner
    }
    assert list(devices_of) == sorted(devices_of)
    work = np.zeros((3, 10))
    work[world.LEFT, 4] = math.nan
    alive = len(devices_of.keys() - {4})
    assert equal_in_both_modes(KERNELS, "leases", turns, devices, turns, devices, work) == (alive, alive)
    moved = equal_in_both_modes(KERNELS, "leases", turns, devices, turns, devices + 1, work)
    assert moved == (alive, 0)


def test_completed_failed_and_packed_jobs_at_the_end_of_a_round() -> None:
    #              done   fails  continues  a pair with one job done
    first, second = [0, 1, 2, 3], [-1, -1, -1, 4]
    turns = np.array([first, second, [0, 0, 1, 1], [1, 2, 1, 1], [1, 3, 4, 5]])
    rates = np.array([[1.0, 1.0, 2.5, 1.0], [0.0, 0.0, 0.0, 2.0]])
    work = np.array([[9.0] * 5, [5.0, 1.0, 2000.0, 100.0, 9000.0], [0.0, 4.0, 3.0, 0.0, 0.0]])
    used, prices = np.array([math.nan, 10.0, math.nan]), np.array([1.0, 2.0, 1.0])
    args = turns, rates, work, used, prices, 100.0, 40.0, 360.0, 7.0
    end, cost, done, done_at, dropped, continuing, steps = equal_in_both_modes(KERNELS, "finish", *args, 5)
    assert end == 460.0
    assert (done.tolist(), done_at.tolist()) == ([0, 3], [105.0, 460.0])
    assert dropped.tolist() == [1]
    assert (continuing.tolist(), steps.tolist()) == ([2, 4], [9.0 - 1100.0, 9.0 - 8280.0])
    hours = [65.0, 2 * 420.0, 2 * 420.0 * 2]
    assert math.isclose(cost, 7.0 + sum(hours) / 3600.0)
    assert equal_in_both_modes(KERNELS, "finish", *args, 6)[4].tolist() == []
    end, *_ = equal_in_both_modes(
        KERNELS, "finish", turns[:, 3:], np.zeros((2, 1)), work, used, prices, 100.0, 40.0, 360.0, 7.0, 5
    )
    assert end == 460.0
