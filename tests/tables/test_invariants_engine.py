"""Invariants over time (I6 to I11) in the engine: repeated, late and stale events change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.assignment import FREE
from levada.core.batch import JobBatch
from levada.core.codec import encode
from levada.core.commands import Apply, Command, Decide, JobsEnded
from levada.core.job import Job, ParameterServers, Phase
from levada.core.plan import OpKind, Plan
from levada.engine import Engine, run_policy
from levada.engine import engine as engine_module
from levada.engine.options import Options
from levada.engine.state import State
from levada.tables.cluster_state import ClusterState
from levada.tables.invariants import (
    History,
    check_state,
    i6_only_free_devices,
    i7_generations_grow,
    i8_terminal_is_final,
    i10_same_output,
    i11_conservation,
)
from tests import kernel_modes
from tests.builders import cluster, job
from tests.engine.engine_state import state_of

PATIENT = Options(min_run_s=0.0, cooldown_s=0.0, rate_limit_s=0.0)
MACHINES = cluster(4, {"v100": 2, "a100": 2}, cpu=16000, memory=16000)
JOBS = (
    job("first", 0, min=2, max=4, cpu=1000),
    job("second", 1, min=1, max=8, memory=100),
    job("third", 2, min=1, max=2, milli=500),
    job("fourth", 3, min=1, max=2, servers=ParameterServers(replicas=1, cpu=500)),
    job("fifth", 4, min=1, max=3, milli=0, cpu=1000),
)

pytestmark = pytest.mark.usefixtures("both_kernels")


class EngineDriver:
    """Sends events to an engine, runs its policy at once, and checks every state."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(cluster=MACHINES, policy="elastic-fifo", options=PATIENT)
        self.engine.undo_faults = False
        self.history = History()
        #: All commands of the engine as bytes; a decision stands for its question.
        self.log: list[bytes] = []
        self.plans: list[Plan] = []
        self.ended: list[int] = []

    @property
    def world(self) -> ClusterState:
        return state_of(self.engine).world

    def feed(self, *events: ev.Event) -> list[Command]:
        commands: list[Command] = []
        todo = list(events)
        while todo:
            event = todo.pop(0)
            for command in self.engine.handle(event):
                commands.append(command)
                if isinstance(command, Decide):
                    todo.append(run_policy(command, event.at))
                    self.log.append(encode(todo[-1]))
                    continue
                self.log.append(encode(command))  # type: ignore[arg-type]
                if isinstance(command, Apply):
                    self.plans.append(command.plan)
                elif isinstance(command, JobsEnded):
                    self.ended += command.number.tolist()
            state = state_of(self.engine)
            assert check_state(self.world, submitted=state.submitted, ended=state.ended) == []
        ended = [int(n) for command in commands if isinstance(command, JobsEnded) for n in command.number]
        assert self.history.see(self.world, ended) == []
        return commands

    def submit(self, *jobs: Job, at: float) -> None:
        self.feed(ev.JobsSubmitted(at=at, jobs=JobBatch.of(jobs)))

    def acknowledge(self, at: float) -> None:
        """Complete all operations and their consequences until none is pending."""
        done = 0
        while self.plans:
            done += 1
            assert done < 1000, "the engine does not come to rest"
            plan = self.plans.pop(0)
            stops = plan.kind == OpKind.STOP
            for rows, report in ((stops, ev.Released), (~stops, ev.Running)):
                if rows.any():
                    self.feed(report(at=at, number=plan.number[rows], generation=plan.generation[rows]))

    def fingerprint(self) -> tuple[bytes, ...]:
        """All job columns and assignments that a report could change."""
        table, planes = self.world.table, (self.world.target, self.world.held)
        columns = [table.ints, table.order]
        for plane in planes:
            columns += [plane.owner, plane.index, plane.rows, plane.cpu, plane.memory]
        return tuple(column.tobytes() for column in columns)


def _started() -> EngineDriver:
    driver = EngineDriver()
    driver.submit(*JOBS, at=10.0)
    driver.acknowledge(at=20.0)
    return driver


