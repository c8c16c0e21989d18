"""Planted violations: each invariant detects them and names the job, and accepts the valid variant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from levada.core.assignment import FREE, SHARED
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE
from levada.tables.invariants import (
    check,
    check_state,
    i1_no_device_beyond_whole,
    i5_protected_stay,
    i6_only_free_devices,
    i12_sums_kept,
)
from levada.tables.violations import Violation
from tests.tables.cluster_harness import A100, JOBS, V100, ClusterHarness, ProposalBuilder

pytestmark = pytest.mark.usefixtures("both_kernels")


# --- proposals: (invariant, job at fault, valid draft, invalid draft) -------------------------------------------------


def _closed(what: str) -> ClusterHarness:
    """Device 8 and its node are closed, or in foreign use."""
    harness = ClusterHarness()
    inventory = harness.world.inventory
    if what == "cordoned":
        inventory.set_cordoned(2, True)
    elif what == "lost":
        inventory.set_lost(2)
    elif what == "unhealthy":
        inventory.healthy[8] = False
    elif what == "foreign":
        inventory.foreign[8] = 500
    elif what == "foreign memory":
        inventory.foreign_gpu_memory[8] = 20001
    elif what == "reserved":
        inventory.reserved[8] = 500
    return harness


def _two_parts(second: str, at: int) -> ProposalBuilder:
    return ClusterHarness().runs("part", (0, 8), kind=A100).propose(second).give(second, (0, at), kind=A100)


def _on_closed(what: str, name: str, at: int, kind: int = A100) -> ProposalBuilder:
    return _closed(what).propose(name).give(name, (0, at), kind=kind)


def _sized(name: str, count: int, kind: int) -> ProposalBuilder:
    draft = ClusterHarness().propose(name)
    devices = (0, 1, 2, 3, 4, 5, 6, 7) if kind == V100 else (8, 9)
    gpus = 2 if name == "pairs" else 1
    draft.give(name, *((i // gpus, devices[i]) for i in range(min(count * gpus, len(devices)))), kind=kind)
    return draft.size(name, count, kind)


def _whole(*places: tuple[int, int], kind: int = V100) -> ProposalBuilder:
    return ClusterHarness().propose("whole").give("whole", *places, kind=kind)


def _pairs(*places: tuple[int, int]) -> ProposalBuilder:
    return ClusterHarness().propose("pairs").give("pairs", *places)


def _served(*nodes: int) -> ProposalBuilder:
    return ClusterHarness().propose("served").give("served", (0, 0), servers=nodes)


def _parts() -> ProposalBuilder:
    return ClusterHarness().propose("part").give("part", (0, 8), (1, 9), kind=A100)


def _running() -> ClusterHarness:
    return ClusterHarness().runs("whole", (0, 0), (1, 1)).runs("part", (0, 8), kind=A100)


def _cores(count: int, node: int = 0) -> ProposalBuilder:
    harness = ClusterHarness().runs("cores", (0, node), kind=CPU_TYPE)
    return harness.propose("cores").give("cores", *((i, node) for i in range(count)), kind=CPU_TYPE)


def _filled(name: str, count: int) -> ProposalBuilder:
    harness = ClusterHarness().runs("served", (0, 0), (1, 1), servers=(0, 0))
    return harness.propose(name).give(name, *((i, 2 + i) for i in range(count)))


def _of_class(name: str, place: int, kind: int, closed: int = 0) -> ProposalBuilder:
    """A job with a class that node number *closed* does not take gets one place: a device, or a node for its cores."""
    scene = ClusterHarness()
    inventory = scene.world.inventory
    scene.world.table.node_class[scene.slot(name)] = inventory.add_class("x")
    inventory.eligible[1, closed] = False
    inventory.changed()
    return scene.propose(name).give(name, (0, place), kind=kind)


def _extra_row(draft: ProposalBuilder) -> ProposalBuilder:
    """A job of whole GPUs with an additional worker without a GPU, which uses cores."""
    slot = draft.harness.slot("whole")
    draft.harness.world.put_workers(draft.plane, slot, np.array([[slot, 9, 0, -1, 0, 0]]).T)
    return draft


PROPOSALS: dict[str, tuple[str, str, Callable[[], ProposalBuilder], Callable[[], ProposalBuilder]]] = {
    "beyond 1000/1000": ("I1", "slice", lambda: _two_parts("slice", 9), lambda: _two_parts_sized(600)),
    "beyond its memory": ("I1", "slice", lambda: _two_parts("slice", 9), lambda: _two_parts("slice", 8)),
    "whole over a part": ("I1", "other", lambda: _two_parts("other", 9), lambda: _two_parts("other", 8)),
    "cordoned node": ("I2", "whole", lambda: _on_closed("cordoned", "whole", 7, V100), lambda: _on_closed("cordoned", "whole", 8)),
    "lost node": ("I2", "whole", lambda: _on_closed("", "whole", 8), lambda: _on_closed("lost", "whole", 8)),
    "unhealthy device": ("I2", "whole", lambda: _on_closed("unhealthy", "whole", 9), lambda: _on_closed("unhealthy", "whole", 8)),
    "others use it": ("I2", "whole", lambda: _on_closed("foreign", "whole", 9), lambda: _on_closed("foreign", "whole", 8)),
    "it is reserved": ("I2", "whole", lambda: _on_closed("reserved", "whole", 9), lambda: _on_closed("reserved", "whole", 8)),
    "part of a closed device": ("I2", "part", lambda: _on_closed("unhealthy", "part", 9), lambda: _on_closed("unhealthy", "part", 8)),
    "others leave too little": ("I2", "part", lambda: _on_closed("foreign", "slice", 8), lambda: _on_closed("foreign", "part", 8)),
    "others leave too little memory": ("I2", "part", lambda: _on_closed("foreign memory", "part", 9), lambda: _on_closed("foreign memory", "part", 8)),
    "cores of a cordoned node": ("I2", "cores", lambda: _on_closed("cordoned", "cores", 1, CPU_TYPE), lambda: _on_closed("cordoned", "cores", 2, CPU_TYPE)),
    "above its maximum": ("I3", "whole", lambda: _sized("whole", 4, V100), lambda: _sized("whole", 5, V100)),
    "below its minimum": ("I3", "whole", lambda: _sized("whole", 0, -1), lambda: _sized("whole", -1, V100)),
    "off its steps": ("I3", "pairs", lambda: _sized("pairs", 3, V100), lambda: _sized("pairs", 2, V100)),
    "type it may not use": ("I3", "part", lambda: _sized("part", 1, A100), lambda: _sized("part", 1, V100)),
    "type that does not exist": ("I3", "whole", lambda: _sized("whole", 1, V100), lambda: _sized("whole", 1, 7)),
    "no type": ("I3", "whole", lambda: _sized("whole", 1, V100), lambda: _sized("whole", 1, -1)),
    "type without workers": ("I3", "whole", lambda: _sized("whole", 0, -1), lambda: _sized("whole", 0, V100)),
    "too few devices": ("I4", "whole", lambda: _whole((0, 0), (1, 1)), lambda: _whole((0, 0)).size("whole", 2, V100)),
    "too many devices": ("I4", "whole", lambda: _whole((0, 0), (1, 1)), lambda: _whole((0, 0), (1, 1)).size("whole", 1, V100)),
    "another type's device": ("I4", "whole", lambda: _whole((0, 0), (1, 1)), lambda: _whole((0, 0), (1, 8))),
    "two devices for one worker": ("I4", "whole", lambda: _whole((0, 0), (1, 1)), lambda: _whole((0, 0), (0, 1)).size("whole", 2, V100)),
    "one worker twice": ("I4", "whole", lambda: _whole((0, 0), (1, 4)), lambda: _whole((0, 0), (0, 4)).size("whole", 2, V100)),
    "worker on two nodes": ("I4", "pairs", lambda: _pairs((0, 2), (0, 3)), lambda: _pairs((0, 3), (0, 4))),
    "half a worker": ("I4", "pairs", lambda: _pairs((0, 2), (0, 3)), lambda: _pairs((0, 2), (1, 3)).size("pairs", 1, V100)),
    "worker below zero": ("I4", "whole", lambda: _whole((0, 0)), lambda: _whole((-1, 0))),
    "a place beside its GPUs": ("I4", "whole", lambda: _whole((0, 0)), lambda: _extra_row(_whole((0, 0)))),
    "a server is missing": ("I4", "served", lambda: _served(0, 1), lambda: _served(0)),
    "one server too many": ("I4", "served", lambda: _served(0, 1), lambda: _served(0, 0, 0)),
    "the same server twice": ("I4", "served", lambda: _served(0, 0), lambda: _served(0, 0).row("served", index=-2)),
    "server of an odd number": ("I4", "served", lambda: _served(0, 0), lambda: _served(0, 0).row("served", index=-3)),
    "server with a device": ("I4", "served", lambda: _served(0, 0), lambda: _with_device(_served(0, 0))),
    "part of another size": ("I4", "part", _parts, lambda: _parts().row("part", milli=500)),
    "part with other memory": ("I4", "part", _parts, lambda: _parts().row("part", gpu_memory=1)),
    "part on another node": ("I4", "part", _parts, lambda: _parts().row("part", node=1)),
    "part of another type": ("I4", "part", _parts, lambda: _parts().give("part", (0, 0), (1, 1), kind=A100)),
    "the same worker twice": ("I4", "part", _parts, lambda: _parts().row("part", index=1)),
    "whole GPUs for parts": ("I4", "part", _parts, lambda: _whole_for_part()),
    "cores fewer than workers": ("I4", "cores", lambda: _cores(2), lambda: _cores(2).size("cores", 3, CPU_TYPE)),
    "protected shrinks": ("I5", "whole", lambda: _running().propose("whole").give("whole", (0, 0)), lambda: _running().propose("whole", protected=("whole",)).give("whole", (0, 0))),
    "protected moves": ("I5", "whole", lambda: _running().propose("whole", protected=("whole",)).give("whole", (0, 0), (1, 1), (2, 2)), lambda: _running().propose("whole", protected=("whole",)).give("whole", (0, 0), (1, 2))),
    "protected swaps workers": ("I5", "whole", lambda: _running().propose("whole").give("whole", (1, 0), (0, 1)), lambda: _running().propose("whole", protected=("whole",)).give("whole", (1, 0), (0, 1))),
    "protected part moves": ("I5", "part", lambda: _running().propose("part").give("part", (0, 9), kind=A100), lambda: _running().propose("part", protected=("part",)).give("part", (0, 9), kind=A100)),
    "robs who is out of view": ("I5", "other", lambda: _running().propose("other").give("other", (0, 2)), lambda: _running().propose("other").give("other", (0, 1))),
    "stops who is out of view": ("I5", "", lambda: _running().propose("part"), lambda: _running().propose("part").give("whole")),
    "drops parts out of view": ("I5", "", lambda: _running().propose("whole"), lambda: _running().propose("whole").give("part")),
    "cores of a node": ("I12", "cores", lambda: _cores(4), lambda: _cores(5)),
    "node closed to its class": ("I14", "whole", lambda: _of_class("whole", 4, V100), lambda: _of_class("whole", 0, V100)),
    "part on a node closed to its class": ("I14", "part", lambda: _of_class("part", 8, A100, closed=1), lambda: _of_class("part", 8, A100, closed=2)),
    "cores of a node closed to its class": ("I14", "cores", lambda: _of_class("cores", 1, CPU_TYPE), lambda: _of_class("cores", 0, CPU_TYPE)),
    "queue's limit": ("I13", "queued", lambda: _filled("queued", 4), lambda: _filled("queued", 5)),
    "child's own limit": ("I13", "queued", lambda: ClusterHarness().propose("queued").give("queued", (0, 8), kind=A100), lambda: ClusterHarness().propose("queued").give("queued", (0, 8), (1, 9), kind=A100)),
}  # fmt: skip


def _two_parts_sized(milli: int) -> ProposalBuilder:
    """Two fractions that fit by memory but not by compute."""
    harness = ClusterHarness()
    table = harness.world.table
    table.milli[harness.slot("slice")], table.gpu_memory[harness.slot("slice")] = milli, 10
    return harness.runs("part", (0, 8), kind=A100).propose("slice").give("slice", (0, 8), kind=A100)


def _with_device(draft: ProposalBuilder) -> ProposalBuilder:
    draft.row("served", device=3)
    draft.plane.owner[3] = SHARED
    return draft


def _whole_for_part() -> ProposalBuilder:
    """A job of fractions owns whole devices."""
    draft = ClusterHarness().propose("part")
    draft.plane.owner[[8, 9]], draft.plane.index[[8, 9]] = draft.harness.slot("part"), [0, 1]
    return draft.size("part", 2, A100)


@pytest.mark.parametrize("fault", PROPOSALS)
def test_an_invalid_proposal_is_rejected_and_its_valid_variant_accepted(fault: str) -> None:
    rule, guilty, healthy, broken = PROPOSALS[fault]
    twin = healthy()
    assert check(twin.harness.world, twin.done()) == []
    draft = broken()
    assert draft.harness.names(check(draft.harness.world, draft.done())) == [(rule, guilty)]


def test_every_proposal_invariant_has_a_planted_violation() -> None:
    assert {rule for rule, *_ in PROPOSALS.values()} == {"I1", "I2", "I3", "I4", "I5", "I12", "I13", "I14"}


def test_grants_older_than_a_cordon_are_no_violation() -> None:
    harness = (
        ClusterHarness()
        .runs("whole", (0, 0), (1, 1))
        .runs("part", (0, 8), kind=A100)
        .runs("cores", (0, 0), kind=CPU_TYPE)
    )
    inventory = harness.world.inventory
    for node in range(3):
        inventory.set_cordoned(node, True)
    inventory.foreign[8], inventory.foreign_gpu_memory[8], inventory.foreign_cpu[0] = 1000, 32000, 8000
    draft = harness.propose("whole", "part", "cores").give("whole", (1, 1))
    assert check(harness.world, draft.done()) == []


def test_a_node_full_of_foreign_use_keeps_its_workers_and_gets_no_more() -> None:
    harness = ClusterHarness().runs("cores", (0, 0), (1, 0), kind=CPU_TYPE).runs("whole", (0, 0))
    harness.world.inventory.foreign_cpu[0] = 7000
    draft = harness.propose("cores", "whole").give("cores", (0, 0), kind=CPU_TYPE)
    assert check(harness.world, draft.done()) == []
    draft.give("whole", (0, 0), (1, 1), (2, 2))
    assert check(harness.world, draft.done()) == []  # no more than was there before
    draft.give("whole", (0, 0), (1, 1), (2, 2), (3, 3))
    assert harness.names(check(harness.world, draft.done())) == [("I12", "whole")]


def test_an_out_of_range_size_may_stay_but_not_change() -> None:
    harness = ClusterHarness().runs("whole", (0, 0), (1, 1))
    harness.world.table.min[harness.slot("whole")] = 3
    assert check(harness.world, harness.propose("whole").done()) == []
    assert harness.names(check(harness.world, harness.propose("whole").give("whole", (0, 0)).done())) == [
        ("I3", "whole")
    ]


# --- the job at fault if a sum is exceeded ----------------------------------------------------------------------------


def test_node_memory_is_checked_like_cores() -> None:
    harness = ClusterHarness()
    harness.world.table.memory[harness.slot("cores")] = 3000
    healthy = harness.propose("cores").give("cores", (0, 0), (1, 0), kind=CPU_TYPE)
    assert check(harness.world, healthy.done()) == []
    broken = harness.propose("cores").give("cores", (0, 0), (1, 0), (2, 0), kind=CPU_TYPE)
    assert harness.names(check(harness.world, broken.done())) == [("I12", "cores")]


def test_two_new_jobs_that_exceed_a_node_together_blame_no_single_job() -> None:
    harness = ClusterHarness()
    draft = harness.propose("cores", "whole", "other")
    draft.give("whole", (0, 0), (1, 1)).give("other", (0, 2))
    draft.give("cores", *((i, 0) for i in range(4)), kind=CPU_TYPE)
    assert harness.names(check(harness.world, draft.done())) == [
        ("I12", "cores")
    ]  # without it, and only it, all is well
    draft.give("cores", *((i, 0) for i in range(3)), kind=CPU_TYPE)
    assert harness.names(check(harness.world, draft.done())) == [("I12", "")]


def test_a_full_queue_blames_the_job_that_grew() -> None:
    harness = ClusterHarness().runs("queued", *((i, i) for i in range(6)))
    assert check(harness.world, harness.propose("queued", "served").done()) == []
    draft = harness.propose("queued", "served").give("served", (0, 6), servers=(0, 0))
    assert harness.names(check(harness.world, draft.done())) == [("I13", "served")]
    # A job that shrinks makes room, and a job that only fills free capacity is no violation.
    draft.give("queued", *((i, i) for i in range(5)))
    assert check(harness.world, draft.done()) == []


def test_a_queue_over_a_lowered_limit_may_stay_but_not_grow() -> None:
    harness = ClusterHarness().runs("queued", *((i, i) for i in range(7)))
    assert check(harness.world, harness.propose("queued").give("queued", *((i, i) for i in range(6))).done()) == []
    grown = harness.propose("queued").give("queued", *((i, i) for i in range(8)))
    assert harness.names(check(harness.world, grown.done())) == [("I13", "queued")]


def test_a_fraction_on_a_whole_device_blames_the_new_job() -> None:
    harness = ClusterHarness().runs("whole", (0, 8), kind=A100)
    draft = harness.propose("part").give("part", (0, 8), kind=A100)
    assert harness.names(i5_protected_stay(harness.world, draft.done())) == [("I5", "part")]


def test_wrong_sums_of_a_proposal_are_detected() -> None:
    harness = ClusterHarness()
    draft = harness.propose("whole").give("whole", (0, 0))
    assert i12_sums_kept(harness.world, draft.plane) == []
    draft.plane.memory[0] += 1
    assert harness.names(check(harness.world, draft.done())) == [("I12", "")]


# --- I6 -------------------------------------------------------------------------------------------------------------


def test_i6_a_device_held_by_another_job_is_not_free() -> None:
    harness = ClusterHarness().runs("whole", (0, 0), (1, 1)).runs("part", (0, 8), kind=A100)
    other = harness.slot("other")

    def ask(*devices: int, taker: int = other) -> list[tuple[str, str]]:
        return harness.names(i6_only_free_devices(harness.world, np.array(devices), np.full(len(devices), taker)))

    assert ask(2, 3) == []
    assert ask(0, 1, taker=harness.slot("whole")) == []  # its own
    assert ask(1, 2) == [("I6", "other")]
    assert ask(8) == [("I6", "other")]  # used in fractions


def test_i6_fractions_wait_until_enough_of_the_device_is_free() -> None:
    harness = ClusterHarness().runs("whole", (0, 9), kind=A100).runs("part", (0, 8), kind=A100)
    nothing = np.zeros(0, np.int64)

    def ask(name: str, at: int, milli: int, memory: int) -> list[Violation]:
        row = np.array([[harness.slot(name), 1, 2, at, milli, memory]]).T
        return i6_only_free_devices(harness.world, nothing, nothing, row)

    assert ask("slice", 8, 400, 20000) == []
    assert harness.names(ask("slice", 8, 401, 0)) == [("I6", "slice")]
    assert harness.names(ask("slice", 8, 300, 20001)) == [("I6", "slice")]
    assert harness.names(ask("slice", 9, 1, 0)) == [("I6", "slice")]


# --- states -----------------------------------------------------------------------------------------------------------


def _busy() -> ClusterHarness:
    """One job of every shape runs, except one pending job."""
    return (
        ClusterHarness()
        .runs("whole", (0, 0), (1, 1))
        .runs("pairs", (0, 4), (0, 5))
        .runs("part", (0, 8), kind=A100)
        .runs("cores", (0, 0), (1, 2), kind=CPU_TYPE)
        .runs("served", (0, 2), servers=(0, 1))
    )


def _set(column: str, name: str, value: int) -> Callable[[ClusterHarness], None]:
    def plant(harness: ClusterHarness) -> None:
        getattr(harness.world.table, column)[harness.slot(name)] = value

    return plant


def _take(plane: str, device: int, name: str) -> Callable[[ClusterHarness], None]:
    def plant(harness: ClusterHarness) -> None:
        getattr(harness.world, plane).owner[device] = harness.slot(name)

    return plant


def _duplicate(harness: ClusterHarness) -> None:
    table = harness.world.table
    table.order = np.append(table.order, harness.slot("other"))


def _suspend_without_reason(harness: ClusterHarness) -> None:
    table, slot = harness.world.table, harness.slot("whole")
    for plane in (harness.world.target, harness.world.held):
        harness.put(plane, "whole")
    table.count[slot] = table.held[slot] = 0
    table.type[slot] = table.held_type[slot] = -1
    table.phase[slot] = Phase.SUSPENDED


def _double_part(harness: ClusterHarness) -> None:
    """Two workers with the same fraction on one device."""
    held = harness.world.held
    row = held.rows_of(harness.slot("part")).copy()
    row[1] = 1
    held.add_rows(row)
    harness.world.table.held[harness.slot("part")] = 2


def _forget(harness: ClusterHarness) -> None:
    harness.world.ids.pop(harness.world.numbers.pop("other"))


def _leave(name: str) -> Callable[[ClusterHarness], None]:
    """Remove a job without releasing its devices."""

    def plant(harness: ClusterHarness) -> None:
        harness.world.remove_jobs(np.array([harness.slot(name)]))

    return plant


STATES: dict[str, tuple[set[tuple[str, str]], Callable[[ClusterHarness], None]]] = {
    "held beyond the device": ({("I1", "part")}, _double_part),
    "shared without users": ({("I1", "")}, lambda harness: harness.world.held.owner.__setitem__(9, SHARED)),
    "target smaller than its count": ({("I4", "whole")}, _set("count", "whole", 3)),
    "holds more than it says": ({("I4", "whole")}, _set("held", "whole", 1)),
    "holds another type": ({("I4", "whole")}, _set("held_type", "whole", A100)),
    "count without a type": ({("I4", "cores")}, _set("type", "cores", -1)),
    "type without a count": ({("I4", "other")}, _set("type", "other", V100)),
    "holds while it waits": ({("I4", "other")}, _set("held", "other", 1)),
    "waits without a reason": ({("I9", "other")}, _set("reason", "other", Code.RUNS)),
    "waits though it is over": ({("I9", "other")}, _set("reason", "other", Code.FINISHED)),
    "an unknown reason": ({("I9", "other")}, _set("reason", "other", 999)),
    "suspended without a reason": (
        {("I9", "whole")},
        _suspend_without_reason,
    ),
    "over, and in the table": ({("I11", "other")}, _set("phase", "other", Phase.SUCCEEDED)),
    "twice in the order": ({("I11", "")}, _duplicate),
    "without an id": ({("I11", "")}, _forget),
}  # fmt: skip


@pytest.mark.parametrize("fault", STATES)
def test_an_invalid_state_is_detected(fault: str) -> None:
    expected, plant = STATES[fault]
    harness = _busy()
    assert check_state(harness.world, submitted=len(JOBS), ended=0) == []
    plant(harness)
    assert set(harness.names(check_state(harness.world, submitted=len(JOBS), ended=0))) == expected


@pytest.mark.parametrize("plane", ["target", "held"])
@pytest.mark.parametrize("what", ["cpu", "memory"])
def test_wrong_sums_of_an_assignment_are_detected(plane: str, what: str) -> None:
    harness = _busy()
    getattr(getattr(harness.world, plane), what)[1] += 1
    assert harness.names(check_state(harness.world, submitted=len(JOBS), ended=0)) == [("I12", "")]


@pytest.mark.parametrize("plane", ["target", "held"])
def test_a_device_granted_twice_is_detected(plane: str) -> None:
    """The second grant overwrites the first: one job has too few devices, the other too many."""
    harness = _busy()
    _take(plane, 1, "other")(harness)
    violations = harness.names(check_state(harness.world, submitted=len(JOBS), ended=0))
    assert {violation for violation in violations if violation[0] != "I12"} == {("I4", "whole"), ("I4", "other")}


@pytest.mark.parametrize("name", ["whole", "part", "cores"])
def test_placement_rows_of_an_ended_job_are_detected(name: str) -> None:
    harness = _busy()
    slot = harness.slot(name)
    _leave(name)(harness)
    violations = check_state(harness.world, submitted=len(JOBS), ended=1)
    assert [(violation.rule, violation.slot) for violation in violations] == [("I8", slot), ("I8", slot)]
    for plane in (harness.world.target, harness.world.held):
        harness.world.clear_workers(plane, slot)
    assert check_state(harness.world, submitted=len(JOBS), ended=1) == []


@pytest.mark.parametrize(("submitted", "ended"), [(len(JOBS) + 1, 0), (len(JOBS), 1), (len(JOBS) - 1, 0)])
def test_a_lost_job_is_detected(submitted: int, ended: int) -> None:
    harness = _busy()
    assert harness.names(check_state(harness.world, submitted=submitted, ended=ended)) == [("I11", "")]


def test_a_job_missing_from_the_number_index_is_detected() -> None:
    harness = _busy()
    slot = harness.slot("other")
    harness.world.table.number[slot] = 77
    violations = check_state(harness.world, submitted=len(JOBS), ended=0)
    assert [(violation.rule, violation.slot) for violation in violations] == [("I11", slot)]


def test_a_job_in_transition_may_hold_old_and_new_devices() -> None:
    harness = _busy()
    table, slot = harness.world.table, harness.slot("whole")
    harness.put(harness.world.held, "whole", (0, 0), (1, 1), (1, 6))
    for issued in (1, 0):  # pending, or unacknowledged and to be issued again
        table.phase[slot], table.op[slot], table.issued[slot] = Phase.RESIZING, OpKind.RESIZE, issued
        assert check_state(harness.world, submitted=len(JOBS), ended=0) == []
    table.phase[slot], table.op[slot], table.issued[slot] = Phase.RUNNING, OpKind.NONE, 0
    assert harness.names(check_state(harness.world, submitted=len(JOBS), ended=0)) == [("I4", "whole")]


def test_a_device_marked_free_with_fractions_is_detected() -> None:
    harness = _busy()
    harness.world.held.owner[8] = FREE
    assert harness.names(i1_no_device_beyond_whole(harness.world, harness.world.held)) == [("I1", "part")]
