"""`kernels.assignment`: compiled and interpreted results are bit-identical and correct."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.tables.job_table import FACTS
from tests.kernel_modes import Kernels

assignment_interpreted = Kernels("assignment", "interpreted")

assignment_compiled = Kernels("assignment", "compiled")

SLOTS = 5
FREE, SHARED = -1, -2


def _owners(size: int) -> st.SearchStrategy[Any]:
    return st.lists(st.integers(SHARED, SLOTS - 1), min_size=size, max_size=size).map(lambda of: np.array(of, np.int32))


def _per_slot(values: st.SearchStrategy[Any], dtype: Any = np.int64) -> st.SearchStrategy[Any]:
    return st.lists(values, min_size=SLOTS, max_size=SLOTS).map(lambda of: np.array(of, dtype))


FLAGS = _per_slot(st.booleans(), bool)


@st.composite
def assignments(draw: st.DrawFn) -> dict[str, Any]:
    """A target and a held column over the same devices, with worker indices, on a few nodes."""
    devices = draw(st.integers(0, 14))
    indices = st.lists(st.integers(0, 3), min_size=devices, max_size=devices)
    node_of = sorted(draw(st.lists(st.integers(0, 2), min_size=devices, max_size=devices)))
    return {
        "target": draw(_owners(devices)),
        "held": draw(_owners(devices)),
        "target_index": np.array(draw(indices), np.int32),
        "held_index": np.array(draw(indices), np.int32),
        "node_of": np.array(node_of, np.int64),
        "type_of": np.array(draw(st.lists(st.integers(1, 2), min_size=devices, max_size=devices)), np.int64),
    }


def _both(name: str, *args: Any) -> Any:
    """The result of both modes; asserts that results and changed arguments are equal."""
    copies = [[arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args] for _ in range(2)]
    one, other = getattr(assignment_interpreted, name)(*copies[0]), getattr(assignment_compiled, name)(*copies[1])
    for a, b in zip(_arrays(one) + copies[0], _arrays(other) + copies[1], strict=True):
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return copies[0] if one is None else one


def _arrays(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, tuple) else [result]


# --- from target to held ----------------------------------------------------------------------------------------------


@given(assignments(), FLAGS)
def test_changes_are_the_devices_gained_and_dropped(scene: dict[str, Any], chosen: Any) -> None:
    target, held = scene["target"], scene["held"]
    adds, drops = _both("changes", target, held, chosen)
    differs = [d for d in range(len(target)) if target[d] != held[d]]
    assert adds.tolist() == [d for d in differs if target[d] >= 0 and chosen[target[d]]]
    assert drops.tolist() == [d for d in differs if held[d] >= 0 and chosen[held[d]]]


# --- scans behind the invariants --------------------------------------------------------------------------------------


@given(
    assignments(),
    FLAGS,
    _per_slot(st.integers(1, 2)),
    _per_slot(st.integers(0, 3)),
    _per_slot(st.integers(0, 2)),
    st.lists(st.sampled_from([-5, -1, 1 << 23, (1 << 31) - 1]), max_size=1),
)
def test_faults_are_found_where_devices_do_not_add_up(
    scene: dict[str, Any], checked: Any, gpu_type: Any, count: Any, whole: Any, odd_index: list[int]
) -> None:
    owner, index, node_of, type_of = (scene[name] for name in ("target", "target_index", "node_of", "type_of"))
    if odd_index and len(index):
        index[0] = odd_index[0]
    mine = _both("devices_of", owner, checked)
    faults = _both("faults_on", mine, owner, index, node_of, type_of, checked, gpu_type, count, whole)
    for slot in range(SLOTS):
        mine = (owner == slot).nonzero()[0]
        workers = {int(i): mine[index[mine] == i] for i in index[mine]}
        sound = (
            len(mine) == count[slot] * whole[slot]
            and (type_of[mine] == gpu_type[slot]).all()
            and all(len(devices) == whole[slot] for devices in workers.values())
            and all(len(set(node_of[devices])) == 1 for devices in workers.values())
            and all(0 <= i < (1 << 23) - 1 for i in workers)
        )
        assert faults[slot] == (checked[slot] and not sound)


@st.composite
def placed_jobs(draw: st.DrawFn) -> tuple[Any, ...]:
    """Jobs with a valid placement, shuffled over the devices of their nodes."""
    whole = np.array([draw(st.integers(1, 3)) for _ in range(SLOTS)], np.int64)
    count = np.array([draw(st.integers(0, 3)) for _ in range(SLOTS)], np.int64)
    workers = [(s, i, draw(st.integers(0, 2))) for s in range(SLOTS) for i in range(count[s])]
    places = [worker for worker in workers for _ in range(whole[worker[0]])]
    places = sorted(draw(st.permutations(places)), key=lambda place: place[2])
    owner, index, node_of = (np.array([place[k] for place in places], np.int64) for k in range(3))
    return owner.astype(np.int32), index.astype(np.int32), node_of, count, whole


@given(placed_jobs(), st.data())
def test_a_single_fault_is_found_and_its_job_named(scene: tuple[Any, ...], data: st.DataObject) -> None:
    owner, index, node_of, count, whole = scene
    kind, all_slots = np.ones(SLOTS, np.int64), np.ones(SLOTS, bool)
    type_of = np.ones(len(owner), np.int64)

    def faults() -> list[int]:
        mine = _both("devices_of", owner, all_slots)
        faulty = _both("faults_on", mine, owner, index, node_of, type_of, all_slots, kind, count, whole)
        return faulty.nonzero()[0].tolist()

    assert faults() == []
    if not len(owner):
        return
    d = data.draw(st.integers(0, len(owner) - 1))
    job = int(owner[d])
    fault = data.draw(st.sampled_from(["type", "index", "lost", "node"]))
    if fault == "type":
        type_of[d] = 2
    elif fault == "index":
        index[d] = 77 if whole[job] > 1 else -1
    elif fault == "lost":
        owner[d] = FREE
    elif whole[job] > 1:
        node_of[d] = 9
    else:
        return
    assert faults() == [job]


ROW = st.tuples(
    st.integers(0, 3),
    st.integers(-2, 2),
    st.integers(0, 1),
    st.integers(-1, 2),
    st.sampled_from([0, 500]),
    st.sampled_from([0, 9]),
)


AMOUNTS = _per_slot(st.sampled_from([0, 0, 500, 3000]))


@given(
    assignments(),
    AMOUNTS,
    AMOUNTS,
    AMOUNTS,
    AMOUNTS,
    st.lists(ROW, max_size=6),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_node_use_counts_each_worker_once_per_node(
    scene: dict[str, Any], cpu: Any, memory: Any, server_cpu: Any, server_memory: Any, rows: list[Any], counted: Any
) -> None:
    owner, index, node_of = scene["target"], scene["target_index"], scene["node_of"]
    ints = np.zeros((len(INT_COLUMNS), SLOTS), np.int64)
    ints[layout.CPU], ints[layout.MEMORY] = cpu, memory
    ints[layout.SERVER_CPU], ints[layout.SERVER_MEMORY] = server_cpu, server_memory
    block = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 6).T)
    use = _both("node_use", np.stack([owner, index]), block, node_of, np.array(counted), ints)
    workers = {(int(s), int(i), int(n)) for s, i, n in zip(owner, index, node_of, strict=True) if s >= 0}
    workers |= {row[:3] for row in rows}
    for node in range(3):
        here = [(slot, index) for slot, index, at in workers if at == node and counted[node]]
        assert use[0, node] == sum((cpu if index >= 0 else server_cpu)[slot] for slot, index in here)
        assert use[1, node] == sum((memory if index >= 0 else server_memory)[slot] for slot, index in here)


@given(st.lists(ROW, max_size=8), st.lists(ROW, max_size=8), st.data())
def test_added_rows_are_those_that_were_not_there(old: list[Any], new: list[Any], data: st.DataObject) -> None:
    if old:
        new = data.draw(st.permutations(new + data.draw(st.lists(st.sampled_from(old), max_size=6))))
    columns = [np.array(rows, np.int64).reshape(-1, 6).T for rows in (old, new)]
    assert _both("added_rows", *columns).tolist() == [row not in old for row in new]
    assert not _both("added_rows", columns[1], columns[1]).any()


@given(st.lists(st.integers(0, 99), unique=True, min_size=1), st.data())
def test_slots_are_removed_and_the_others_stay_in_order(slots: list[int], data: st.DataObject) -> None:
    order, removed = data.draw(st.permutations(slots)), data.draw(st.lists(st.sampled_from(slots), unique=True))
    index = np.full((3, len(slots) + data.draw(st.integers(0, 3))), -9)
    index[:, : len(slots)] = order, np.arange(len(slots)) * 3, slots
    active = len(slots) - len(removed)
    modes = assignment_interpreted, assignment_compiled
    results = [mode.remove_slots(index, len(slots), np.array(removed, np.int64), 100) for mode in modes]
    for result in results:
        assert result.shape == index.shape
        assert result[0, :active].tolist() == [slot for slot in order if slot not in removed]
        assert result[1, :active].tolist() == [3 * place for place, slot in enumerate(slots) if slot not in removed]
        assert result[2, :active].tolist() == [slot for slot in slots if slot not in removed]


@given(st.data())
def test_inserted_jobs_have_their_row_and_facts(data: st.DataObject) -> None:
    draw, slots = data.draw, data.draw(st.lists(st.integers(0, 7), unique=True, min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    active = draw(st.integers(0, len(slots) - 1))
    new_ints, new_floats = rng.integers(0, 9, (len(INT_COLUMNS), 9)), rng.random((len(FLOAT_COLUMNS), 9)).round(1)
    ints, floats, preference = new_ints[:, :8].copy(), new_floats[:, :8].copy(), np.zeros((3, 8), np.int16)
    index = np.full((3, 9), -9)
    index[:, :active] = slots[:active], range(active), slots[:active]
    inserted = np.array(slots[active:], np.int64)
    rows = rng.integers(0, 9, len(inserted))
    facts, ranks = rng.integers(10, 99, (len(inserted), 6)), rng.integers(0, 3, (len(inserted), 3)).astype(np.int16)
    # The first row is sorted before.
    floats[FLOAT_COLUMNS.index("submitted"), slots[:active]] = sorted(rng.random(active).round(1))
    arguments = index, active, inserted, new_ints, new_floats, rows, facts, ranks
    in_order = _both("insert_jobs", ints, floats, preference, *arguments)
    assignment_interpreted.insert_jobs(ints, floats, preference, *arguments)
    submitted = floats[FLOAT_COLUMNS.index("submitted"), slots]
    assert in_order == (submitted.tolist() == sorted(submitted.tolist()))
    assert index[0, : len(slots)].tolist() == index[2, : len(slots)].tolist() == slots
    for row, slot in enumerate(inserted.tolist()):
        for fact, name in enumerate(FACTS):
            assert ints[INT_COLUMNS.index(name), slot] == facts[row, fact]
        others = [column for column, name in enumerate(INT_COLUMNS) if name not in FACTS]
        assert ints[others, slot].tolist() == new_ints[others, rows[row]].tolist()
        assert floats[:, slot].tolist() == new_floats[:, rows[row]].tolist()
        assert preference[:, slot].tolist() == ranks[row].tolist()
