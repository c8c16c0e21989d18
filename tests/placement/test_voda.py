"""Every example and every defect of Voda's placement that concerns us: ours does not do that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.cluster import Node
from levada.placement.defragment import defragment
from tests.builders import cluster, job
from tests.placement.desk import Desk
from tests.placement.shell import Shell


def desk(*gpus: int, names: str = "ABCD", **fields: Any) -> Desk:
    return Desk(cluster(*gpus), *(job(name, i, max=16, **fields) for i, name in enumerate(names)))


# --- worked examples ------------------------------------------------------------------------------------------------


def test_example_1_b_stays_though_it_could_be_packed_with_c() -> None:
    there = desk(4, 4)
    there.resize(A=3, B=1, C=2)
    assert there.by_node("A") == there.by_node("B") | {"n0": 3} == {"n0": 3}
    before = there.places("B"), there.places("C")
    there.resize(A=0, B=1, C=2)
    assert (there.places("B"), there.places("C")) == before


def _without_cost(there: Desk, plane: Any, budget: int) -> Any:
    table = there.world.table
    return defragment(
        there.world,
        plane,
        budget=budget,
        frozen=np.zeros(table.capacity, bool),
        cost=np.full(table.capacity, 0.5),
        gain=np.ones(table.capacity),
    )


def test_example_2_nobody_moves_without_a_budget_and_b_makes_room_with_one() -> None:
    there = desk(4, 4)
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


def test_example_3_no_job_moves_where_none_has_to() -> None:
    there = desk(4, 4, 4)
    there.resize(A=4, B=4, C=4)
    before = {name: there.by_node(name) for name in "ABC"}
    there.resize(A=2, B=2, C=2, D=2)
    for name, nodes in before.items():
        assert there.by_node(name) == dict.fromkeys(nodes, 2)
    assert list(there.by_node("D").values()) == [2]


# --- defects, by number ---------------------------------------------------------------------------------------------


def test_defect_1_a_job_over_two_nodes_is_counted_right() -> None:
    there = desk(4, 4)
    assert there.resize(A=8) == {"A": 8}
    assert there.by_node("A") == {"n0": 4, "n1": 4}
    assert sorted(there.places("A")) == list(range(8))
    assert (there.world.target.owner == there.world.slot("A")).all()


def test_defect_2_a_split_job_followed_by_another_ends_and_fits() -> None:
    there = desk(4, 4)
    assert there.resize(A=6, B=2) == {"A": 6, "B": 2}
    assert sorted(there.by_node("A").values()) == [2, 4]
    assert list(there.by_node("B").values()) == [2]


@pytest.mark.parametrize("gpus", [(8, 4), (4, 8)])
@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_defect_3_unequal_nodes_are_never_over_filled(gpus: tuple[int, int], order: tuple[str, str]) -> None:
    there = desk(*gpus)
    wanted = {"A": 8, "B": 4}
    assert there.resize(**{name: wanted[name] for name in order}) == wanted
    large, small = (0, 1) if gpus[0] == 8 else (1, 0)
    assert there.by_node("A") == {f"n{large}": 8}
    assert there.by_node("B") == {f"n{small}": 4}
    # Also when packed nodes are bound to real ones.
    plane = there.world.target.copy()
    assert _without_cost(there, plane, budget=99) is None


def test_defect_4_an_unchanged_split_keeps_every_index() -> None:
    there = desk(4, 4)
    there.resize(A=6)
    before = there.places("A")
    assert sorted(there.by_node("A").values()) == [2, 4]
    for size in (2, 1, 2, 0, 2):
        there.resize(A=6, B=size)
        assert there.places("A") == before


def test_defects_5_and_6_a_lost_node_re_places_its_jobs_where_room_is_left() -> None:
    shell = Shell(4, 4, 4)
    shell.submit(job("A", min=4, max=4), job("B", 1, min=2, max=2))
    lost = next(iter(shell.nodes_of("A")))
    kept = shell.nodes_of("B")
    shell.tell(ev.NodesLost, names=(lost,))
    assert sum(shell.nodes_of("A").values()) == 4
    assert lost not in shell.nodes_of("A")
    assert shell.nodes_of("B") == kept
    # The plan (4 and 2 workers) is the same as before; places are found all the same.
    shell.tell(ev.NodesLost, names=(next(iter(shell.nodes_of("A"))),))
    assert sum(shell.nodes_of("A").values()) == 4
    assert shell.nodes_of("B") == {}
    assert shell.engine.explain("B").reason.code == "preempted"
    shell.tell(ev.NodesAdded, nodes=(Node.of("fresh", {"v100": 4}),))
    assert shell.nodes_of("B") == {"fresh": 2}


def test_defect_5_shrinking_after_a_node_was_lost_is_no_trouble() -> None:
    shell = Shell(4, 4)
    shell.submit(job("A", min=6, max=6))
    assert sorted(shell.nodes_of("A").values()) == [2, 4]
    shell.tell(ev.NodesLost, names=("n0",))
    assert shell.nodes_of("A") == {}
    shell.tell(ev.JobsCancelled, number=np.array([0]))
    shell.submit(job("B", 1, min=3, max=3))
    assert shell.nodes_of("B") == {"n1": 3}


def test_defect_9_moves_have_a_price_a_budget_and_an_opt_out() -> None:
    there = desk(4, 4)
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
