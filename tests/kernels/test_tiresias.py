"""`kernels.tiresias`: compiled and interpreted results are bit-identical and correct."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.kernels import tiresias
from tests.kernel_modes import Kernels

tiresias_interpreted = Kernels("tiresias", "interpreted")

tiresias_compiled = Kernels("tiresias", "compiled")

NOW = 1000.0
KNOB = 2.0
LIMITS = np.array([100.0, 400.0])

seconds = st.sampled_from([0.0, 0.1, 20.0, 50.0, 100.0, 300.0, 900.0, NOW, 1e9])


class Jobs:
    """Jobs in view, by (submitted, number), and the stored state."""

    def __init__(self, draw: st.DrawFn) -> None:
        count = draw(st.integers(0, 9))
        spare = draw(st.integers(1, 3))
        slots = draw(st.permutations(range(count + spare)))[:count]
        self.ints = np.full((len(tiresias.WHOLE_COLUMNS) + 1, count + spare), -7, np.int64)
        self.floats = np.full((len(tiresias.REAL_COLUMNS) + 1, count + spare), np.nan)
        self.whole = np.array(draw(st.permutations(range(len(self.ints))))[: len(tiresias.WHOLE_COLUMNS)])
        self.real = np.array(draw(st.permutations(range(len(self.floats))))[: len(tiresias.REAL_COLUMNS)])
        self.slots = np.array(slots, np.int64)
        numbers = draw(st.permutations(range(0, 3 * count, 3)))
        entered = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=count, max_size=count))
        self.job: list[dict[str, Any]] = []
        for slot, (submitted, number) in zip(slots, sorted(zip(entered, numbers, strict=True)), strict=True):
            running = draw(st.integers(0, 2))
            job = {
                "number": number,
                "milli": draw(st.sampled_from([0, 250, 1000, 3000])),
                "count": draw(st.sampled_from([0, running])),
                "observed": running,
                "submitted": submitted,
                "first_started": draw(st.sampled_from([math.inf, 5.0, 6.0])),
                **{name: draw(seconds) for name in ("since", "gpu_seconds", "running_s", "waiting_s")},
            }
            self.ints[self.whole, slot] = [job[name] for name in tiresias.WHOLE_COLUMNS]
            self.floats[self.real, slot] = [job[name] for name in tiresias.REAL_COLUMNS]
            self.job.append(job)
        known = np.array(sorted({*numbers, *draw(st.lists(st.integers(0, 30)))}), np.int64)
        column = st.lists(seconds, min_size=len(known), max_size=len(known))
        levels = st.lists(st.integers(0, 4), min_size=len(known), max_size=len(known))
        moments = st.lists(st.sampled_from([-math.inf, 0.5, 5.5]), min_size=len(known), max_size=len(known))
        self.known = known
        self.state = (
            np.array(draw(levels), np.int64),
            np.array(draw(moments)),
            *(np.array(draw(column)) for _ in "abc"),
        )


@st.composite
def any_jobs(draw: st.DrawFn) -> Jobs:
    return Jobs(draw)


def equal_in_both_modes(name: str, *arguments: Any) -> Any:
    before = [np.copy(value) for value in arguments]
    result, compiled = (getattr(kernels, name)(*arguments) for kernels in (tiresias_interpreted, tiresias_compiled))
    for one, other in zip(*(part if isinstance(part, tuple) else (part,) for part in (result, compiled)), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, arguments, strict=True))
    return result


@given(any_jobs(), st.integers(1, 2), st.lists(st.integers(0, 30)))
def test_locate(jobs: Jobs, each: int, others: list[int]) -> None:
    known = jobs.known[::each].copy()
    active = np.array(sorted({*others, *jobs.known[::-1][::each].tolist()}), np.int64)
    at, settled = equal_in_both_modes("locate", jobs.ints, jobs.slots, jobs.whole, known, active)
    place = {int(number): i for i, number in enumerate(known)}
    assert at.tolist() == [place.get(job["number"], -1) for job in jobs.job]
    assert settled == ((at >= 0).all() and set(known.tolist()) <= set(active.tolist()))


@given(any_jobs())
def test_update_queues(jobs: Jobs) -> None:
    at, _ = equal_in_both_modes("locate", jobs.ints, jobs.slots, jobs.whole, jobs.known, jobs.known)
    blocks = (jobs.ints, jobs.floats, jobs.slots, jobs.whole, jobs.real)
    queue, result, moved = equal_in_both_modes("update_queues", *blocks, NOW, at, *jobs.state, LIMITS, KNOB)
    levels, promoted, *marks = (column[at] for column in jobs.state)
    any_moved = False
    for row, job in enumerate(jobs.job):
        passed = max(NOW - job["since"], 0.0)
        runs = job["observed"] > 0
        counters = (
            job["gpu_seconds"] + passed * (job["observed"] * (job["milli"] / 1000)),
            job["running_s"] + (passed if runs else 0.0),
            job["waiting_s"] + (0.0 if runs else passed),
        )
        service, ran, waited = (now - mark[row] for now, mark in zip(counters, marks, strict=True))
        level = max(min(int(levels[row]), 2), sum(service >= limit for limit in LIMITS))
        promoted_at = promoted[row]
        if level > 0 and not runs and job["count"] == 0 and ran > 0 and waited >= KNOB * ran:
            level, promoted_at, service, ran, waited = 0, NOW, 0.0, 0.0, 0.0
            any_moved = True
        any_moved |= bool(level != levels[row])
        assert queue[row] == level
        assert result[:, row].tolist() == [promoted_at, service, ran, waited, *counters]
    assert moved == any_moved


@given(any_jobs(), st.data())
def test_queue_order(jobs: Jobs, data: st.DataObject) -> None:
    each = st.lists(st.sampled_from([0, 0, 1]), min_size=len(jobs.job), max_size=len(jobs.job))
    queue = np.array(data.draw(each), np.int64)
    promoted = np.where(np.array(data.draw(each), bool), 5.5, -math.inf)
    ran = np.array(data.draw(each), np.float64)
    blocks = (jobs.ints, jobs.floats, jobs.slots, jobs.whole, jobs.real)

    def key(row: int) -> tuple[Any, ...]:
        job = jobs.job[row]
        start, entered = job["first_started"], job["submitted"]
        if promoted[row] > 0:
            start = 5.5 if job["count"] > 0 or ran[row] > 0 else math.inf
            entered = 5.5
        return queue[row], start, entered, job["submitted"], job["number"]

    order = equal_in_both_modes("queue_order", *blocks, queue, promoted, ran)
    assert order.tolist() == sorted(range(len(jobs.job)), key=key)


@given(any_jobs(), st.data())
def test_next_move_s(jobs: Jobs, data: st.DataObject) -> None:
    size = len(jobs.job)
    some = st.lists(st.integers(0, 2), min_size=size, max_size=size)
    times = st.lists(seconds, min_size=size, max_size=size)
    count, queue = (np.array(data.draw(some), np.int64) for _ in "ab")
    service, ran, waited = (np.array(data.draw(times), np.float64) for _ in "abc")
    first = equal_in_both_modes(
        "next_move_s", jobs.ints, jobs.slots, jobs.whole, count, queue, service, ran, waited, LIMITS, KNOB
    )
    moments = [math.inf]
    for row, job in enumerate(jobs.job):
        gpus = count[row] * (job["milli"] / 1000)
        if gpus > 0 and queue[row] < len(LIMITS):
            moments.append((LIMITS[queue[row]] - service[row]) / gpus)
        if count[row] == 0 and queue[row] > 0 and ran[row] > 0:
            moments.append(KNOB * ran[row] - waited[row])
    assert first == min(moments)
