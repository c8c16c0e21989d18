"""Laws that every policy obeys, with and without queues; then its own laws."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from levada.core.assignment import MILLI, SLOT
from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import PACKED, WHOLE
from levada.perf.model import ThroughputModel, remaining_s
from levada.policies import registry
from levada.policies.catalog import POLICIES
from levada.policies.protocol import AnyPolicy, decides_by_node
from levada.policies.queued import queued
from levada.policies.shares import Bounds
from levada.policies.sizes import asked, largest, on_grid
from levada.tables.snapshot import Snapshot
from tests import kernel_modes
from tests.strategies import PolicyInput, policy_inputs

#: Policies that decide by node have laws of their own besides.
BY_NODE = ("dragon", "dragon-compat")
LAWFUL = [name for name in registry.names() if name not in BY_NODE]
SHARING = [record.name for record in POLICIES if record.shares]
ELASTIC = ["elastic-fifo", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"]
#: AFS-L gives the first grant to the later of two equal jobs, by its rule; to AlloX both are as cheap in each other's
#: place, and it takes the one that Gavel's took.
IN_SUBMISSION_ORDER = [name for name in LAWFUL if name not in ("afs-l", "allox")]

ANY_SCENE = st.one_of(
    policy_inputs(),
    policy_inputs(odd=True),
    policy_inputs(types=3, odd=True),
    policy_inputs(with_queues=True),
    policy_inputs(types=2, odd=True, with_queues=True),
)
QUEUED_SCENE = st.one_of(
    policy_inputs(with_queues=True), policy_inputs(types=2, odd=True, with_queues=True, most_jobs=10)
)


def reporting_name(names: list[str], scene: PolicyInput | None = None) -> Iterator[str]:
    """The names one by one, to report which one fails; all share one instance.

    Policies that solve something take their time too: each *scene* meets a few of them, in turn.
    """
    turn = 0 if scene is None else int(scene.snap.jobs.number.sum() + scene.snap.capacity.sum() // 1000)
    sharing = [name for name in names if name in SHARING]
    chosen = {sharing[(turn + nth) % len(sharing)] for nth in range(min(3, len(sharing)))}
    for name in names:
        if name in chosen or name not in SHARING:
            note(f"policy: {name}")
            yield name


def decide(policy: AnyPolicy, scene: PolicyInput) -> Decision:
    return policy.decide(scene.snap, scene.perf, policy.initial(7))[0]


def used(snap: Snapshot, result: Decision) -> Any:
    total = np.zeros(len(snap.capacity), np.int64)
    runs = result.count > 0
    np.add.at(total, result.type[runs], (result.count * snap.jobs.unit)[runs])
    if result.places is not None:
        # Two jobs on one device have half of it each.
        half = result.places[:, (result.places[MILLI] == PACKED) & (snap.jobs.milli[result.places[SLOT]] >= WHOLE)]
        np.subtract.at(total, result.type[half[SLOT]], WHOLE - PACKED)
    return total


def free_for(snap: Snapshot, result: Decision) -> Any:
    """Per job what is free of its type."""
    return (snap.capacity - used(snap, result))[result.type]


def as_bytes(result: Decision) -> bytes:
    columns = (result.number, result.type, result.count, result.reason, result.evidence, np.array(result.wake_at))
    return b"".join(column.tobytes() for column in columns)


def assert_sound(scene: PolicyInput, result: Decision) -> None:
    """I2, I3 and I9 as far as a decision shows them."""
    snap, jobs = scene.snap, scene.snap.jobs
    runs = result.count > 0
    assert result.number.tolist() == jobs.number.tolist()
    assert (used(snap, result) <= snap.capacity).all()
    assert (result.type[~runs] == -1).all()
    assert (result.count >= 0).all()
    assert snap.allowed[runs.nonzero()[0], result.type[runs]].all()
    assert (result.count[runs] >= jobs.min[runs]).all()
    assert (result.count[runs] <= jobs.max[runs]).all()
    assert ((result.count - jobs.min)[runs] % jobs.step[runs] == 0).all()
    assert (result.reason[runs] == Code.RUNS).all()
    assert (result.reason[~runs] != Code.RUNS).all()
    assert result.wake_at > snap.now


@pytest.mark.parametrize("in_queues", [False, True], ids=["alone", "queued"])
@given(scene=ANY_SCENE)
def test_a_decision_is_sound(in_queues: bool, scene: PolicyInput) -> None:
    for name in reporting_name(LAWFUL, scene):
        policy = registry.make(name)
        result = decide(queued(policy) if in_queues else policy, scene)
        assert_sound(scene, result)


@pytest.mark.parametrize("in_queues", [False, True], ids=["alone", "queued"])
@given(scene=ANY_SCENE)
@settings(max_examples=25)
def test_same_input_same_output_in_both_kernels(in_queues: bool, scene: PolicyInput) -> None:
    for name in reporting_name(LAWFUL, scene):
        before, answers = kernel_modes.active(), []
        try:
            for mode in ("interpreted", "compiled", "interpreted"):
                kernel_modes.use(mode)
                policy = registry.make(name)
                answers.append(as_bytes(decide(queued(policy) if in_queues else policy, scene)))
        finally:
            kernel_modes.use(before)
        assert len(set(answers)) == 1


@given(scene=policy_inputs(types=2, odd=True, with_queues=True))
@settings(max_examples=25)
def test_a_decision_changes_nothing_it_was_given(scene: PolicyInput) -> None:
    for name in reporting_name(LAWFUL, scene):
        table, capacity = scene.world.table.copy(), scene.snap.capacity.copy()
        decide(queued(registry.make(name)), scene)
        decide(registry.make(name), scene)
        assert (scene.world.table.ints == table.ints).all()
        assert np.array_equal(scene.world.table.floats, table.floats, equal_nan=True)
        assert (scene.snap.capacity == capacity).all()


# --- reasons -------------------------------------------------------------------------------------------------------


@given(scene=st.one_of(policy_inputs(types=3, odd=True), policy_inputs()))
def test_reasons_are_true(scene: PolicyInput) -> None:
    for name in reporting_name(LAWFUL, scene):
        snap, result = scene.snap, decide(registry.make(name), scene)
        by_request = name == "tiresias" or name in SHARING
        size = asked(snap) if by_request else snap.jobs.min
        need = size * snap.jobs.unit
        free = snap.capacity - used(snap, result)
        for row in (result.count == 0).nonzero()[0]:
            types = snap.allowed[row].nonzero()[0]
            real = [kind for kind in types if snap.capacity[kind] > 0 or kind == 0]
            match int(result.reason[row]):
                case Code.UNKNOWN_TYPE:
                    assert not real
                case Code.TOO_LARGE:
                    assert all(snap.capacity[kind] < snap.jobs.min[row] * snap.jobs.unit[row] for kind in types)
                    assert result.evidence[row] < snap.jobs.min[row]
                case Code.CAPACITY:
                    assert any(free[kind] < need[row] for kind in real)
                case Code.NO_GAIN:
                    kind = np.array(real)
                    assert (scene.perf.speedups(snap.jobs.number[row], kind, snap.jobs.min[row]) <= 0).any()
                case Code.UNKNOWN_SPEED:
                    assert np.isnan(snap.jobs.steps[row])
                case Code.IN_LINE:
                    assert name.startswith("gavel-fifo")
                case Code.CANNOT_RUN:
                    # A job that asks for more than there is would get as much as there is.
                    most = max(snap.capacity[kind] // max(snap.jobs.unit[row], 1) for kind in real)
                    fits = on_grid(snap.jobs, np.minimum(size, most))[row]
                    assert (scene.perf.rates(snap.jobs.number[row], np.array(real), fits) <= 0).all()
                case other:
                    pytest.fail(f"{other} is no reason of this policy")


# --- order ---------------------------------------------------------------------------------------------------------


@given(scene=policy_inputs(odd=True))
def test_no_later_job_changes_what_an_earlier_one_gets(scene: PolicyInput) -> None:
    for name in reporting_name(["fifo", "srjf"]):
        snap, jobs = scene.snap, scene.snap.jobs
        order = np.arange(len(snap))
        if name == "srjf":
            kind = np.where(jobs.milli > 0, 1, 0)
            order = np.argsort(remaining_s(scene.perf, jobs.number, kind, jobs.steps), kind="stable")
        result = decide(registry.make(name), scene)
        for length in range(len(order)):
            first = np.sort(order[:length])
            part = scene._replace(snap=snap.restricted(first, snap.capacity))
            assert decide(registry.make(name), part).count.tolist() == result.count[first].tolist()


@given(scene=policy_inputs(odd=True, running=False))
def test_equal_jobs_are_treated_in_submission_order(scene: PolicyInput) -> None:
    for name in reporting_name(IN_SUBMISSION_ORDER, scene):
        table, order = scene.world.table, scene.world.table.order
        if len(order) < 2:
            return
        # The second job becomes the twin of the first, with the same curve.
        keep = table.number[order[1]], table.submitted[order[1]]
        table.ints[:, order[1]] = table.ints[:, order[0]]
        table.floats[:, order[1]] = table.floats[:, order[0]]
        table.preference[:, order[1]] = table.preference[:, order[0]]
        table.number[order[1]], table.submitted[order[1]] = keep
        twins = scene._replace(
            snap=scene.world.snapshot(scene.snap.now), perf=Same(scene.perf, int(keep[0]), int(table.number[order[0]]))
        )
        count = decide(registry.make(name), twins).count
        assert count[0] >= count[1]


class Same(ThroughputModel):
    """A model in which one job is as fast as another."""

    def __init__(self, model: Any, job: int, twin: int) -> None:
        self.model, self.job, self.twin = model, job, twin

    def rates(self, jobs: Any, gpu_types: Any, sizes: Any) -> Any:
        return self.model.rates(np.where(jobs == self.job, self.twin, jobs), gpu_types, sizes)

    def pair_rates(self, a: Any, b: Any, gpu_types: Any, sizes: Any) -> Any:
        return self.model.pair_rates(
            np.where(a == self.job, self.twin, a), np.where(b == self.job, self.twin, b), gpu_types, sizes
        )

    def speedups(self, jobs: Any, gpu_types: Any, sizes: Any) -> Any:
        return self.model.speedups(np.where(jobs == self.job, self.twin, jobs), gpu_types, sizes)


@given(scene=st.one_of(policy_inputs(odd=True), policy_inputs(types=3, odd=True)))
def test_tiresias_gives_all_or_nothing(scene: PolicyInput) -> None:
    result = decide(registry.make("tiresias"), scene)
    assert ((result.count == 0) | (result.count == asked(scene.snap))).all()


# --- nothing idles -------------------------------------------------------------------------------------------------


def gains(name: str, scene: PolicyInput, row: int, result: Decision, free: int) -> bool:
    """Whether the policy would grow the running job of *row* with all free capacity."""
    jobs = scene.snap.jobs
    step, unit = int(jobs.step[row]), int(jobs.unit[row])
    room = int(largest(scene.snap)[row] - result.count[row]) // step
    steps = room if unit == 0 else min(room, free // (step * unit))
    if steps <= 0:
        return False
    if name in ("elastic-fifo", "elastic-srjf", "afs-l"):
        return True
    sizes = result.count[row] + np.arange(steps + 1) * step
    speed = scene.perf.speedups(jobs.number[row], result.type[row], sizes)
    return bool(speed[1] > speed[0]) if name == "elastic-tiresias" else bool(speed.max() > speed[0])


@given(scene=st.one_of(policy_inputs(odd=True), policy_inputs(types=3, odd=True)))
def test_no_gpu_idles_while_an_admitted_job_gains_from_it(scene: PolicyInput) -> None:
    for name in reporting_name(ELASTIC):
        result = decide(registry.make(name), scene)
        free = free_for(scene.snap, result)
        for row in result.count.nonzero()[0]:
            assert not gains(name, scene, int(row), result, int(free[row]))


@given(scene=QUEUED_SCENE)
def test_no_gpu_idles_that_a_queue_could_borrow(scene: PolicyInput) -> None:
    for name in reporting_name(ELASTIC):
        snap, bounds = scene.snap, Bounds(scene.snap)
        result = decide(queued(registry.make(name)), scene)
        free = snap.capacity - used(snap, result)
        own = own_use(snap, result)
        for row in result.count.nonzero()[0]:
            room = bounds.room(int(snap.jobs.queue[row]), own)
            kind = result.type[row]
            assert not gains(name, scene, int(row), result, int(min(free[kind], room[kind])))


@given(scene=policy_inputs(types=2, odd=True, with_queues=True, most_jobs=8))
def test_nobody_waits_while_a_type_that_its_queue_could_borrow_lies_idle(scene: PolicyInput) -> None:
    snap, bounds = scene.snap, Bounds(scene.snap)
    result = decide(queued(registry.make("elastic-fifo")), scene)
    free, own = snap.capacity - used(snap, result), own_use(snap, result)
    need = snap.jobs.min * snap.jobs.unit
    for row in ((result.count == 0) & (snap.jobs.milli > 0)).nonzero()[0]:
        room = np.minimum(free, bounds.room(int(snap.jobs.queue[row]), own))
        assert not (snap.allowed[row] & (need[row] <= room)).any()


@given(scene=ANY_SCENE, data=st.data())
def test_who_is_firm_neither_stops_nor_goes_elsewhere(scene: PolicyInput, data: st.DataObject) -> None:
    snap = scene.snap
    left, firm = snap.capacity.copy(), []
    for row in (snap.jobs.count > 0).nonzero()[0].tolist():
        kind, held = snap.jobs.type[row], snap.jobs.count[row] * snap.jobs.unit[row]
        if held <= left[kind] and data.draw(st.booleans()):
            left[kind] -= held
            firm.append(row)
    snap.firm = np.array(firm, np.int64)
    for name in reporting_name(ELASTIC):
        result = decide(queued(registry.make(name)), scene)
        assert_sound(scene, result)
        assert (result.count[firm] > 0).all()
        assert (result.type[firm] == snap.jobs.type[firm]).all()


def own_use(snap: Snapshot, result: Decision) -> Any:
    own = np.zeros((len(snap.queues.values), len(snap.capacity)), np.int64)
    runs = result.count > 0
    np.add.at(own, (snap.jobs.queue[runs], result.type[runs]), (result.count * snap.jobs.unit)[runs])
    return own


@given(scene=QUEUED_SCENE)
def test_no_queue_goes_beyond_its_limit(scene: PolicyInput) -> None:
    """I13, for a queue and all above it; usage out of view only reduces the room."""
    for name in reporting_name(LAWFUL, scene):
        snap, bounds = scene.snap, Bounds(scene.snap)
        own = own_use(snap, decide(queued(registry.make(name)), scene))
        with_children = bounds.with_children(own)
        assert (with_children <= np.maximum(bounds.most - bounds.outside, 0)).all()


@given(scene=QUEUED_SCENE)
def test_reasons_of_queues_are_true(scene: PolicyInput) -> None:
    for name in reporting_name(LAWFUL, scene):
        snap, bounds = scene.snap, Bounds(scene.snap)
        if decides_by_node(registry.make(name)):
            bounds.keep_guarantees(snap)
        result = decide(queued(registry.make(name)), scene)
        own, free = own_use(snap, result), snap.capacity - used(snap, result)
        for row in (result.count == 0).nonzero()[0]:
            size = asked(snap) if name in SHARING else snap.jobs.min
            need = size[row] * snap.jobs.unit[row]
            types = snap.allowed[row].nonzero()[0]
            queue = int(snap.jobs.queue[row])
            match int(result.reason[row]):
                case Code.QUEUE_LIMIT:
                    assert (bounds.room(queue, own, only_limits=True)[types] < need).any()
                case Code.QUEUE_SHARE:
                    assert (np.minimum(free, bounds.room(queue, own))[types] < need).any()


# --- optimality ----------------------------------------------------------------------------------------------------


@given(scene=policy_inputs(odd=True, most_jobs=4, most_gpus=8))
def test_ffdl_is_the_best_there_is(scene: PolicyInput) -> None:
    snap, jobs = scene.snap, scene.snap.jobs
    result = decide(registry.make("ffdl"), scene)
    kind = np.where(jobs.milli > 0, 1, 0)
    for one in range(len(snap.capacity)):
        rows = [row for row in result.count.nonzero()[0] if kind[row] == one]
        sizes = [range(int(jobs.min[row]), int(jobs.max[row]) + 1, int(jobs.step[row])) for row in rows]
        speed = {
            (row, size): float(scene.perf.speedups(jobs.number[row], np.array(one), np.array(size)))
            for row, options in zip(rows, sizes, strict=True)
            for size in options
        }
        best = min(
            (-sum(speed[row, size] for row, size in zip(rows, choice, strict=True)), choice[::-1])
            for choice in product(*sizes)
            if sum(size * int(jobs.unit[row]) for row, size in zip(rows, choice, strict=True)) <= snap.capacity[one]
        )
        assert tuple(int(result.count[row]) for row in rows) == best[1][::-1]


@given(scene=policy_inputs(most_jobs=6))
def test_afs_l_is_as_its_paper_has_it(scene: PolicyInput) -> None:
    snap, jobs = scene.snap, scene.snap.jobs
    result = decide(registry.make("afs-l"), scene)
    kind = np.ones(len(snap), np.int64)
    left = remaining_s(scene.perf, jobs.number, kind, jobs.steps)
    expected = afs_l(
        least=jobs.min.tolist(),
        most=jobs.max.tolist(),
        length=np.where(np.isnan(left), np.inf, left).tolist(),
        speed=[scene.perf.speedups(number, np.array(1), np.arange(20)).tolist() for number in jobs.number],
        gpus=int(snap.capacity[1:].sum()) // 1000,
    )
    assert result.count.tolist() == expected


def afs_l(least: list[int], most: list[int], length: list[float], speed: list[list[float]], gpus: int) -> list[int]:
    """AFS-L on one type with one GPU per worker, word by word."""
    size = [0] * len(least)
    contest = list(range(len(least)))

    def after(job: int) -> int:
        return size[job] + 1 if size[job] else least[job]

    def divide(a: float, b: float) -> float:
        if b == 0:
            return float("nan") if a == 0 else float("inf") if a > 0 else float("-inf")
        return a / b

    def time(job: int) -> float:
        return divide(length[job], speed[job][size[job]]) if size[job] else float("inf")

    while True:
        contest = [job for job in contest if size[job] < most[job] and after(job) - size[job] <= gpus]
        if not gpus or not contest:
            return size
        winner = contest[0]
        for rival in contest[1:]:
            if not size[winner] and not size[rival]:
                winner = rival if length[winner] >= length[rival] else winner
                continue
            short, long = (winner, rival) if time(winner) < time(rival) else (rival, winner)
            rise_of_long = speed[long][after(long)] - speed[long][size[long]]
            rise_of_short = speed[short][after(short)] - speed[short][size[short]]
            long_wins = divide(rise_of_long, speed[long][after(long)]) > divide(
                rise_of_short, speed[short][size[short]]
            )
            winner = long if long_wins else short
        gpus -= after(winner) - size[winner]
        size[winner] = after(winner)
