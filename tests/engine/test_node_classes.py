"""Jobs with a node class: where they may run, what policies see of them, and whom they must not block."""

from __future__ import annotations

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.cluster import Cluster, Node
from levada.core.commands import Command
from levada.core.job import ParameterServers, Preemptible
from levada.core.reasons import Code
from levada.engine import Engine, persist
from levada.policies import registry
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld

#: Node a is open to class x only, node b to y only, node c to all.
ZONES = (
    Node.of("a", {"v100": 4}, cpu=16000, open_to=("x",)),
    Node.of("b", {"v100": 4}, cpu=16000, open_to=("y",)),
)
OPEN = Node.of("c", {"v100": 4}, cpu=16000)


def _nodes(system: FaultyWorld, name: str) -> tuple[str, ...]:
    return system.engine.explain(name).nodes


@pytest.mark.parametrize(
    "shape",
    [
        {"milli": 1000},
        {"milli": 2000},
        {"milli": 500},
        {"milli": 0, "cpu": 1000},
        {"milli": 1000, "servers": ParameterServers(replicas=2, cpu=1000)},
    ],
)
@pytest.mark.parametrize("policy", ["elastic-fifo", "dragon", "dragon-compat", "max_min_fairness"])
def test_jobs_run_only_on_nodes_that_are_open_to_their_class(policy: str, shape: dict[str, object]) -> None:
    system = FaultyWorld(policy, nodes=ZONES)
    system.submit(min=1, max=2, node_class="y", **shape)
    system.submit(min=1, max=2, node_class="x", **shape)
    system.calm()
    assert (_nodes(system, "j1"), _nodes(system, "j2")) == (("b",), ("a",))


def test_jobs_without_a_class_use_every_node_and_nodes_without_classes_take_every_job() -> None:
    system = FaultyWorld(nodes=(ZONES[0], OPEN))
    system.submit(min=8)
    system.calm()
    assert _nodes(system, "j1") == ("a", "c")
    system.users("cancel", 0)
    system.calm()
    system.submit(min=4, node_class="unknown")
    system.calm()
    assert _nodes(system, "j2") == ("c",)


def test_a_job_that_its_nodes_can_never_hold_says_how_many_nodes_it_may_use() -> None:
    system = FaultyWorld(nodes=(*ZONES, OPEN))
    system.submit(min=9, node_class="x")
    system.calm()
    explanation = system.engine.explain("j1")
    assert explanation.reason.code == "too-large"
    text = (
        "Can never start: needs at least 9 workers, its selector and tolerations allow 2 of 3 nodes, which can hold 8."
    )
    assert explanation.reason.text == text


def test_a_class_without_any_node_is_infeasible_until_a_node_opens() -> None:
    system = FaultyWorld(nodes=ZONES)
    system.submit(min=1, node_class="z")
    system.calm()
    assert system.why("j1") == "too-large"
    system.reopen("a", "x", "z")
    system.calm()
    assert _nodes(system, "j1") == ("a",)


def test_a_job_keeps_running_on_a_node_that_closes_and_does_not_grow_there() -> None:
    system = FaultyWorld(nodes=ZONES)
    system.submit(min=1, max=4, node_class="x")
    system.calm()
    system.users("update", 0, max=2)
    system.calm()
    system.reopen("a")
    system.users("update", 0, max=4)
    system.calm()
    assert (system.sizes(), _nodes(system, "j1")) == ({"j1": 2}, ("a",))


def test_a_planned_start_on_a_node_that_closes_is_withdrawn() -> None:
    system = FaultyWorld(nodes=(ZONES[0], OPEN, Node.of("d", {"v100": 4}, cordoned=True)))
    system.submit(min=4, max=4, preemptible=Preemptible.ALWAYS)
    system.calm()
    [first] = _nodes(system, "j1")
    other = "c" if first == "a" else "a"
    system.submit(min=8, max=8, priority=9, node_class="x")
    system.think()
    assert system.job("j2")["count"] == 8  # planned: it waits for the first job to stop
    system.reopen(other)
    assert system.job("j2")["count"] == 0
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0}


# --- policies do not know nodes ---------------------------------------------------------------------------------------

SIZING = ["fifo", "elastic-fifo", "srjf", "tiresias", "afs-l", "ffdl"]


@pytest.mark.parametrize("policy", SIZING)
def test_a_job_that_cannot_be_placed_blocks_no_other_job(policy: str) -> None:
    """The node of class x is full. The next job of class x is first in line for node b's free GPUs, and must not be."""
    system = FaultyWorld(policy, nodes=ZONES)
    system.submit(min=4, node_class="x", steps=1e9)
    system.calm()
    system.submit(min=4, node_class="x", priority=9, steps=1.0)
    system.submit(min=4, steps=10.0)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 0, "j3": 4} or system.sizes() == {"j1": 0, "j2": 4, "j3": 4}
    waits = "j2" if system.sizes()["j2"] == 0 else "j1"
    if waits == "j2":
        reason = system.engine.explain("j2").reason
        assert reason.code == "ineligible-nodes"
        assert "0 v100 free on the 1 of 2 nodes that its selector and tolerations allow" in reason.text


