"""Serving pods: training makes room for them, within its own guarantees."""

from __future__ import annotations

from levada.core.assignment import INDEX
from levada.core.cluster import Node
from levada.core.job import Preemptible
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


def test_training_makes_room_for_a_serving_pod_and_grows_back() -> None:
    system = faulty_world(4, 2)
    system.submit(min=1, max=6)
    system.calm()
    assert system.sizes() == {"j1": 6}
    system.foreign("web", milli=2000, serving=True)
    system.calm()
    assert system.sizes() == {"j1": 4}
    reservation = system.engine.query.reservations["web"]
    node = state_of(system.engine).world.inventory.nodes[reservation.node]
    system.foreign("web", node=node, milli=2000, serving=True)
    system.calm()
    assert system.sizes() == {"j1": 4}
    assert not system.engine.query.reservations
    system.foreign_gone("web")
    system.calm()
    assert system.sizes() == {"j1": 6}


def test_serving_never_cuts_a_job_below_its_minimum() -> None:
    system = faulty_world(4)
    system.submit(min=4)
    system.calm()
    system.foreign("web", milli=1000, serving=True)
    system.calm()
    assert system.sizes() == {"j1": 4}


def test_serving_takes_nothing_from_protected_jobs() -> None:
    system = faulty_world(4)
    system.submit(min=1, max=4, preemptible=Preemptible.NEVER)
    system.calm()
    system.foreign("web", milli=1000, serving=True)
    system.calm()
    assert system.sizes() == {"j1": 4}
    assert not system.engine.query.reservations


def test_a_serving_pod_without_gpus_gets_cores() -> None:
    system = FaultyWorld(nodes=(Node(name="a", cpu=8000),))
    system.submit(min=1, max=8, milli=0, cpu=1000)
    system.calm()
    system.foreign("web", cpu=3000, serving=True)
    system.calm()
    assert system.sizes() == {"j1": 5}
    assert "web" in system.engine.query.reservations


def test_room_for_a_serving_pod_includes_cores() -> None:
    system = FaultyWorld(nodes=(Node.of("a", {"v100": 2}, cpu=4000), Node.of("b", {"v100": 4}, cpu=16000)))
    system.foreign("web", milli=1000, cpu=8000, serving=True)
    system.calm()
    reservation = system.engine.query.reservations["web"]
    assert state_of(system.engine).world.inventory.nodes[reservation.node] == "b"


def test_room_for_a_serving_pod_moves_when_its_node_is_lost() -> None:
    system = faulty_world(2, 2)
    system.foreign("web", milli=1000, serving=True)
    system.calm()
    inventory = state_of(system.engine).world.inventory
    first = inventory.nodes[system.engine.query.reservations["web"].node]
    system.lose_node(first)
    system.calm()
    assert inventory.nodes[system.engine.query.reservations["web"].node] != first


def test_a_reservation_expires_after_the_last_release_and_is_not_made_again() -> None:
    system = faulty_world(4, reservation_s=60.0)
    system.submit(min=1, max=4)
    system.calm()
    system.foreign("web", milli=2000, serving=True)
    while system.thoughts:
        system.think()
    assert system.engine.query.reservations["web"].expires == float("inf")
    system.pass_time(50.0)  # the workers take their time to leave
    system.calm()
    assert system.engine.query.reservations["web"].expires == system.now + 60.0
    system.pass_time(30.0)
    system.submit(min=4)  # another decision does not prolong it
    system.calm()
    system.pass_time(31.0)
    system.calm()
    assert not system.engine.query.reservations
    assert system.sizes()["j1"] == 4, "the pod did not use the room: it goes back to training"
    system.foreign("web", milli=1000, serving=True)  # another request
    system.calm()
    assert "web" in system.engine.query.reservations


def test_of_equal_victims_those_with_the_highest_indices_go() -> None:
    for policy in ("elastic-fifo", "dragon"):
        system = faulty_world(2, 2, 2, policy=policy)
        system.submit(min=1, max=6)
        system.calm()
        system.pass_time(100.0)  # DRAGON grows jobs after a while
        system.calm()
        assert system.sizes() == {"j1": 6}
        system.foreign("web", milli=2000, serving=True)
        system.calm()
        state = state_of(system.engine)
        target = state.world.places(state.world.target, state.world.slot("j1"))
        assert set(target[INDEX].tolist()) == {0, 1, 2, 3}