# --- I6 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("careless", [False, True])
def test_i6_no_operation_is_issued_for_a_device_held_by_another_job(
    monkeypatch: pytest.MonkeyPatch, careless: bool
) -> None:
    """Every plan is checked against the held devices before it is issued; a careless engine is detected."""
    violations, asked = [], []
    issue = engine_module.issue

    def spy(state: State) -> None:
        world, held = state.world, state.world.held
        before = held.owner.copy()
        if careless:
            held.owner[(world.target.owner >= 0) & (held.owner != world.target.owner)] = FREE
        issue(state)
        after = held.owner.copy()
        held.owner[:] = before
        for command in state.commands:
            if isinstance(command, Apply):
                adds = command.plan.add_device
                asked.extend(adds.tolist())
                violations.extend(i6_only_free_devices(world, adds, world.target.owner[adds]))
        held.owner[:] = before if violations else after

    monkeypatch.setattr(engine_module, "issue", spy)
    driver = EngineDriver(Engine(cluster=cluster(4), policy="elastic-tiresias", options=PATIENT))
    driver.submit(job("old", 0, min=1, max=4), at=0.0)
    driver.acknowledge(at=1.0)
    driver.submit(job("new", 2, min=2, max=2), at=2.0)
    # No device was released or taken yet.
    assert driver.world.held.owner.tolist() == [driver.world.slot("old")] * 4
    if careless:
        assert {(v.rule, v.slot) for v in violations} == {("I6", driver.world.slot("new"))}
        return
    driver.acknowledge(at=3.0)
    assert driver.world.held.owner.tolist() == driver.world.target.owner.tolist()
    assert driver.world.table.held[driver.world.slot("new")] == 2
    assert len(asked) == 6
    assert violations == []


# --- I7 -------------------------------------------------------------------------------------------------------------

STALE = [
    ev.Released,
    ev.Running,
    ev.OperationFailed,
    ev.OperationTimedOut,
    ev.JobsLeft,
    ev.JobsFailed,
    ev.CheckpointSaved,
    ev.SavesOnStop,
]


@pytest.mark.parametrize("report", STALE, ids=lambda report: report.__name__)
@pytest.mark.parametrize("off", [-1, +1], ids=["old", "future"])
def test_i7_reports_of_another_generation_change_nothing(report: type[ev.Event], off: int) -> None:
    driver = EngineDriver()
    driver.submit(*JOBS, at=10.0)  # operations are pending
    for _ in range(2):
        table = driver.world.table
        slots = table.order
        assert table.generation[slots].any()
        stale = report(at=30.0, number=table.number[slots], generation=table.generation[slots] + off)
        before = driver.fingerprint()
        driver.feed(stale)
        assert driver.fingerprint() == before
        driver.acknowledge(at=30.0)  # and again while all jobs run


def test_i7_the_same_report_of_the_current_generation_changes_the_state() -> None:
    """The counterpart of the stale reports: current reports are effective."""
    for report in STALE[:5]:
        driver = EngineDriver()
        driver.submit(*JOBS, at=10.0)
        if report is ev.Released:
            driver.acknowledge(at=20.0)
            driver.feed(ev.JobsCancelled(at=25.0, number=np.array([0])))
        table = driver.world.table
        slots = table.order
        before = driver.fingerprint()
        driver.feed(report(at=30.0, number=table.number[slots], generation=table.generation[slots]))  # type: ignore[call-arg]
        assert driver.fingerprint() != before, report


def test_i7_a_second_acknowledgement_changes_nothing() -> None:
    driver = EngineDriver()
    driver.submit(*JOBS, at=10.0)
    plans = list(driver.plans)
    driver.acknowledge(at=20.0)
    before = driver.fingerprint()
    for plan in plans:
        for report in (ev.Running, ev.Released, ev.OperationFailed, ev.OperationTimedOut):
            driver.feed(report(at=30.0, number=plan.number, generation=plan.generation))
    assert driver.fingerprint() == before


def test_i7_a_decreasing_generation_is_detected() -> None:
    driver = _started()
    table, slot = driver.world.table, driver.world.slot("second")
    numbers, generations = table.number[table.order].copy(), table.generation[table.order].copy()
    assert i7_generations_grow(driver.world, numbers, generations) == []
    table.generation[slot] -= 1
    assert [(v.rule, v.slot) for v in i7_generations_grow(driver.world, numbers, generations)] == [("I7", slot)]
    assert [(v.rule, v.slot) for v in driver.history.see(driver.world)] == [("I7", slot)]


# --- I8 -------------------------------------------------------------------------------------------------------------


def test_i8_events_after_the_end_change_nothing() -> None:
    driver = _started()
    table, slot = driver.world.table, driver.world.slot("second")
    number, generation = table.number[[slot]].copy(), table.generation[[slot]].copy()
    commands = driver.feed(ev.JobsFinished(at=40.0, number=number))
    ends = [command for command in commands if isinstance(command, JobsEnded)]
    assert [(end.id, end.phase.tolist()) for end in ends] == [(("second",), [Phase.SUCCEEDED])]
    driver.acknowledge(at=50.0)
    before = driver.fingerprint()
    driver.feed(
        ev.JobsFinished(at=60.0, number=number),
        ev.JobsCancelled(at=60.0, number=number),
        ev.JobsSuspended(at=60.0, number=number),
        ev.JobsResumed(at=60.0, number=number),
        ev.JobsUpdated(at=60.0, updates=(ev.JobUpdate(number=int(number[0]), priority=9),)),
        *(report(at=60.0, number=number, generation=generation) for report in STALE),
    )
    assert driver.fingerprint() == before
    assert driver.ended == [1]
    assert state_of(driver.engine).ended == 1