def test_no_job_is_stopped_for_a_job_that_cannot_be_placed() -> None:
    system = FaultyWorld("fifo", nodes=ZONES)
    system.submit(min=4, node_class="x", priority=5)
    system.submit(min=4, node_class="y")
    system.calm()
    stops = sum("STOP" in line for line in system.history)
    system.submit(min=4, node_class="x", priority=3)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 4, "j3": 0}
    assert sum("STOP" in line for line in system.history) == stops


def test_a_long_line_of_one_class_does_not_block_others() -> None:
    system = FaultyWorld("fifo", nodes=ZONES)
    system.submit(min=4, node_class="x")
    for _ in range(30):
        system.submit(min=1, node_class="x")
    system.submit(min=4)
    system.calm()
    assert {name for name, size in system.sizes().items() if size} == {"j1", "j32"}
    assert all(system.why(f"j{i}") == "ineligible-nodes" for i in range(2, 32))


def test_an_elastic_job_gives_way_on_the_nodes_that_another_job_needs() -> None:
    """Without knowing nodes, a policy sees GPUs for both: four of them are idle on the other node."""
    system = FaultyWorld(nodes=ZONES)
    system.submit(min=1, max=4, node_class="x")
    system.calm()
    assert system.sizes() == {"j1": 4}
    system.submit(min=2, max=2, node_class="x")
    system.calm()
    assert system.sizes() == {"j1": 2, "j2": 2}
    system.finish(1)
    system.calm()
    assert system.sizes() == {"j1": 4}


def test_a_job_that_shrinks_for_another_leaves_the_nodes_that_this_one_needs() -> None:
    system = FaultyWorld(nodes=ZONES)
    system.submit(min=4, max=8)
    system.calm()
    assert system.sizes() == {"j1": 8}
    system.submit(min=3, max=3, node_class="x")
    system.calm()
    assert system.sizes() == {"j1": 5, "j2": 3}
    assert (_nodes(system, "j1"), _nodes(system, "j2")) == (("a", "b"), ("a",))


def test_a_type_without_eligible_nodes_is_not_chosen() -> None:
    nodes = (Node.of("a", {"v100": 4}, open_to=("x",)), Node.of("b", {"a100": 8}, open_to=("y",)))
    for types in ((), ("a100", "v100")):
        system = FaultyWorld(nodes=nodes)
        system.submit(min=1, max=4, node_class="x", gpu_types=types)
        system.calm()
        assert (system.sizes(), _nodes(system, "j1")) == ({"j1": 4}, ("a",))


def test_a_job_grows_no_further_than_its_nodes_and_leaves_the_rest() -> None:
    system = FaultyWorld("ffdl", nodes=ZONES)
    system.submit(min=1, max=8, node_class="x")
    system.submit(min=4, max=4)
    system.calm()
    assert system.sizes() == {"j1": 4, "j2": 4}


def test_room_for_a_serving_pod_is_made_on_nodes_of_its_class() -> None:
    for policy in ("elastic-fifo", "dragon"):
        system = FaultyWorld(policy, nodes=ZONES)
        system.submit(min=1, max=8, cpu=0)
        system.calm()
        system.pass_time(100.0)  # DRAGON grows jobs after a while
        system.calm()
        assert system.sizes() == {"j1": 8}
        system.foreign("web", milli=1000, serving=True, node_class="x")
        system.calm()
        [room] = system.engine.query.reservations.values()
        assert state_of(system.engine).world.inventory.nodes[room.node] == "a"


def test_classes_survive_a_dump_and_a_fork() -> None:
    system = FaultyWorld(nodes=ZONES)
    system.submit(min=1, max=2, node_class="y")
    system.submit(min=1, node_class="x")
    system.foreign("web", milli=1000, serving=True, node_class="z")
    system.calm()
    loaded = persist.load(persist.dump(system.engine), registry.make).engine
    for engine in (loaded, system.engine.fork()):
        world, original = state_of(engine).world, state_of(system.engine).world
        assert world.inventory.classes == original.inventory.classes
        assert np.array_equal(world.inventory.eligible, original.inventory.eligible)
        assert np.array_equal(
            world.table.node_class[world.table.order], original.table.node_class[original.table.order]
        )


def test_replay_gives_the_same_decisions() -> None:
    """A decision that does not fit is made again; both are in the log."""
    system = FaultyWorld("fifo", nodes=ZONES)
    log: list[ev.Event] = []
    handle = system.engine.handle

    def logged(*events: ev.Event) -> list[Command]:
        log.extend(events)
        return handle(*events)

    system.engine.handle = logged  # type: ignore[method-assign]
    system.submit(min=4, node_class="x")
    system.submit(min=4, node_class="x")
    system.submit(min=4)
    system.calm()
    twin = Engine(cluster=Cluster(nodes=ZONES), policy="fifo", options=state_of(system.engine).options)
    for event in log:
        twin.handle(event)
    assert sum(isinstance(event, ev.Decided) for event in log) > 1
    table, again = state_of(system.engine).world.table, state_of(twin).world.table
    assert np.array_equal(table.count, again.count)
    assert np.array_equal(table.reason, again.reason)
    assert int(again.reason[again.order[1]]) == Code.INELIGIBLE_NODES
