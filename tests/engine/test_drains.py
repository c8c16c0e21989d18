"""Who leaves a node that is being drained: all that may be stopped, at once or as soon as they may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from levada.core.job import Phase, Preemptible
from levada.core.reasons import Code
from tests import kernel_modes
from tests.engine.chaos import Chaos, desk
from tests.engine.inspect import state_of


@pytest.fixture(params=["interpreted", "compiled"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use("interpreted")


def running(*gpus: int, **fields: object) -> Chaos:
    """A cluster of these nodes, and a job of four workers that fills the first of them."""
    chaos = desk(*gpus)
    chaos.submit(min=4, **fields)
    chaos.calm()
    assert nodes(chaos) == {"n0"}
    return chaos


def nodes(chaos: Chaos) -> set[str]:
    world = state_of(chaos.engine).world
    slot = world.slot("j1")
    return {place.node for place in world.grant(world.held, slot).places} if world.table.held[slot] else set()


def test_a_job_that_may_be_stopped_goes_elsewhere_at_once() -> None:
    chaos = running(4, 4)
    chaos.drain("n0")
    assert chaos.job("j1")["reason"] == Code.DRAINED
    chaos.calm()
    assert nodes(chaos) == {"n1"}


@pytest.mark.parametrize("kind", [Preemptible.NEVER, Preemptible.AUTO])
def test_a_job_that_may_not_be_stopped_stays_unless_it_is_forced(kind: int) -> None:
    chaos = running(4, 4, preemptible=kind, resizes_in_place=False)
    chaos.drain("n0")
    chaos.calm()
    chaos.pass_time(400.0)
    chaos.calm()
    assert nodes(chaos) == {"n0"}
    chaos.drain("n0", force=True)
    chaos.calm()
    assert nodes(chaos) == {"n1"}


def test_a_job_leaves_as_soon_as_it_has_saved() -> None:
    chaos = running(4, 4, preemptible=Preemptible.AUTO, resizes_in_place=False)
    chaos.drain("n0")
    chaos.calm()
    chaos.save(0)
    chaos.calm()
    assert nodes(chaos) == {"n1"}


def test_whoever_stopped_and_finds_no_room_elsewhere_says_why() -> None:
    chaos = running(4)
    chaos.drain("n0")
    chaos.calm()
    chaos.pass_time(61.0)
    chaos.calm()
    assert (chaos.job("j1")["phase"], chaos.job("j1")["reason"]) == (Phase.PENDING, Code.DRAINED)
    assert chaos.engine.explain("j1").reason.text.startswith("A node it ran on is being drained; it goes on elsewhere")
    chaos.cordon("n0", False)
    chaos.calm()
    assert nodes(chaos) == {"n0"}
    chaos.cordon("n0", True)
    chaos.calm()
    assert nodes(chaos) == {"n0"}, "it was drained once, and is only cordoned now"


def test_a_job_that_is_just_starting_leaves_when_it_has_started() -> None:
    chaos = desk(4, 4)
    chaos.submit(min=4)
    chaos.think()
    chaos.drain("n0")
    chaos.calm()
    assert nodes(chaos) == {"n1"}


def test_what_is_cancelled_meanwhile_stays_so() -> None:
    chaos = running(4, 4)
    chaos.users("cancel", 0)
    chaos.drain("n0", force=True)
    chaos.calm()
    assert chaos.active() == []


def test_whoever_is_preempted_by_a_job_that_left_a_drained_node_says_so() -> None:
    chaos = desk(2, 2)
    chaos.submit(min=2)
    chaos.submit(min=2)
    chaos.calm()
    assert nodes(chaos) == {"n0"}
    chaos.drain("n0")
    chaos.calm()
    assert nodes(chaos) == {"n1"}
    assert chaos.job("j2")["reason"] == Code.MADE_ROOM
    assert "a job whose node is being drained" in chaos.engine.explain("j2").reason.text
    chaos.submit(min=1)
    chaos.calm()
    assert chaos.job("j2")["reason"] == Code.MADE_ROOM, "another decision changes nothing about it"


def test_why_a_job_stopped_is_told_again_after_it_found_no_room() -> None:
    chaos = desk(2, 1, 1)
    chaos.submit(milli=2000)
    chaos.calm()
    assert nodes(chaos) == {"n0"}
    chaos.drain("n0")
    chaos.calm()
    assert chaos.job("j1")["reason"] == Code.FRAGMENTED, "two GPUs are free, on two nodes"
    chaos.cordon("n1", True)
    chaos.calm()
    assert chaos.job("j1")["reason"] == Code.DRAINED, "no other job stopped it"
