"""The worked examples and defects of Voda's placement, done right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.cluster import Node
from levada.placement.defragment import defragment
from tests.builders import cluster, job
from tests.placement.engine_harness import EngineHarness
from tests.placement.placer_harness import PlacerHarness


def harness(*gpus: int, names: str = "ABCD", **fields: Any) -> PlacerHarness:
    return PlacerHarness(cluster(*gpus), *(job(name, i, max=16, **fields) for i, name in enumerate(names)))


# --- worked examples ------------------------------------------------------------------------------------------------


def test_example_1_b_stays_although_it_fits_with_c() -> None:
    there = harness(4, 4)
    there.resize(A=3, B=1, C=2)
    assert there.by_node("A") == there.by_node("B") | {"n0": 3} == {"n0": 3}
    before = there.places("B"), there.places("C")
    there.resize(A=0, B=1, C=2)
    assert (there.places("B"), there.places("C")) == before


def _without_cost(there: PlacerHarness, plane: Any, budget: int) -> Any:
    table = there.world.table
    return defragment(
        there.world,
        plane,
        budget=budget,
        frozen=np.zeros(table.capacity, bool),
        cost=np.full(table.capacity, 0.5),
        gain=np.ones(table.capacity),
    )


def test_example_2_b_makes_room_only_with_a_budget() -> None:
    there = harness(4, 4)
    there.resize(A=2)
    there.resize(B=3)
    assert (there.by_node("A"), there.by_node("B")) == ({"n0": 2}, {"n1": 3})
    plane, _, reached = there.propose({"A": 2, "B": 1, "C": 4})
    assert reached.tolist() == [2, 1, 4]
    assert there.by_node("A", plane) == {"n0": 2}
    assert there.by_node("B", plane) == {"n1": 1}
    assert there.by_node("C", plane) == {"n0": 1, "n1": 3}
    assert _without_cost(there, plane, budget=0) is None
    better = _without_cost(there, plane, budget=1)
    assert there.by_node("A", better) == {"n0": 2}
    assert there.by_node("B", better) == {"n0": 1}
    assert there.by_node("C", better) == {"n1": 4}


def test_example_3_no_job_moves_without_need() -> None:
    there = harness(4, 4, 4)
    there.resize(A=4, B=4, C=4)
    before = {name: there.by_node(name) for name in "ABC"}
    there.resize(A=2, B=2, C=2, D=2)
    for name, nodes in before.items():
        assert there.by_node(name) == dict.fromkeys(nodes, 2)
    assert list(there.by_node("D").values()) == [2]


# --- defects, by number ---------------------------------------------------------------------------------------------


def test_defect_1_a_job_on_two_nodes_is_counted_correctly() -> None:
    there = harness(4, 4)
    assert there.resize(A=8) == {"A": 8}
    assert there.by_node("A") == {"n0": 4, "n1": 4}
    assert sorted(there.places("A")) == list(range(8))
    assert (there.world.target.owner == there.world.slot("A")).all()


def test_defect_2_a_split_job_followed_by_another_ends_and_fits() -> None:
    there = harness(4, 4)
    assert there.resize(A=6, B=2) == {"A": 6, "B": 2}
    assert sorted(there.by_node("A").values()) == [2, 4]
    assert list(there.by_node("B").values()) == [2]


@pytest.mark.parametrize("gpus", [(8, 4), (4, 8)])
@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_defect_3_unequal_nodes_are_never_over_filled(gpus: tuple[int, int], order: tuple[str, str]) -> None:
    there = harness(*gpus)
    wanted = {"A": 8, "B": 4}
    assert there.resize(**{name: wanted[name] for name in order}) == wanted
    large, small = (0, 1) if gpus[0] == 8 else (1, 0)
    assert there.by_node("A") == {f"n{large}": 8}
    assert there.by_node("B") == {f"n{small}": 4}
    # Also after packed nodes are mapped to real ones.
    plane = there.world.target.copy()
    assert _without_cost(there, plane, budget=99) is None


def test_defect_4_an_unchanged_split_keeps_every_index() -> None:
    there = harness(4, 4)
    there.resize(A=6)
    before = there.places("A")
    assert sorted(there.by_node("A").values()) == [2, 4]
    for size in (2, 1, 2, 0, 2):
        there.resize(A=6, B=size)
        assert there.places("A") == before


def test_defects_5_and_6_jobs_of_a_lost_node_are_placed_elsewhere() -> None:
    harness = EngineHarness(4, 4, 4)
    harness.submit(job("A", min=4, max=4), job("B", 1, min=2, max=2))
    lost = next(iter(harness.nodes_of("A")))
    before = harness.nodes_of("B")
    harness.tell(ev.NodesLost, names=(lost,))
    assert sum(harness.nodes_of("A").values()) == 4
    assert lost not in harness.nodes_of("A")
    assert harness.nodes_of("B") == before
    # The sizes (4 and 2 workers) are unchanged; the jobs are placed nevertheless.
    harness.tell(ev.NodesLost, names=(next(iter(harness.nodes_of("A"))),))
    assert sum(harness.nodes_of("A").values()) == 4
    assert harness.nodes_of("B") == {}
    assert harness.engine.explain("B").reason.code == "preempted"
    harness.tell(ev.NodesAdded, nodes=(Node.of("fresh", {"v100": 4}),))
    assert harness.nodes_of("B") == {"fresh": 2}


def test_defect_5_a_job_shrinks_after_a_node_loss() -> None:
    harness = EngineHarness(4, 4)
    harness.submit(job("A", min=6, max=6))
    assert sorted(harness.nodes_of("A").values()) == [2, 4]
    harness.tell(ev.NodesLost, names=("n0",))
    assert harness.nodes_of("A") == {}
    harness.tell(ev.JobsCancelled, number=np.array([0]))
    harness.submit(job("B", 1, min=3, max=3))
    assert harness.nodes_of("B") == {"n1": 3}


def test_defect_9_moves_have_a_price_a_budget_and_an_opt_out() -> None:
    there = harness(4, 4)
    there.resize(A=2)
    there.resize(B=3)
    plane, _, _ = there.propose({"A": 2, "B": 1, "C": 4})
    capacity = there.world.table.capacity
    free = {"frozen": np.zeros(capacity, bool), "cost": np.full(capacity, 0.5), "gain": np.ones(capacity)}
    assert defragment(there.world, plane, budget=1, **free) is not None
    assert defragment(there.world, plane, budget=0, **free) is None
    assert defragment(there.world, plane, budget=1, **free | {"cost": np.full(capacity, 1.5)}) is None
    held_back = np.zeros(capacity, bool)
    held_back[there.slots("A", "B")] = True
    assert defragment(there.world, plane, budget=1, **free | {"frozen": held_back}) is None
