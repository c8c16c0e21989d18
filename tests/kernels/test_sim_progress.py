"""`kernels.sim_progress`: compiled and interpreted results are bit-identical and correct."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.kernels.sim_progress import DONE, END, RATE, SINCE, TOTAL
from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

progress_interpreted = Kernels("sim_progress", "interpreted")

progress_compiled = Kernels("sim_progress", "compiled")

SLOTS = 5
SHARED = -2
AMOUNTS = st.floats(1e-6, 1e6) | st.just(0.0)


def _both(name: str, *args: Any) -> Any:
    return equal_in_both_modes((progress_interpreted, progress_compiled), name, *args)


def _changed(name: str, jobs: Any, *args: Any) -> Any:
    """The block after the call, equal in both modes."""
    _both(name, jobs, *args)
    after = jobs.copy()
    getattr(progress_interpreted, name)(after, *args)
    return after


@st.composite
def progress(draw: st.DrawFn) -> tuple[Any, Any]:
    """A block of jobs, and scene of its columns."""
    width = draw(st.integers(1, 8))
    jobs = np.array(draw(st.lists(st.lists(AMOUNTS, min_size=5, max_size=5), min_size=width, max_size=width))).T.copy()
    jobs[TOTAL, draw(st.lists(st.integers(0, width - 1), max_size=2))] = np.inf
    columns = draw(st.lists(st.integers(0, width - 1), unique=True))
    return jobs, np.array(columns, np.int64)


@given(progress(), st.floats(0.0, 1e6))
def test_paused_jobs_keep_their_steps_and_have_no_end(scene: tuple[Any, Any], now: float) -> None:
    jobs, columns = scene
    after = _changed("pause", jobs, columns, now)
    assert _both("pause", jobs, columns, now) == jobs[END, columns].min(initial=np.inf)
    assert after[DONE, columns].tolist() == _both("steps", jobs, columns, now).tolist()
    assert not after[RATE, columns].any()
    assert np.isinf(after[END, columns]).all()
    others = np.setdiff1d(np.arange(jobs.shape[1]), columns)
    assert after[:, others].tolist() == jobs[:, others].tolist()


@given(progress(), st.data())
def test_set_rates_updates_the_completion_time(scene: tuple[Any, Any], data: st.DataObject) -> None:
    jobs, columns = scene
    count = len(columns)
    rate, since = (np.array(data.draw(st.lists(AMOUNTS, min_size=count, max_size=count))) for _ in range(2))
    now = data.draw(st.floats(0.0, 1e6))
    after = _changed("set_rates", jobs, columns, now, rate, since)
    ends = tuple(block[END, columns].min(initial=np.inf) for block in (jobs, after))
    assert _both("set_rates", jobs, columns, now, rate, since) == ends
    done = _both("steps", jobs, columns, now)
    assert after[DONE, columns].tolist() == done.tolist(), "previous progress ends now"
    assert after[[RATE, SINCE]][:, columns].tolist() == [rate.tolist(), since.tolist()]
    for row, column in enumerate(columns):
        left = jobs[TOTAL, column] - done[row]
        assert after[END, column] == (since[row] + left / rate[row] if rate[row] > 0 else np.inf)


@given(progress(), st.floats(0.0, 1e6))
def test_finished_jobs_have_all_steps(scene: tuple[Any, Any], now: float) -> None:
    jobs, _ = scene
    done = _both("finish", jobs, now)
    after = _changed("finish", jobs, now)
    assert done.tolist() == [column for column in range(jobs.shape[1]) if jobs[END, column] <= now]
    assert after[DONE, done].tolist() == jobs[TOTAL, done].tolist()
    assert not after[RATE, done].any()
    assert np.isinf(after[END, done]).all()


OWNERS = st.lists(st.tuples(st.integers(SHARED, SLOTS - 1), st.integers(0, 3), st.integers(0, 4)), max_size=14)


def _columns(rows: list[tuple[int, ...]], count: int) -> list[Any]:
    return [np.array([row[i] for row in rows], np.int64) for i in range(count)]


@given(OWNERS, st.floats(0.0, 1e6))
def test_a_gpu_is_used_while_it_is_not_free(devices: list[tuple[int, ...]], seconds: float) -> None:
    owner, type_of, _ = _columns(devices, 3)
    used, before, prices = np.array([0.0, 1.0, 2.0, 3.0]), [0.0, 1.0, 2.0, 3.0], np.array([1.0, 0.5, 2.48, 0.31])
    cost = _both("add_use", owner.astype(np.int32), type_of, seconds, used, prices)
    progress_interpreted.add_use(owner.astype(np.int32), type_of, seconds, used, prices)
    more = [int(((owner != -1) & (type_of == kind)).sum()) * seconds for kind in range(4)]
    assert used.tolist() == [had + new for had, new in zip(before, more, strict=True)]
    assert cost == pytest.approx(float(np.dot(more, prices)))


@given(OWNERS, OWNERS, st.lists(st.integers(0, SLOTS - 1), unique=True))
def test_nodes_of_a_job_count_once(devices: list[Any], parts: list[Any], chosen: list[int]) -> None:
    owner, _, node_of = _columns(devices, 3)
    part_owner, _, part_node = _columns([part for part in parts if part[0] >= 0], 3)
    counts = _both(
        "node_counts", owner.astype(np.int32), node_of, part_owner, part_node, np.array(chosen, np.int64), SLOTS
    )
    for slot, count in zip(chosen, counts.tolist(), strict=True):
        assert count == len({*node_of[owner == slot].tolist(), *part_node[part_owner == slot].tolist()})
