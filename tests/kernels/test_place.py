"""`kernels.place` and `kernels.release`: valid placements, the same in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout as c
from tests.kernel_modes import Kernels

place_interpreted = Kernels("place", "interpreted")


place_compiled = Kernels("place", "compiled")

release_interpreted, release_compiled = Kernels("release", "interpreted"), Kernels("release", "compiled")


@st.composite
def boards(draw: st.DrawFn) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    nodes = len(sizes)
    jobs = draw(st.integers(1, 6))
    total = sum(sizes)
    pool_type = np.array([draw(st.integers(1, 2)) for _ in sizes], np.int64)
    stop = np.cumsum(sizes).astype(np.int64)
    start = stop - np.array(sizes)
    node_of = np.repeat(np.arange(nodes), sizes)
    job_type = np.array([draw(st.integers(1, 2)) for _ in range(jobs)], np.int64)
    whole = np.array([draw(st.sampled_from([1, 1, 2, 3])) for _ in range(jobs)], np.int64)
    owner = np.full(total, -1, np.int32)
    index = np.zeros(total, np.int32)
    cpu = np.array([draw(st.sampled_from([0, 1000])) for _ in range(jobs)], np.int64)
    memory = np.array([draw(st.sampled_from([0, 100])) for _ in range(jobs)], np.int64)
    cpu_used, memory_used = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    workers = [0] * jobs
    for p in range(nodes):
        at = int(start[p])
        while at < stop[p]:
            j = draw(st.integers(-1, jobs - 1))
            if j >= 0 and job_type[j] == pool_type[p] and at + whole[j] <= stop[p]:
                owner[at : at + whole[j]] = j
                index[at : at + whole[j]] = workers[j]
                workers[j] += 1
                cpu_used[p] += cpu[j]
                memory_used[p] += memory[j]
                at += int(whole[j])
            else:
                at += 1
    held = np.where(np.array([draw(st.booleans()) for _ in range(total)]), owner, -1).astype(np.int32)
    held_index = index.copy()
    # Some workers must leave and still run.
    for j in range(jobs):
        for worker in range(workers[j]):
            if draw(st.integers(0, 3)) == 0:
                place = (owner == j) & (index == worker)
                held[place] = j
                owner[place] = -1
                cpu_used[node_of[place][0]] -= cpu[j]
                memory_used[node_of[place][0]] -= memory[j]
                if draw(st.booleans()):
                    # Another worker may have its index now.
                    held_index[place] = draw(st.integers(0, 3))
    workers = [len(np.unique(index[owner == j])) for j in range(jobs)]
    return {
        "owner": owner,
        "index": index,
        "cpu_used": cpu_used,
        "memory_used": memory_used,
        "cpu_free": np.array([draw(st.integers(0, 9)) * 1000 for _ in sizes], np.int64),
        "memory_free": np.array([draw(st.integers(0, 9)) * 100 for _ in sizes], np.int64),
        "held": held,
        "held_index": held_index,
        "usable": np.array([draw(st.integers(0, 5)) > 0 for _ in range(total)]),
        "pool_start": start,
        "pool_stop": stop,
        "pool_node": np.arange(nodes),
        "pool_type": pool_type,
        "rack": np.array([draw(st.integers(0, 2)) for _ in sizes], np.int64),
        "zone": np.array([draw(st.integers(0, 1)) for _ in sizes], np.int64),
        "slot": np.arange(jobs),
        "gpu_type": job_type,
        "want": np.array([draw(st.integers(0, 9)) for _ in range(jobs)], np.int64),
        "least": np.array([draw(st.integers(1, 3)) for _ in range(jobs)], np.int64),
        "step": np.array([draw(st.integers(1, 2)) for _ in range(jobs)], np.int64),
        "whole": whole,
        "cpu": cpu,
        "memory": memory,
        "node_of": node_of,
        "workers": np.array(workers, np.int64),
    }


CHANGED = ("owner", "index", "cpu_used", "memory_used")


def _blocks(board: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of kernels: blocks of two assignments, the cluster and the table."""
    assigned = np.stack([board["owner"], board["index"]])
    used = np.stack([board["cpu_used"], board["memory_used"]])
    held = np.stack([board["held"], board["held_index"]])
    devices, nodes = np.zeros((8, assigned.shape[1]), np.int64), np.zeros((6, used.shape[1]), np.int64)
    devices[c.NODE_OF], devices[c.WHOLE_OPEN] = board["node_of"], board["usable"]
    for row, name in ((c.CPU_FREE, "cpu_free"), (c.MEMORY_FREE, "memory_free"), (c.RACK, "rack"), (c.ZONE, "zone")):
        nodes[row] = board[name]
    pools = np.stack([board[name] for name in ("pool_start", "pool_stop", "pool_node", "pool_type")])
    ints = np.zeros((len(c.INT_COLUMNS), len(board["slot"])), np.int64)
    ints[c.MILLI] = board["whole"] * c.WHOLE
    for row, name in ((c.MIN, "least"), (c.STEP, "step"), (c.CPU, "cpu"), (c.MEMORY, "memory")):
        ints[row] = board[name]
    ints[c.NUMBER], ints[c.TYPE], ints[c.COUNT] = board["slot"], board["gpu_type"], board["workers"]
    return assigned, used, held, devices, nodes, pools, ints


