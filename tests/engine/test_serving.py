"""What the engine promises serving pods, and what it keeps for training."""

from __future__ import annotations

from levada.core.cluster import Node
from levada.core.job import Preemptible
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


def test_training_makes_room_for_a_serving_pod_and_grows_back() -> None:
    chaos = desk(4, 2)
    chaos.submit(min=1, max=6)
    chaos.calm()
    assert chaos.sizes() == {"j1": 6}
    chaos.foreign("web", milli=2000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    kept = chaos.engine.query.reservations["web"]
    node = state_of(chaos.engine).world.inventory.nodes[kept.node]
    chaos.foreign("web", node=node, milli=2000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    assert not chaos.engine.query.reservations
    chaos.foreign_gone("web")
    chaos.calm()
    assert chaos.sizes() == {"j1": 6}


def test_serving_never_cuts_a_job_below_its_minimum() -> None:
    chaos = desk(4)
    chaos.submit(min=4)
    chaos.calm()
    chaos.foreign("web", milli=1000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}


def test_serving_takes_nothing_from_protected_jobs() -> None:
    chaos = desk(4)
    chaos.submit(min=1, max=4, preemptible=Preemptible.NEVER)
    chaos.calm()
    chaos.foreign("web", milli=1000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 4}
    assert not chaos.engine.query.reservations


def test_serving_gets_cores_where_there_are_no_gpus() -> None:
    chaos = Chaos(nodes=(Node(name="a", cpu=8000),))
    chaos.submit(min=1, max=8, milli=0, cpu=1000)
    chaos.calm()
    chaos.foreign("web", cpu=3000, serving=True)
    chaos.calm()
    assert chaos.sizes() == {"j1": 5}
    assert "web" in chaos.engine.query.reservations


def test_serving_room_counts_cores_too() -> None:
    chaos = Chaos(nodes=(Node.of("a", {"v100": 2}, cpu=4000), Node.of("b", {"v100": 4}, cpu=16000)))
    chaos.foreign("web", milli=1000, cpu=8000, serving=True)
    chaos.calm()
    kept = chaos.engine.query.reservations["web"]
    assert state_of(chaos.engine).world.inventory.nodes[kept.node] == "b"


def test_room_for_a_serving_pod_moves_when_its_node_is_lost() -> None:
    chaos = desk(2, 2)
    chaos.foreign("web", milli=1000, serving=True)
    chaos.calm()
    inventory = state_of(chaos.engine).world.inventory
    first = inventory.nodes[chaos.engine.query.reservations["web"].node]
    chaos.lose_node(first)
    chaos.calm()
    assert inventory.nodes[chaos.engine.query.reservations["web"].node] != first
