"""One-type policies on a mixed cluster: who competes where."""

from __future__ import annotations

import numpy as np
import pytest

from levada.core.reasons import Code
from levada.perf.table_model import JobSpeed, TableModel
from levada.policies import registry
from levada.policies.protocol import AnyPolicy
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job, world

LINEAR = TableModel([])


def decide(policy: AnyPolicy, there: ClusterState, perf: TableModel = LINEAR) -> dict[str, dict[str, int]]:
    result, _ = policy.decide(there.snapshot(0.0), perf, policy.initial(0))
    names = tuple(there.inventory.types)
    return {there.ids[int(number)]: result.allocation(row, names) for row, number in enumerate(result.number)}


def reasons(name: str, there: ClusterState, perf: TableModel = LINEAR) -> list[tuple[int, int]]:
    policy = registry.make(name)
    result, _ = policy.decide(there.snapshot(0.0), perf, policy.initial(0))
    return [(int(code), int(number)) for code, number in zip(result.reason, result.evidence, strict=True)]


def runs(there: ClusterState, name: str, workers: int, kind: str) -> None:
    slot = there.slot(name)
    there.table.count[slot] = there.table.observed[slot] = workers
    there.table.type[slot] = there.inventory.types.find(kind)


BOTH = ("a100", "v100")
MIXED = cluster({"v100": 4, "a100": 4})


def test_the_first_preferred_type_where_the_minimum_fits() -> None:
    there = world(
        MIXED,
        job("a", 0.0, min=3, gpu_types=BOTH),
        job("b", 1.0, min=2, gpu_types=BOTH),
        job("c", 2.0, min=1, gpu_types=BOTH),
        job("d", 3.0, min=1, gpu_types=("v100", "a100")),
    )
    assert decide(registry.make("fifo"), there) == {
        "a": {"a100": 3},
        "b": {"v100": 2},
        "c": {"a100": 1},
        "d": {"v100": 1},
    }


def test_a_running_job_keeps_its_type_and_its_minimum_is_kept_for_it() -> None:
    there = world(MIXED, job("new", 0.0, min=2, gpu_types=BOTH), job("old", 1.0, min=3, gpu_types=("v100", "a100")))
    runs(there, "old", 3, "a100")
    assert decide(registry.make("fifo"), there) == {"new": {"v100": 2}, "old": {"a100": 3}}


def test_a_running_job_leaves_a_type_that_cannot_hold_it_any_more() -> None:
    there = world(cluster({"v100": 4, "a100": 1}), job("old", min=3, gpu_types=BOTH))
    runs(there, "old", 3, "a100")
    assert decide(registry.make("fifo"), there) == {"old": {"v100": 3}}


def test_a_job_that_fits_nowhere_competes_on_the_first_type_that_could_hold_it() -> None:
    there = world(
        cluster({"a100": 2, "v100": 4}),
        job("old", 5.0, min=4, max=4, gpu_types=("v100",)),
        job("new", 0.0, min=3, gpu_types=BOTH),
    )
    runs(there, "old", 4, "v100")
    # It comes first in the order, so it displaces the running job there.
    assert decide(registry.make("fifo"), there) == {"new": {"v100": 3}, "old": {}}


def test_tiresias_looks_for_room_for_what_a_job_asked_for() -> None:
    created = job("x", min=1, max=4, desired=3, gpu_types=BOTH)
    there = world(cluster({"a100": 2, "v100": 4}), created)
    assert decide(registry.make("tiresias"), there) == {"x": {"v100": 3}}
    assert decide(registry.make("fifo"), there) == {"x": {"a100": 1}}


def test_srjf_asks_the_shortest_first_for_its_type() -> None:
    there = world(
        cluster({"a100": 1, "v100": 1}),
        job("long", 0.0, gpu_types=BOTH, steps=500.0),
        job("short", 1.0, gpu_types=BOTH, steps=5.0),
    )
    assert decide(registry.make("srjf"), there) == {"short": {"a100": 1}, "long": {"v100": 1}}


def test_jobs_grow_on_their_own_type_only() -> None:
    there = world(
        MIXED,
        job("a", 0.0, min=4, max=8, gpu_types=BOTH),
        job("b", 1.0, min=1, max=8, gpu_types=BOTH),
    )
    for name in ("elastic-fifo", "elastic-tiresias", "ffdl", "afs-l"):
        assert decide(registry.make(name), there) == {"a": {"a100": 4}, "b": {"v100": 4}}, name