def _grow(module: Any, board: dict[str, Any]) -> tuple[Any, ...]:
    blocks = _blocks(board)
    reached = module.grow(*blocks, board["slot"], board["gpu_type"], board["want"])
    return reached, *blocks[0], *blocks[1]


def _shrink(module: Any, board: dict[str, Any], keep: Any, highest_first: bool) -> tuple[Any, ...]:
    assigned, used, held, devices, _, _, ints = _blocks(board)
    module.shrink(assigned, used, held, devices, ints, board["slot"], keep, highest_first)
    return *assigned, *used


def _place(module: Any, board: dict[str, Any], highest_first: bool) -> tuple[Any, ...]:
    blocks = _blocks(board)
    reached = module.place(*blocks, board["slot"], board["gpu_type"], board["want"], highest_first)
    return reached, *blocks[0], *blocks[1]


@given(boards())
def test_both_modes_grow_alike(board: dict[str, Any]) -> None:
    for one, other in zip(_grow(place_interpreted, board), _grow(place_compiled, board), strict=True):
        np.testing.assert_array_equal(one, other)


@given(boards(), st.data(), st.booleans())
def test_both_modes_shrink_alike(board: dict[str, Any], data: st.DataObject, highest_first: bool) -> None:
    keep = np.array([data.draw(st.integers(0, max(int(w), 0))) for w in board["workers"]], np.int64)
    one, other = (
        _shrink(release_interpreted, board, keep, highest_first),
        _shrink(release_compiled, board, keep, highest_first),
    )
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    owner, index, cpu_used, _ = one
    for j, size in enumerate(keep):
        left = index[owner == j]
        assert len(left) == size * board["whole"][j]
        before = board["index"][board["owner"] == j]
        if size and 0 in before:
            assert 0 in left
        if highest_first and size:
            lowest = sorted(set(before))[:size] if 0 in before else sorted(set(left))
            assert sorted(set(left)) == lowest
    assert (cpu_used >= 0).all()


@given(boards())
def test_grown_jobs_have_valid_placements(board: dict[str, Any]) -> None:
    reached, owner, index, cpu_used, memory_used = _grow(place_interpreted, board)
    for j, workers in enumerate(reached):
        mine = (owner == j).nonzero()[0]
        assert len(mine) == workers * board["whole"][j]
        assert workers >= board["workers"][j] or board["want"][j] < board["workers"][j]
        fresh = mine[board["owner"][mine] != j]
        assert board["usable"][fresh].all()
        assert (board["pool_type"][board["node_of"][fresh]] == board["gpu_type"][j]).all()
        for worker in np.unique(index[mine]):
            devices = mine[index[mine] == worker]
            assert len(devices) == board["whole"][j]
            assert len(np.unique(board["node_of"][devices])) == 1
        if workers > board["workers"][j]:
            assert workers >= board["least"][j]
            assert (workers - board["least"][j]) % board["step"][j] == 0 or workers == board["workers"][j]
        # existing workers do not move
        was = board["owner"] == j
        assert (owner[was] == j).all()
        assert (index[was] == board["index"][was]).all()
    grew_cpu = cpu_used > board["cpu_used"]
    assert (cpu_used[grew_cpu] <= board["cpu_free"][grew_cpu]).all()
    grew_memory = memory_used > board["memory_used"]
    assert (memory_used[grew_memory] <= board["memory_free"][grew_memory]).all()


@given(boards(), st.booleans())
def test_both_modes_place_alike_and_return_the_sizes_reached(board: dict[str, Any], highest_first: bool) -> None:
    one, other = (_place(module, board, highest_first) for module in (place_interpreted, place_compiled))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    reached, owner, *_ = one
    for j, workers in enumerate(reached):
        assert (owner == j).sum() == workers * board["whole"][j]
        assert workers <= max(board["want"][j], board["workers"][j])
        assert workers == board["want"][j] or board["want"][j] > board["workers"][j]


@given(boards(), st.permutations(range(6)), st.integers(1, 4))
def test_new_jobs_with_one_gpu_each_are_placed_like_all_others(
    board: dict[str, Any], order: list[int], few: int
) -> None:
    assigned, used, held, devices, nodes, pools, ints = _blocks(board)
    new_slots = np.array([slot for slot in order if slot < ints.shape[1]][:few])
    for row in (assigned, held):
        row[0][np.isin(row[0], new_slots)] = -1
    ints[c.MILLI, new_slots], ints[c.COUNT, new_slots], ints[c.MIN, new_slots], ints[c.STEP, new_slots] = (
        c.WHOLE,
        0,
        1,
        1,
    )
    ints[c.CPU, new_slots] = ints[c.MEMORY, new_slots] = 0
    want, kind = np.ones(len(new_slots), np.int64), board["gpu_type"][new_slots]
    by_number = np.sort(new_slots)
    general = assigned.copy()
    grown = place_interpreted.grow(
        general, used.copy(), held, devices, nodes, pools, ints, by_number, board["gpu_type"][by_number], want
    )
    reached = place_interpreted.place(assigned, used, held, devices, nodes, pools, ints, new_slots, kind, want, False)
    assert assigned[0].tolist() == general[0].tolist()
    assert reached[np.argsort(new_slots)].tolist() == grown.tolist()