def test_i8_a_job_that_returns_or_ends_twice_is_detected() -> None:
    driver = _started()
    assert i8_terminal_is_final(driver.world, [77, 78]) == []
    slot = driver.world.slot("second")
    assert [(v.rule, v.slot) for v in i8_terminal_is_final(driver.world, [77, 1])] == [("I8", slot)]
    assert [v.rule for v in i8_terminal_is_final(driver.world, [77, 77])] == ["I8"]
    driver.feed(ev.JobsFinished(at=40.0, number=np.array([1])))
    assert [v.rule for v in driver.history.see(driver.world, [1])] == ["I8"]
    table, slot = driver.world.table, driver.world.slot("third")
    table.number[slot] = 1
    table._numbers = table.number[table._slots]
    table._slot_of = dict(zip(table._numbers.tolist(), table._slots.tolist(), strict=True))
    assert [(v.rule, v.slot) for v in driver.history.see(driver.world)] == [("I8", slot)]


# --- I10 ------------------------------------------------------------------------------------------------------------


def _story(driver: EngineDriver, begin: float) -> bytes:
    """Submissions, ends, losses and updates; return all commands of the engine."""
    heard = len(driver.log)
    extra = [job(f"x{begin}-{i}", begin + i, min=1, max=3, milli=(1000, 500, 0)[i], cpu=500) for i in range(3)]
    driver.submit(*extra, at=begin)
    driver.acknowledge(at=begin + 5)
    driver.feed(ev.NodesLost(at=begin + 10, names=("n1",)))
    driver.acknowledge(at=begin + 15)
    driver.feed(ev.JobsFinished(at=begin + 20, number=driver.world.table.number[driver.world.table.order[:1]].copy()))
    driver.feed(ev.NodesAdded(at=begin + 25, nodes=MACHINES.nodes))
    driver.acknowledge(at=begin + 30)
    driver.feed(ev.JobsSuspended(at=begin + 35, number=driver.world.table.number[driver.world.table.order[-1:]].copy()))
    driver.acknowledge(at=begin + 40)
    return b"".join(driver.log[heard:])


def test_i10_the_same_events_give_the_same_bytes() -> None:
    first, second = (_story(_started(), 100.0) for _ in range(2))
    assert len(first) > 1000
    assert i10_same_output(first, second) == []
    other = _story(_started(), 101.0)
    assert [v.rule for v in i10_same_output(first, other)] == ["I10"]


def test_i10_a_fork_behaves_like_the_engine_and_does_not_change_it() -> None:
    driver = _started()
    _story(driver, 100.0)
    before = driver.fingerprint()
    twin = EngineDriver(driver.engine.fork())
    ahead = _story(twin, 200.0)
    assert driver.fingerprint() == before
    assert i10_same_output(_story(driver, 200.0), ahead) == []
    assert driver.fingerprint() == twin.fingerprint()


@pytest.mark.parametrize("policy", ["fifo", "elastic-tiresias", "ffdl", "afs-l"])
def test_i10_both_kernel_modes_give_the_same_bytes(policy: str) -> None:
    stories = []
    for implementation in ("interpreted", "compiled"):
        if implementation == "compiled":
            pytest.importorskip("numba")
        kernel_modes.use(implementation)  # type: ignore[arg-type]
        driver = EngineDriver(Engine(cluster=MACHINES, policy=policy, options=PATIENT))
        driver.submit(*JOBS, at=10.0)
        driver.acknowledge(at=20.0)
        stories.append(b"".join(driver.log) + _story(driver, 100.0))
    assert i10_same_output(*stories) == []


# --- I11 ------------------------------------------------------------------------------------------------------------


def test_i11_jobs_are_conserved_under_random_events() -> None:
    """`EngineDriver.feed` checks after each event; jobs end in every way, and a planted loss is detected."""
    driver = _started()
    state = state_of(driver.engine)
    driver.feed(ev.JobsFinished(at=30.0, number=np.array([0])))
    driver.feed(ev.JobsCancelled(at=31.0, number=np.array([1, 1, 99])))
    driver.feed(ev.JobsSuspended(at=32.0, number=np.array([2])))
    table, slot = driver.world.table, driver.world.slot("fourth")
    driver.feed(ev.JobsFailed(at=33.0, number=np.array([3]), generation=table.generation[[slot]].copy()))
    driver.acknowledge(at=40.0)
    driver.submit(JOBS[4], job("sixth", 41), at=41.0)  # the fifth is active already
    assert (state.submitted, state.ended, len(table)) == (6, 3, 3)
    assert sorted(driver.ended) == [0, 1, 3]
    assert table.phase[driver.world.slot("third")] == Phase.SUSPENDED
    assert i11_conservation(driver.world, state.submitted, state.ended) == []
    assert [v.rule for v in i11_conservation(driver.world, state.submitted + 1, state.ended)] == ["I11"]