ELASTIC = ("elastic-fifo", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l")
RIGID = ("fifo", "srjf", "tiresias")


@pytest.mark.parametrize("name", ELASTIC)
def test_elastic_jobs_spread_over_types_before_they_share_one(name: str) -> None:
    jobs = [job(item, float(at), min=1, max=4, steps=100.0) for at, item in enumerate("abc")]
    assert decide(registry.make(name), world(MIXED, *jobs[:2])) == {"a": {"v100": 4}, "b": {"a100": 4}}
    shared = decide(registry.make(name), world(MIXED, *jobs))
    assert shared["b"] == {"a100": 4}
    assert shared["a"]["v100"] + shared["c"]["v100"] == 4


@pytest.mark.parametrize("name", ELASTIC)
def test_the_order_of_types_that_a_job_names_is_the_order_in_which_they_are_tried(name: str) -> None:
    jobs = [job(item, float(at), min=1, max=3, gpu_types=BOTH, steps=100.0) for at, item in enumerate("ab")]
    assert decide(registry.make(name), world(MIXED, *jobs)) == {"a": {"a100": 3}, "b": {"v100": 3}}
    both_fit = world(cluster({"v100": 4, "a100": 6}), *jobs)
    assert decide(registry.make(name), both_fit) == {"a": {"a100": 3}, "b": {"a100": 3}}


@pytest.mark.parametrize("name", ELASTIC)
def test_what_a_running_job_may_grow_to_is_left_to_it(name: str) -> None:
    old, new = job("old", 0.0, min=1, max=4, steps=100.0), job("new", 1.0, min=1, max=4, steps=100.0)
    there = world(MIXED, old, new)
    runs(there, "old", 1, "v100")
    assert decide(registry.make(name), there) == {"old": {"v100": 4}, "new": {"a100": 4}}


@pytest.mark.parametrize("name", ELASTIC)
def test_a_type_that_others_have_in_part_does_not_count_as_a_smaller_one(name: str) -> None:
    jobs = [job("hidden", 0.0, min=3, steps=100.0), job("new", 1.0, min=1, max=4, steps=100.0)]
    there = world(MIXED, *jobs)
    runs(there, "hidden", 3, "v100")
    there.target.owner[(there.inventory.type_of == there.inventory.types.find("v100")).nonzero()[0][:3]] = 0
    policy = registry.make(name)
    view = there.snapshot(0.0, np.array([there.slot("new")]))
    result, _ = policy.decide(view, LINEAR, policy.initial(0))
    assert result.allocation(0, tuple(there.inventory.types)) == {"a100": 4}


@pytest.mark.parametrize("name", RIGID)
def test_who_gives_no_more_than_a_job_needs_looks_for_no_more(name: str) -> None:
    jobs = [job(item, float(at), min=2, max=4, desired=2, gpu_types=BOTH, steps=100.0) for at, item in enumerate("ab")]
    assert decide(registry.make(name), world(MIXED, *jobs)) == {"a": {"a100": 2}, "b": {"a100": 2}}


def test_steps_parts_and_workers_without_a_gpu() -> None:
    there = world(
        cluster({"v100": 4}, cpu=4000),
        job("pairs", 0.0, min=1, max=4, step=2, milli=1000),
        job("halves", 1.0, min=1, max=9, milli=500),
        job("cores", 2.0, min=1, max=9, milli=0, cpu=1500),
        job("nothing", 3.0, min=1, max=7, milli=0),
    )
    assert decide(registry.make("elastic-fifo"), there) == {
        "pairs": {"v100": 3},
        "halves": {"v100": 2},
        "cores": {"cpu": 2},
        "nothing": {"cpu": 7},
    }


def test_ffdl_shares_among_steps_of_different_size() -> None:
    there = world(cluster(6), job("twos", 0.0, min=1, max=3, step=2), job("threes", 1.0, min=1, max=4, step=3))
    assert decide(registry.make("ffdl"), there) == {"twos": {"v100": 1}, "threes": {"v100": 4}}


@pytest.mark.parametrize("name", registry.names()[:8])
def test_a_job_of_an_unknown_type_or_too_large_is_told_so_and_harms_nobody(name: str) -> None:
    there = world(
        cluster(4),
        job("strange", 0.0, gpu_types=("tpu",), steps=1.0),
        job("huge", 1.0, min=9, steps=1.0),
        job("plain", 2.0, min=4, steps=1.0),
    )
    assert decide(registry.make(name), there) == {"strange": {}, "huge": {}, "plain": {"v100": 4}}
    assert reasons(name, there)[:2] == [(Code.UNKNOWN_TYPE, 0), (Code.TOO_LARGE, 4)]


@pytest.mark.parametrize("name", ["srjf", "elastic-srjf", "afs-l"])
def test_a_job_of_unknown_length_comes_last_and_is_told_so_only_where_that_is_why(name: str) -> None:
    there = world(
        cluster(4),
        job("unknown", 0.0, min=2),
        job("twin", 1.0, min=2),
        job("third", 2.0, min=2),
        job("known", 3.0, min=2, steps=9.0),
    )
    speeds = TableModel([JobSpeed(job=number, throughput={1: 1.0}) for number in range(4)])
    codes = [code for code, _ in reasons(name, there, speeds)]
    assert codes[3] == Code.RUNS
    assert sorted(codes[:3]) == [Code.RUNS, Code.CAPACITY, Code.CAPACITY]
    there.table.min[there.slot("known")] = there.table.max[there.slot("known")] = 4
    assert [code for code, _ in reasons(name, there, speeds)][:3] == [Code.UNKNOWN_SPEED] * 3
