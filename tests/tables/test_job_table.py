"""Job table: order, search and preferences across added and removed slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core.layout import NOT_ALLOWED
from levada.tables.job_table import FACTS, JobTable
from levada.tables.new_jobs import NewJobs


def _enter(table: JobTable, numbers: list[int], submitted: list[float]) -> list[int]:
    new = NewJobs.of({"submitted": np.array(submitted)}, len(numbers))
    facts = np.zeros((len(numbers), len(FACTS)), np.int64)
    facts[:, 0] = numbers
    ranks = np.full((len(numbers), len(table.preference)), NOT_ALLOWED, np.int16)
    return table.add(new.ints, new.floats, np.arange(len(numbers)), facts, ranks).tolist()


def _numbers(table: JobTable) -> list[int]:
    return table.number[table.order].tolist()


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 30), max_size=4)), max_size=12)
)
def test_order_and_search_agree_with_a_plain_dictionary(story: list[tuple[list[int], list[int]]]) -> None:
    """Rounds of submissions (by time) and removals (by position)."""
    table = JobTable(capacity=2)
    living: dict[int, tuple[float, int]] = {}
    next_number = 0
    for times, leaving in story:
        numbers = list(range(next_number, next_number + len(times)))
        next_number += len(times)
        slots = _enter(table, numbers, [float(time) for time in times])
        assert not set(slots) & {slot for _, slot in living.values()}, "a slot in use was given out"
        living |= {number: (time, slot) for number, time, slot in zip(numbers, times, slots, strict=True)}
        gone = {sorted(living)[place % len(living)] for place in leaving} if living else set()
        table.leave(np.array([living.pop(number)[1] for number in sorted(gone)], np.int64))
        assert _numbers(table) == sorted(living, key=lambda number: (living[number][0], number))
        assert len(table) == len(living)
        asked = np.arange(-1, next_number + 2)
        assert table.find(asked).tolist() == [living[n][1] if n in living else -1 for n in asked.tolist()]
        assert sorted(table.number[table.number >= 0].tolist()) == sorted(living)
    assert table.capacity <= max(2, 2 * next_number)


def test_a_reused_slot_has_default_values() -> None:
    table = JobTable(types=2, capacity=2)
    new = JobTable(types=2, capacity=2)
    unused = np.array(_enter(new, [2, 3], [0.0, 1.0]))
    slots = np.array(_enter(table, [0, 1], [0.0, 1.0]))
    table.ints[2:, slots], table.floats[:, slots], table.preference[:, slots] = 7, 7.5, 3
    table.leave(slots)
    again = np.array(_enter(table, [2, 3], [0.0, 1.0]))
    assert sorted(again.tolist()) == sorted(slots.tolist())
    for block in ("ints", "floats", "preference"):
        fresh, used_before = (getattr(t, block)[:, at] for t, at in ((new, unused), (table, again)))
        assert np.array_equal(fresh, used_before, equal_nan=True)
    assert (table.preference[:, again] == NOT_ALLOWED).all()


def test_columns_stay_views_after_the_table_grows() -> None:
    table = JobTable(capacity=2)
    first = _enter(table, [0, 1], [5.0, 6.0])
    table.min[first[0]] = 3
    more = _enter(table, list(range(2, 9)), [7.0] * 7)
    assert table.capacity == 16
    assert table.min[first[0]] == 3
    table.max[more[-1]] = 9999
    assert 9999 in table.ints[:, more[-1]]
    assert _numbers(table) == list(range(9))
    assert table.preference.shape == (1, 16)
    assert (table.number[[s for s in range(16) if s not in first + more]] == -1).all()


def test_jobs_are_ordered_by_submission_time_then_number() -> None:
    table = JobTable()
    _enter(table, [0, 1], [5.0, 5.0])
    _enter(table, [2, 3], [4.0, 5.0])
    assert _numbers(table) == [2, 0, 1, 3]


def test_a_copy_is_independent() -> None:
    table = JobTable(capacity=4)
    slots = _enter(table, [0, 1], [0.0, 1.0])
    twin = table.copy()
    twin.min[slots[0]], twin.since[slots[0]], twin.preference[0, slots[0]] = 9, 9.0, 0
    twin.leave(np.array([slots[1]]))
    _enter(twin, [2, 3, 4], [2.0, 2.0, 2.0])
    assert (table.min[slots[0]], table.since[slots[0]], table.preference[0, slots[0]]) == (1, 0.0, NOT_ALLOWED)
    assert _numbers(table) == [0, 1]
    assert table.find(np.array([1, 2])).tolist() == [slots[1], -1]
    assert _enter(table, [2], [3.0])[0] not in slots
    assert _numbers(twin) == [0, 2, 3, 4]


def test_jobs_without_a_type_list_prefer_new_types_least() -> None:
    table = JobTable(types=2, capacity=2)
    picky, easy = _enter(table, [0, 1], [0.0, 0.0])
    table.any_type[easy] = 1
    table.preference[1, [picky, easy]] = 0
    table.add_types(4)
    table.add_types(4)
    assert table.preference[:, picky].tolist() == [NOT_ALLOWED, 0, NOT_ALLOWED, NOT_ALLOWED]
    assert table.preference[:, easy].tolist() == [NOT_ALLOWED, 0, 2, 3]
    assert table.preference[1, easy] < table.preference[2, easy] < table.preference[3, easy] < NOT_ALLOWED


def test_a_cpu_worker_is_counted_in_cores() -> None:
    table = JobTable()
    slots = _enter(table, [0, 1], [0.0, 0.0])
    table.milli[slots], table.cpu[slots] = [500, 0], [4000, 3000]
    assert table.units()[slots].tolist() == [500, 3000]
