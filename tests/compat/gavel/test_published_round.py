"""Rounds of the published mechanism: both implementations agree, and no device or job is used twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.kernels import published_round as rounds
from levada.core import layout as c
from tests.kernel_modes import MODES, Kernels, Mode, both_modes
from tests.kernels.mode_parity import equal_in_both_modes

KERNELS = both_modes("published_round", "levada.compat.gavel.kernels")
TYPES, DEVICES = 2, 8
TYPE_OF = np.arange(DEVICES) % TYPES
NO_TURNS = np.zeros((4, 0), np.int64)
NOTHING, NO_TIMES = np.zeros(0, np.int64), np.zeros(0)


def begin(number: list[int], scale: list[float], memory: Any = None, packs: bool = True) -> Any:
    """State of the first round or of the next one: combo, book, total, known, members, where, and whether any job ended."""
    empty = np.zeros((0, 2), np.int64), np.zeros((3, 0, TYPES)), np.zeros(TYPES), np.zeros(0, bool), NO_TURNS, NO_TIMES
    combo, book, total, known, turns, finish = memory or empty
    jobs = np.array(number, np.int64)
    book, total, failed, same = equal_in_both_modes(
        KERNELS, "charge", book, total, combo, turns, finish, 0.0, combo[:, 0], jobs
    )
    assert same == (combo[:, 0].tolist() == number)
    combo, book, known, members, where, over, came = equal_in_both_modes(
        KERNELS, "update_combinations", combo, book, known, turns, jobs, np.array(scale), packs, 180.0
    )
    return combo, book, total, known, members, where, failed or over, came


def next_round(begun: Any, rate: Any, scale: Any, last: Any = None, **more: Any) -> Any:
    """The round after *begun* on 4 GPUs of each type; *last* has turns and devices of the previous round."""
    _, book, total, known, members, where, *_ = begun
    jobs = len(scale)
    size = np.zeros((6, jobs), np.int64)
    size[1] = scale
    floats = np.zeros((c.OP_DEADLINE + 1, jobs))
    floats[c.STEPS] = more.get("steps", 1000.0)
    pairs = int(np.count_nonzero(members[:, 1] >= 0))
    turns, devices = last or (NO_TURNS, NOTHING)
    cluster = np.zeros((8, DEVICES), np.int64)
    cluster[c.TYPE_OF], cluster[c.NODE_OF], cluster[c.MILLI_LEFT] = TYPE_OF, TYPE_OF * 10, more.get("left", 1000)
    table = np.full((c.RAN + 1, jobs), -1), floats, np.full(DEVICES, -1, np.int32)
    best, together = rate.max(axis=1, initial=0.0), np.ones((pairs, TYPES, 2))
    asked = (
        (rate, together, size, np.array(scale), best, np.arange(jobs)),
        (members, book, total, np.ones_like(known)),
        (turns, where, devices),
    )
    flags = (more.get("global_queue", False), more.get("strict", False), 5.0, 360.0)
    return equal_in_both_modes(
        KERNELS, "next_round", *asked, *table, cluster, np.full(TYPES, 4.0), np.arange(TYPES), *flags
    )


@given(data=st.data())
def test_rounds_use_no_device_and_no_job_twice(data: st.DataObject) -> None:
    number = data.draw(st.lists(st.integers(0, 20), max_size=6, unique=True))
    scale = [float(data.draw(st.sampled_from([1, 2, 4]))) for _ in number]
    begun = begin(number, scale)
    rates = st.sampled_from([0.0, 0.001, 1.0, 3.0])
    last: Any = None
    for _ in range(2):
        book = begun[1]
        book[:] = np.array([data.draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in range(book.size)]).reshape(book.shape)
        rate = np.array([data.draw(rates) for _ in range(len(number) * TYPES)]).reshape(-1, TYPES)
        flags = {name: data.draw(st.booleans()) for name in ("global_queue", "strict")}
        decision, places, placed, turns, devices, finish = next_round(begun, rate, scale, last, **flags)
        assert len(set(devices.tolist())) == len(devices)
        runs = begun[4][turns[rounds.COMBO]]
        ran = runs[runs >= 0].tolist()
        assert sorted(ran) == sorted(set(ran)) == placed.tolist() == np.flatnonzero(decision[rounds.COUNT]).tolist()
        assert (TYPE_OF[places[3]] == decision[rounds.TYPE][places[0]]).all()
        assert np.bincount(places[0], minlength=len(number)).tolist() == (decision[rounds.COUNT]).tolist()
        assert (finish >= 5.0).all()
        # Some jobs end before the next round.
        stay = [at for at in range(len(number)) if data.draw(st.booleans())]
        number, scale = [number[at] for at in stay], [scale[at] for at in stay]
        begun = begin(number, scale, (*begun[:4], turns, finish))
        last = turns, devices
        assert set(begun[0].ravel().tolist()) <= {*number, rounds.ALONE}


def test_new_jobs_are_added_alone_and_with_each_of_their_scale() -> None:
    combo, book, _, known, members, _, lost, came = begin([7, 3, 5], [1.0, 2.0, 1.0])
    assert combo.tolist() == [[3, -1], [5, -1], [7, -1], [5, 7]]
    assert members.tolist() == [[1, -1], [2, -1], [0, -1], [2, 0]]
    assert book[rounds.RECEIVED, :, 0].tolist() == [180.0, 180.0, 180.0, 0.0]
    assert (known.any(), lost, came) == (False, False, True)


def test_a_round_is_charged_and_its_devices_are_kept() -> None:
    number, scale, rate = [1, 2], [1.0, 4.0], np.ones((2, TYPES))
    begun = begin(number, scale, packs=False)
    begun[1][rounds.SHARE] = [[0.0, 1.0], [1.0, 0.0]]
    _, _, _, turns, devices, finish = next_round(begun, rate, scale)
    assert turns.tolist() == [[1, 0], [0, 1], [1, 1], [4, 5]]
    assert devices.tolist() == [0, 2, 4, 6, 1]
    assert finish.tolist() == [365.0, 365.0]
    begun = begin(number, scale, (*begun[:4], turns, finish), packs=False)
    assert begun[1][rounds.RECEIVED].tolist() == [[180.0, 545.0], [545.0, 180.0]]
    assert begun[2].tolist() == [365.0, 365.0]
    assert next_round(begun, rate, scale, (turns, np.array([0, 2, 4, 6, 7])))[4].tolist() == [0, 2, 4, 6, 7]


def test_a_job_without_a_step_on_each_gpu_is_not_charged() -> None:
    begun = begin([1], [2.0], packs=False)
    _, _, _, turns, _, finish = next_round(begun, np.ones((1, TYPES)), [2.0], steps=1.0)
    assert turns[rounds.STEPS].tolist() == [0]
    begun = begin([1], [2.0], (*begun[:4], turns, finish), packs=False)
    assert (begun[2].tolist(), begun[6]) == ([0.0, 0.0], True)


def test_a_job_that_keeps_its_devices_needs_no_places() -> None:
    turns, devices = np.array([[0, 1], [0, 1], [1, 1], [2, 3]]), np.array([0, 2, 1])
    members, size, ints = np.array([[0, -1], [1, -1]]), np.array([2, 1]), np.zeros((c.RAN + 1, 2), np.int64)
    ints[c.TYPE], ints[c.COUNT] = [0, 1], [2, 1]
    owner = np.array([0, 1, 0, -1, -1, -1, -1, -1], np.int32)
    arguments = turns, devices, members, size, TYPE_OF * 10, ints, np.arange(2)
    decision, places, placed = equal_in_both_modes(KERNELS, "_build_decision", *arguments, owner)
    assert (decision[rounds.COUNT].tolist(), places.shape, placed.tolist()) == ([2, 1], (6, 0), [])
    owner[1] = -1
    decision, places, placed = equal_in_both_modes(KERNELS, "_build_decision", *arguments, owner)
    assert (places.T.tolist(), placed.tolist()) == ([[1, 0, 10, 1, 1000, 0]], [1])


@pytest.mark.parametrize("mode", MODES)
def test_missing_devices_are_an_error(mode: Mode) -> None:
    begun = begin([1], [2.0], packs=False)
    members, rate = begun[4], np.ones((1, TYPES))
    kernels = Kernels("published_round", mode, "levada.compat.gavel.kernels")
    placed = np.array([0]), np.array([0]), members, np.ones(1, bool), np.array([2.0]), np.arange(TYPES)
    with pytest.raises(LookupError, match="free devices"):
        kernels._place(*placed, (NO_TURNS, NOTHING, NOTHING), TYPE_OF, np.full(DEVICES, 500))
    assert len(rate) == 1
