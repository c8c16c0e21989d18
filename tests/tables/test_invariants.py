"""Planted faults: each rule notices what breaks it, names the job, and lets the healthy twin pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.plane import FREE, SHARED
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE
from levada.tables.invariants import (
    Violation,
    check,
    check_state,
    i1_no_device_beyond_whole,
    i5_protected_stay,
    i6_only_free_devices,
    i12_sums_kept,
)
from tests import kernel_modes
from tests.tables.scenes import A100, JOBS, V100, Draft, Scene


@pytest.fixture(autouse=True, params=["interpreted", "compiled"])
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernel_modes.active()
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)


# --- proposals: (rule, who is at fault, the healthy draft, the broken one) --------------------------------------------


def _closed(what: str) -> Scene:
    """Device 8 and its node are closed, or others use the device."""
    scene = Scene()
    inventory = scene.world.inventory
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
    return scene


def _two_parts(second: str, at: int) -> Draft:
    return Scene().runs("part", (0, 8), kind=A100).propose(second).give(second, (0, at), kind=A100)


def _on_closed(what: str, name: str, at: int, kind: int = A100) -> Draft:
    return _closed(what).propose(name).give(name, (0, at), kind=kind)


def _sized(name: str, count: int, kind: int) -> Draft:
    draft = Scene().propose(name)
    devices = (0, 1, 2, 3, 4, 5, 6, 7) if kind == V100 else (8, 9)
    each = 2 if name == "pairs" else 1
    draft.give(name, *((i // each, devices[i]) for i in range(min(count * each, len(devices)))), kind=kind)
    return draft.size(name, count, kind)


def _whole(*places: tuple[int, int], kind: int = V100) -> Draft:
    return Scene().propose("whole").give("whole", *places, kind=kind)


def _pairs(*places: tuple[int, int]) -> Draft:
    return Scene().propose("pairs").give("pairs", *places)


def _served(*nodes: int) -> Draft:
    return Scene().propose("served").give("served", (0, 0), servers=nodes)


def _parts() -> Draft:
    return Scene().propose("part").give("part", (0, 8), (1, 9), kind=A100)


def _running() -> Scene:
    return Scene().runs("whole", (0, 0), (1, 1)).runs("part", (0, 8), kind=A100)


def _cores(count: int, node: int = 0) -> Draft:
    scene = Scene().runs("cores", (0, node), kind=CPU_TYPE)
    return scene.propose("cores").give("cores", *((i, node) for i in range(count)), kind=CPU_TYPE)


def _filled(name: str, count: int) -> Draft:
    scene = Scene().runs("served", (0, 0), (1, 1), servers=(0, 0))
    return scene.propose(name).give(name, *((i, 2 + i) for i in range(count)))


def _extra_row(draft: Draft) -> Draft:
    """A job of whole GPUs also has a worker without one, and pays for it."""
    slot = draft.scene.slot("whole")
    draft.scene.world.put_workers(draft.plane, slot, np.array([[slot, 9, 0, -1, 0, 0]]).T)
    return draft


PROPOSALS: dict[str, tuple[str, str, Callable[[], Draft], Callable[[], Draft]]] = {
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
    "queue's limit": ("I13", "queued", lambda: _filled("queued", 4), lambda: _filled("queued", 5)),
    "child's own limit": ("I13", "queued", lambda: Scene().propose("queued").give("queued", (0, 8), kind=A100), lambda: Scene().propose("queued").give("queued", (0, 8), (1, 9), kind=A100)),
}  # fmt: skip


def _two_parts_sized(milli: int) -> Draft:
    """Two parts that fit by memory but not by compute."""
    scene = Scene()
    table = scene.world.table
    table.milli[scene.slot("slice")], table.gpu_memory[scene.slot("slice")] = milli, 10
    return scene.runs("part", (0, 8), kind=A100).propose("slice").give("slice", (0, 8), kind=A100)


def _with_device(draft: Draft) -> Draft:
    draft.row("served", device=3)
    draft.plane.owner[3] = SHARED
    return draft


def _whole_for_part() -> Draft:
    """A job of parts has the devices whole."""
    draft = Scene().propose("part")
    draft.plane.owner[[8, 9]], draft.plane.index[[8, 9]] = draft.scene.slot("part"), [0, 1]
    return draft.size("part", 2, A100)


@pytest.mark.parametrize("fault", PROPOSALS)
def test_a_broken_proposal_is_caught_and_its_healthy_twin_passes(fault: str) -> None:
    rule, guilty, healthy, broken = PROPOSALS[fault]
    twin = healthy()
    assert check(twin.scene.world, twin.done()) == []
    draft = broken()
    assert draft.scene.names(check(draft.scene.world, draft.done())) == [(rule, guilty)]


def test_every_rule_about_proposals_has_a_planted_fault() -> None:
    assert {rule for rule, *_ in PROPOSALS.values()} == {"I1", "I2", "I3", "I4", "I5", "I12", "I13"}


def test_what_was_there_before_a_node_closed_is_no_violation() -> None:
    scene = Scene().runs("whole", (0, 0), (1, 1)).runs("part", (0, 8), kind=A100).runs("cores", (0, 0), kind=CPU_TYPE)
    inventory = scene.world.inventory
    for node in range(3):
        inventory.set_cordoned(node, True)
    inventory.foreign[8], inventory.foreign_gpu_memory[8], inventory.foreign_cpu[0] = 1000, 32000, 8000
    draft = scene.propose("whole", "part", "cores").give("whole", (1, 1))
    assert check(scene.world, draft.done()) == []


def test_a_node_that_others_fill_may_keep_what_it_has_but_not_get_more() -> None:
    scene = Scene().runs("cores", (0, 0), (1, 0), kind=CPU_TYPE).runs("whole", (0, 0))
    scene.world.inventory.foreign_cpu[0] = 7000
    draft = scene.propose("cores", "whole").give("cores", (0, 0), kind=CPU_TYPE)
    assert check(scene.world, draft.done()) == []
    draft.give("whole", (0, 0), (1, 1), (2, 2))
    assert check(scene.world, draft.done()) == []  # no more than was there before
    draft.give("whole", (0, 0), (1, 1), (2, 2), (3, 3))
    assert scene.names(check(scene.world, draft.done())) == [("I12", "whole")]


def test_a_size_out_of_range_may_stay_but_not_change() -> None:
    scene = Scene().runs("whole", (0, 0), (1, 1))
    scene.world.table.min[scene.slot("whole")] = 3
    assert check(scene.world, scene.propose("whole").done()) == []
    assert scene.names(check(scene.world, scene.propose("whole").give("whole", (0, 0)).done())) == [("I3", "whole")]


# --- who is at fault where a sum is exceeded --------------------------------------------------------------------------


def test_memory_of_a_node_is_watched_like_its_cores() -> None:
    scene = Scene()
    scene.world.table.memory[scene.slot("cores")] = 3000
    healthy = scene.propose("cores").give("cores", (0, 0), (1, 0), kind=CPU_TYPE)
    assert check(scene.world, healthy.done()) == []
    broken = scene.propose("cores").give("cores", (0, 0), (1, 0), (2, 0), kind=CPU_TYPE)
    assert scene.names(check(scene.world, broken.done())) == [("I12", "cores")]


def test_nobody_is_at_fault_where_two_newcomers_together_are_too_much() -> None:
    scene = Scene()
    draft = scene.propose("cores", "whole", "other")
    draft.give("whole", (0, 0), (1, 1)).give("other", (0, 2))
    draft.give("cores", *((i, 0) for i in range(4)), kind=CPU_TYPE)
    assert scene.names(check(scene.world, draft.done())) == [("I12", "cores")]  # without it, and only it, all is well
    draft.give("cores", *((i, 0) for i in range(3)), kind=CPU_TYPE)
    assert scene.names(check(scene.world, draft.done())) == [("I12", "")]


def test_a_full_queue_blames_the_one_that_grew() -> None:
    scene = Scene().runs("queued", *((i, i) for i in range(6)))
    assert check(scene.world, scene.propose("queued", "served").done()) == []
    draft = scene.propose("queued", "served").give("served", (0, 6), servers=(0, 0))
    assert scene.names(check(scene.world, draft.done())) == [("I13", "served")]
    # Who makes room for it is not in the way, and who only fills the gap breaks nothing.
    draft.give("queued", *((i, i) for i in range(5)))
    assert check(scene.world, draft.done()) == []


def test_a_queue_that_is_over_a_new_limit_may_stay_but_not_grow() -> None:
    scene = Scene().runs("queued", *((i, i) for i in range(7)))
    assert check(scene.world, scene.propose("queued").give("queued", *((i, i) for i in range(6))).done()) == []
    grown = scene.propose("queued").give("queued", *((i, i) for i in range(8)))
    assert scene.names(check(scene.world, grown.done())) == [("I13", "queued")]


def test_parts_laid_over_a_whole_device_are_the_robbers_fault() -> None:
    scene = Scene().runs("whole", (0, 8), kind=A100)
    draft = scene.propose("part").give("part", (0, 8), kind=A100)
    assert scene.names(i5_protected_stay(scene.world, draft.done())) == [("I5", "part")]


def test_sums_that_a_proposal_keeps_wrong_are_found() -> None:
    scene = Scene()
    draft = scene.propose("whole").give("whole", (0, 0))
    assert i12_sums_kept(scene.world, draft.plane) == []
    draft.plane.memory[0] += 1
    assert scene.names(check(scene.world, draft.done())) == [("I12", "")]


# --- I6 -------------------------------------------------------------------------------------------------------------


def test_i6_a_device_that_another_holds_is_not_free() -> None:
    scene = Scene().runs("whole", (0, 0), (1, 1)).runs("part", (0, 8), kind=A100)
    other = scene.slot("other")

    def ask(*devices: int, taker: int = other) -> list[tuple[str, str]]:
        return scene.names(i6_only_free_devices(scene.world, np.array(devices), np.full(len(devices), taker)))

    assert ask(2, 3) == []
    assert ask(0, 1, taker=scene.slot("whole")) == []  # its own
    assert ask(1, 2) == [("I6", "other")]
    assert ask(8) == [("I6", "other")]  # in parts


def test_i6_parts_wait_until_enough_of_the_device_is_free() -> None:
    scene = Scene().runs("whole", (0, 9), kind=A100).runs("part", (0, 8), kind=A100)
    nothing = np.zeros(0, np.int64)

    def ask(name: str, at: int, milli: int, memory: int) -> list[Violation]:
        row = np.array([[scene.slot(name), 1, 2, at, milli, memory]]).T
        return i6_only_free_devices(scene.world, nothing, nothing, row)

    assert ask("slice", 8, 400, 20000) == []
    assert scene.names(ask("slice", 8, 401, 0)) == [("I6", "slice")]
    assert scene.names(ask("slice", 8, 300, 20001)) == [("I6", "slice")]
    assert scene.names(ask("slice", 9, 1, 0)) == [("I6", "slice")]


# --- states -----------------------------------------------------------------------------------------------------------


def _busy() -> Scene:
    """Every shape of job runs but one, which waits."""
    return (
        Scene()
        .runs("whole", (0, 0), (1, 1))
        .runs("pairs", (0, 4), (0, 5))
        .runs("part", (0, 8), kind=A100)
        .runs("cores", (0, 0), (1, 2), kind=CPU_TYPE)
        .runs("served", (0, 2), servers=(0, 1))
    )


def _set(column: str, name: str, value: int) -> Callable[[Scene], None]:
    def plant(scene: Scene) -> None:
        getattr(scene.world.table, column)[scene.slot(name)] = value

    return plant


def _take(plane: str, device: int, name: str) -> Callable[[Scene], None]:
    def plant(scene: Scene) -> None:
        getattr(scene.world, plane).owner[device] = scene.slot(name)

    return plant


def _duplicate(scene: Scene) -> None:
    table = scene.world.table
    table.order = np.append(table.order, scene.slot("other"))


def _suspend_in_silence(scene: Scene) -> None:
    table, slot = scene.world.table, scene.slot("whole")
    for plane in (scene.world.target, scene.world.held):
        scene.put(plane, "whole")
    table.count[slot] = table.held[slot] = 0
    table.type[slot] = table.held_type[slot] = -1
    table.phase[slot] = Phase.SUSPENDED


def _double_part(scene: Scene) -> None:
    """The part twice, for two workers, on one device."""
    held = scene.world.held
    row = held.rows_of(scene.slot("part")).copy()
    row[1] = 1
    held.add_rows(row)
    scene.world.table.held[scene.slot("part")] = 2


def _forget(scene: Scene) -> None:
    scene.world.ids.pop(scene.world.numbers.pop("other"))


def _leave(name: str) -> Callable[[Scene], None]:
    """The job is gone, but what it had was not taken away."""

    def plant(scene: Scene) -> None:
        scene.world.remove_jobs(np.array([scene.slot(name)]))

    return plant


STATES: dict[str, tuple[set[tuple[str, str]], Callable[[Scene], None]]] = {
    "held beyond the device": ({("I1", "part")}, _double_part),
    "cut up for nobody": ({("I1", "")}, lambda scene: scene.world.held.owner.__setitem__(9, SHARED)),
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
        _suspend_in_silence,
    ),
    "over, and in the table": ({("I11", "other")}, _set("phase", "other", Phase.SUCCEEDED)),
    "twice in the order": ({("I11", "")}, _duplicate),
    "without an id": ({("I11", "")}, _forget),
}  # fmt: skip


@pytest.mark.parametrize("fault", STATES)
def test_a_broken_state_is_caught(fault: str) -> None:
    expected, plant = STATES[fault]
    scene = _busy()
    assert check_state(scene.world, submitted=len(JOBS), ended=0) == []
    plant(scene)
    assert set(scene.names(check_state(scene.world, submitted=len(JOBS), ended=0))) == expected


@pytest.mark.parametrize("plane", ["target", "held"])
@pytest.mark.parametrize("what", ["cpu", "memory"])
def test_a_plane_that_keeps_wrong_sums_is_caught(plane: str, what: str) -> None:
    scene = _busy()
    getattr(getattr(scene.world, plane), what)[1] += 1
    assert scene.names(check_state(scene.world, submitted=len(JOBS), ended=0)) == [("I12", "")]


@pytest.mark.parametrize("plane", ["target", "held"])
def test_a_device_with_two_masters_is_caught(plane: str) -> None:
    """The second one overwrites the first, so both are off: one has too little, the other too much."""
    scene = _busy()
    _take(plane, 1, "other")(scene)
    found = scene.names(check_state(scene.world, submitted=len(JOBS), ended=0))
    assert {each for each in found if each[0] != "I12"} == {("I4", "whole"), ("I4", "other")}


@pytest.mark.parametrize("name", ["whole", "part", "cores"])
def test_places_of_a_job_that_is_over_are_caught(name: str) -> None:
    scene = _busy()
    slot = scene.slot(name)
    _leave(name)(scene)
    found = check_state(scene.world, submitted=len(JOBS), ended=1)
    assert [(each.rule, each.slot) for each in found] == [("I8", slot), ("I8", slot)]
    for plane in (scene.world.target, scene.world.held):
        scene.world.clear_workers(plane, slot)
    assert check_state(scene.world, submitted=len(JOBS), ended=1) == []


@pytest.mark.parametrize(("submitted", "ended"), [(len(JOBS) + 1, 0), (len(JOBS), 1), (len(JOBS) - 1, 0)])
def test_jobs_do_not_get_lost(submitted: int, ended: int) -> None:
    scene = _busy()
    assert scene.names(check_state(scene.world, submitted=submitted, ended=ended)) == [("I11", "")]


def test_a_job_that_cannot_be_found_by_its_number_is_caught() -> None:
    scene = _busy()
    slot = scene.slot("other")
    scene.world.table.number[slot] = 77
    found = check_state(scene.world, submitted=len(JOBS), ended=0)
    assert [(each.rule, each.slot) for each in found] == [("I11", slot)]


def test_a_job_on_its_way_may_hold_old_and_new() -> None:
    scene = _busy()
    table, slot = scene.world.table, scene.slot("whole")
    scene.put(scene.world.held, "whole", (0, 0), (1, 1), (1, 6))
    for issued in (1, 0):  # under way, or without an answer and to be asked for again
        table.phase[slot], table.op[slot], table.issued[slot] = Phase.RESIZING, OpKind.RESIZE, issued
        assert check_state(scene.world, submitted=len(JOBS), ended=0) == []
    table.phase[slot], table.op[slot], table.issued[slot] = Phase.RUNNING, OpKind.NONE, 0
    assert scene.names(check_state(scene.world, submitted=len(JOBS), ended=0)) == [("I4", "whole")]


def test_a_free_device_with_parts_is_no_free_device() -> None:
    scene = _busy()
    scene.world.held.owner[8] = FREE
    assert scene.names(i1_no_device_beyond_whole(scene.world, scene.world.held)) == [("I1", "part")]
