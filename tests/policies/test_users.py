"""Per-user limits of queues, for policies that decide sizes or by node."""

from __future__ import annotations

from typing import Any

import pytest

from levada.core.job import Job
from levada.core.queue import Queue
from levada.core.reasons import Code
from levada.perf.table_model import TableModel
from levada.policies import registry
from levada.policies.queued import queued
from levada.tables.cluster_state import ClusterState
from levada.tables.invariants import Proposal, i13_users_within_limits
from tests.builders import cluster, job, world

LAB = Queue(name="lab", per_user_limit={"v100": 3})


def decide(there: ClusterState, policy: str = "elastic-fifo") -> tuple[dict[str, int], dict[str, Code]]:
    """Workers and reasons by job."""
    wrapped = queued(registry.make(policy, {}))
    result, _ = wrapped.decide(there.snapshot(1000.0), TableModel([]), wrapped.initial(0))
    names = [there.ids[int(number)] for number in result.number]
    sizes = dict(zip(names, result.count.tolist(), strict=True))
    return sizes, {name: int(code) for name, code in zip(names, result.reason, strict=True)}


def anns(count: int, **fields: Any) -> list[Job]:
    return [job(f"a{i}", float(i), **{"queue": "lab", "entity": "ann", **fields}) for i in range(count)]


def test_one_user_stays_within_the_limit_and_others_have_the_rest() -> None:
    bob = job("b", 9.0, max=20, queue="lab", entity="bob")
    free = job("free", 10.0, max=20, entity="ann")
    sizes, reasons = decide(world(cluster(12), *anns(4, max=2), bob, free, queues=(LAB,)))
    assert sizes == {"a0": 1, "a1": 1, "a2": 1, "a3": 0, "b": 3, "free": 6}
    assert reasons["a3"] == Code.USER_LIMIT


def test_who_comes_first_for_the_policy_grows_first() -> None:
    sizes, _ = decide(world(cluster(12), *anns(2, max=4), queues=(LAB,)))
    assert sizes == {"a0": 2, "a1": 1}


def test_a_smaller_job_of_the_user_uses_what_a_larger_one_cannot() -> None:
    jobs = [job(f"a{i}", float(i), min=size, max=size, queue="lab", entity="ann") for i, size in enumerate((2, 2, 1))]
    sizes, reasons = decide(world(cluster(12), *jobs, queues=(LAB,)), "fifo")
    assert sizes == {"a0": 2, "a1": 0, "a2": 1}
    assert reasons["a1"] == Code.USER_LIMIT


TWO_TYPES = Queue(name="lab", per_user_total=3)


@pytest.mark.parametrize("policy", ["fifo", "elastic-fifo", "tiresias", "elastic-tiresias", "dragon"])
def test_a_number_limits_gpus_of_all_types_together(policy: str) -> None:
    jobs = [
        *anns(2, max=4, gpu_types=("v100",)),
        *(job(f"x{i}", 5.0 + i, max=4, queue="lab", entity="ann", gpu_types=("k80",)) for i in range(2)),
        job("b", 9.0, min=2, max=2, queue="lab", entity="bob", gpu_types=("k80",)),
        job("free", 10.0, min=8, max=8, entity="ann", gpu_types=("k80",)),
    ]
    there = world(cluster(12, {"k80": 12}), *jobs, queues=(TWO_TYPES,))
    sizes, reasons = decide(there, policy)
    assert sizes == {"a0": 1, "a1": 1, "x0": 1, "x1": 0, "b": 2, "free": 8}
    assert reasons["x1"] == Code.USER_LIMIT


def test_what_a_number_leaves_goes_to_the_job_that_is_first() -> None:
    jobs = [*anns(1, max=4, gpu_types=("v100",)), job("x", 5.0, max=4, queue="lab", entity="ann", gpu_types=("k80",))]
    sizes, _ = decide(world(cluster(12, {"k80": 12}), *jobs, queues=(TWO_TYPES,)))
    assert sizes == {"a0": 2, "x": 1}


def test_a_job_larger_than_the_number_is_told_so() -> None:
    sizes, reasons = decide(world(cluster(12), *anns(1, min=4, max=4), queues=(TWO_TYPES,)))
    assert (sizes, reasons["a0"]) == ({"a0": 0}, Code.USER_LIMIT)


def test_queues_below_count_for_the_user() -> None:
    below = Queue(name="below", parent="lab")
    jobs = [*anns(2), *(job(f"x{i}", 5.0 + i, queue="below", entity="ann") for i in range(3))]
    sizes, _ = decide(world(cluster(12), *jobs, queues=(LAB, below)))
    assert sum(sizes.values()) == 3


def test_what_is_out_of_view_counts() -> None:
    there = world(cluster(12), *anns(3), queues=(LAB,))
    slot = there.slot("a0")
    there.table.count[slot], there.table.type[slot] = 2, there.inventory.types.find("v100")
    wrapped = queued(registry.make("fifo", {}))
    view = there.snapshot(0.0, there.table.order[1:])
    assert wrapped.decide(view, TableModel([]), wrapped.initial(0))[0].count.tolist() == [1, 0]


def test_a_type_that_the_user_may_have_no_more_of_is_left_for_another() -> None:
    there = world(cluster({"v100": 4, "a100": 4}), *anns(5, gpu_types=("v100", "a100")), queues=(LAB,))
    wrapped = queued(registry.make("fifo", {}))
    result = wrapped.decide(there.snapshot(0.0), TableModel([]), wrapped.initial(0))[0]
    kinds = [there.inventory.types[int(kind)] for kind in result.type]
    assert kinds == ["v100", "v100", "v100", "a100", "a100"]


@pytest.mark.parametrize("policy", registry.names())
def test_every_policy_is_held_to_it(policy: str) -> None:
    jobs = [*anns(4, max=4, steps=100.0), job("b", 9.0, max=3, queue="lab", entity="bob", steps=100.0)]
    sizes, _ = decide(world(cluster(12), *jobs, queues=(LAB,)), policy)
    assert sum(size for name, size in sizes.items() if name != "b") <= 3
    assert sizes["b"] <= 3


def test_the_rule_names_the_job_that_goes_beyond() -> None:
    there = world(cluster(12), *anns(2, max=4), queues=(LAB,))
    table, slot = there.table, there.slot("a1")
    kind, count = table.type.copy(), table.count.copy()
    kind[slot], count[slot] = 1, 4
    protected = table.count > 99
    proposal = Proposal(plane=there.target, type=kind, count=count, slots=table.order, protected=protected)
    (violation,) = i13_users_within_limits(there, proposal)
    assert (violation.rule, violation.slot) == ("I13", slot)
    assert violation.text == "user 'ann' has 4000/1000 of v100 in queue lab"
    table.type[slot], table.count[slot] = 1, 4
    assert i13_users_within_limits(there, proposal) == [], "it had that much before"
