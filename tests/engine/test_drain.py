"""Drain: jobs leave the node at once, or as soon as they may be stopped."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from levada.core import events as ev
from levada.core.job import Phase, Preemptible
from levada.core.reasons import Code
from levada.engine import persist
from levada.policies import registry
from tests import kernel_modes
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use("interpreted")


def running(*gpus: int, **fields: object) -> FaultyWorld:
    """A cluster of these nodes with a job of four workers that fills the first node."""
    system = faulty_world(*gpus)
    system.submit(min=4, **fields)
    system.calm()
    assert nodes(system) == {"n0"}
    return system


def nodes(system: FaultyWorld) -> set[str]:
    world = state_of(system.engine).world
    slot = world.slot("j1")
    return {place.node for place in world.grant(world.held, slot).places} if world.table.held[slot] else set()


def test_a_preemptible_job_leaves_a_drained_node_at_once() -> None:
    system = running(4, 4)
    system.drain("n0")
    assert system.job("j1")["reason"] == Code.DRAINED
    system.calm()
    assert nodes(system) == {"n1"}


@pytest.mark.parametrize("kind", [Preemptible.NEVER, Preemptible.AUTO])
def test_a_protected_job_stays_on_a_drained_node_unless_forced(kind: int) -> None:
    system = running(4, 4, preemptible=kind, resizes_in_place=False)
    system.drain("n0")
    system.calm()
    system.pass_time(400.0)
    system.calm()
    assert nodes(system) == {"n0"}
    system.drain("n0", force=True)
    system.calm()
    assert nodes(system) == {"n1"}


def test_a_job_leaves_a_drained_node_after_its_checkpoint() -> None:
    system = running(4, 4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    system.drain("n0")
    system.calm()
    system.save(0)
    system.calm()
    assert nodes(system) == {"n1"}


def test_a_job_stopped_by_a_drain_without_room_elsewhere_says_why() -> None:
    system = running(4)
    system.drain("n0")
    system.calm()
    system.pass_time(61.0)
    system.calm()
    assert (system.job("j1")["phase"], system.job("j1")["reason"]) == (Phase.PENDING, Code.DRAINED)
    assert system.engine.explain("j1").reason.text.startswith("Its node is being drained. Needs 4 GPUs; 0 v100 free.")
    system.cordon("n0", False)
    system.calm()
    assert nodes(system) == {"n0"}
    system.cordon("n0", True)
    system.calm()
    assert nodes(system) == {"n0"}, "the drain has ended; the node is only cordoned"


def test_a_starting_job_leaves_a_drained_node_after_its_start() -> None:
    system = faulty_world(4, 4)
    system.submit(min=4)
    system.think()
    system.drain("n0")
    system.calm()
    assert nodes(system) == {"n1"}


def test_a_job_cancelled_during_a_drain_stays_cancelled() -> None:
    system = running(4, 4)
    system.users("cancel", 0)
    system.drain("n0", force=True)
    system.calm()
    assert system.active() == []


def test_a_job_preempted_by_a_drained_job_says_so() -> None:
    system = faulty_world(2, 2)
    system.submit(min=2)
    system.submit(min=2)
    system.calm()
    assert nodes(system) == {"n0"}
    system.drain("n0")
    system.calm()
    assert nodes(system) == {"n1"}
    assert system.job("j2")["reason"] == Code.MADE_ROOM
    assert "a job whose node is being drained" in system.engine.explain("j2").reason.text
    system.submit(min=1)
    system.calm()
    assert system.job("j2")["reason"] == Code.MADE_ROOM, "another decision does not change the reason"


def test_the_drain_reason_returns_after_a_failed_placement() -> None:
    system = faulty_world(2, 1, 1)
    system.submit(milli=2000)
    system.calm()
    assert nodes(system) == {"n0"}
    system.drain("n0")
    system.calm()
    assert system.job("j1")["reason"] == Code.FRAGMENTED, "two GPUs are free, on two nodes"
    system.cordon("n1", True)
    system.calm()
    assert system.job("j1")["reason"] == Code.DRAINED, "no other job stopped it"


def test_a_cordon_in_an_older_dump_is_the_operators() -> None:
    system = faulty_world(2, 2)
    system.cordon("n1", True)
    stored = persist.dump(system.engine)
    nodes = (stored.machines.nodes[0], msgspec.structs.replace(stored.machines.nodes[1], cordoned=True))
    older = msgspec.structs.replace(stored.machines, cordoned_by_operator=None, nodes=nodes)
    engine = persist.load(msgspec.structs.replace(stored, machines=older), registry.make).engine
    inventory = state_of(engine).world.inventory
    assert inventory.cordoned.tolist() == [False, True]
    engine.handle(ev.NodesCordoned(at=1.0, names=("n1",), cordoned=False))
    assert not inventory.cordoned.any()
