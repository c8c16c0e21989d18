"""The rules that speak of time (I6 to I11), through the engine: doubled, late and stale events change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.codec import encode
from levada.core.commands import Apply, Command, Decide, JobsEnded
from levada.core.job import Job, ParameterServers, Phase
from levada.core.plan import OpKind, Plan
from levada.core.plane import FREE
from levada.engine import Engine, answer
from levada.engine import engine as engine_module
from levada.engine.options import Options
from levada.engine.state import State
from levada.tables.invariants import (
    History,
    check_state,
    i6_only_free_devices,
    i7_generations_grow,
    i8_terminal_is_final,
    i10_same_output,
    i11_conservation,
)
from levada.tables.world import World
from tests import kernel_modes
from tests.builders import cluster, job
from tests.engine.inspect import state_of

PATIENT = Options(min_run_s=0.0, cooldown_s=0.0, rate_limit_s=0.0)
MACHINES = cluster(4, {"v100": 2, "a100": 2}, cpu=16000, memory=16000)
JOBS = (
    job("first", 0, min=2, max=4, cpu=1000),
    job("second", 1, min=1, max=8, memory=100),
    job("third", 2, min=1, max=2, milli=500),
    job("fourth", 3, min=1, max=2, servers=ParameterServers(replicas=1, cpu=500)),
    job("fifth", 4, min=1, max=3, milli=0, cpu=1000),
)


@pytest.fixture(autouse=True, params=["interpreted", "compiled"])
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernel_modes.active()
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)


class Shell:
    """Feeds an engine, lets its policy answer at once, and checks every state that it passes through."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(cluster=MACHINES, policy="elastic-fifo", options=PATIENT)
        self.engine.undo_faults = False
        self.history = History()
        #: All that left the engine, in bytes: policies' answers stand for the question.
        self.log: list[bytes] = []
        self.plans: list[Plan] = []
        self.ended: list[int] = []

    @property
    def world(self) -> World:
        return state_of(self.engine).world

    def feed(self, *events: ev.Event) -> list[Command]:
        commands: list[Command] = []
        todo = list(events)
        while todo:
            event = todo.pop(0)
            for command in self.engine.handle(event):
                commands.append(command)
                if isinstance(command, Decide):
                    todo.append(answer(command, event.at))
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
        """All that was asked for is done, and what follows from it, until nothing is under way."""
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
        """Everything about jobs and planes that a report could change."""
        table, planes = self.world.table, (self.world.target, self.world.held)
        columns = [table.ints, table.order]
        for plane in planes:
            columns += [plane.owner, plane.index, plane.rows, plane.cpu, plane.memory]
        return tuple(column.tobytes() for column in columns)


def _started() -> Shell:
    shell = Shell()
    shell.submit(*JOBS, at=10.0)
    shell.acknowledge(at=20.0)
    return shell


# --- I6 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("careless", [False, True])
def test_i6_no_operation_goes_out_for_a_device_that_another_holds(
    monkeypatch: pytest.MonkeyPatch, careless: bool
) -> None:
    """Every plan is compared with what was held just before it went out; a careless engine is found out."""
    found, asked = [], []
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
                found.extend(i6_only_free_devices(world, adds, world.target.owner[adds]))
        held.owner[:] = before if found else after

    monkeypatch.setattr(engine_module, "issue", spy)
    shell = Shell(Engine(cluster=cluster(4), policy="elastic-tiresias", options=PATIENT))
    shell.submit(job("old", 0, min=1, max=4), at=0.0)
    shell.acknowledge(at=1.0)
    shell.submit(job("new", 2, min=2, max=2), at=2.0)
    # Nothing was given up yet, and nothing taken.
    assert shell.world.held.owner.tolist() == [shell.world.slot("old")] * 4
    if careless:
        assert {(v.rule, v.slot) for v in found} == {("I6", shell.world.slot("new"))}
        return
    shell.acknowledge(at=3.0)
    assert shell.world.held.owner.tolist() == shell.world.target.owner.tolist()
    assert shell.world.table.held[shell.world.slot("new")] == 2
    assert len(asked) == 6
    assert found == []


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
    shell = Shell()
    shell.submit(*JOBS, at=10.0)  # operations are under way
    for _ in range(2):
        table = shell.world.table
        slots = table.order
        assert table.generation[slots].any()
        stale = report(at=30.0, number=table.number[slots], generation=table.generation[slots] + off)
        before = shell.fingerprint()
        shell.feed(stale)
        assert shell.fingerprint() == before
        shell.acknowledge(at=30.0)  # and once more while all of them run


def test_i7_the_same_report_of_this_generation_does_change_something() -> None:
    """The twin of the stale ones: they could have been heard."""
    for report in STALE[:5]:
        shell = Shell()
        shell.submit(*JOBS, at=10.0)
        if report is ev.Released:
            shell.acknowledge(at=20.0)
            shell.feed(ev.JobsCancelled(at=25.0, number=np.array([0])))
        table = shell.world.table
        slots = table.order
        before = shell.fingerprint()
        shell.feed(report(at=30.0, number=table.number[slots], generation=table.generation[slots]))  # type: ignore[call-arg]
        assert shell.fingerprint() != before, report


def test_i7_a_second_acknowledgement_changes_nothing() -> None:
    shell = Shell()
    shell.submit(*JOBS, at=10.0)
    plans = list(shell.plans)
    shell.acknowledge(at=20.0)
    before = shell.fingerprint()
    for plan in plans:
        for report in (ev.Running, ev.Released, ev.OperationFailed, ev.OperationTimedOut):
            shell.feed(report(at=30.0, number=plan.number, generation=plan.generation))
    assert shell.fingerprint() == before


def test_i7_a_generation_that_falls_is_noticed() -> None:
    shell = _started()
    table, slot = shell.world.table, shell.world.slot("second")
    numbers, generations = table.number[table.order].copy(), table.generation[table.order].copy()
    assert i7_generations_grow(shell.world, numbers, generations) == []
    table.generation[slot] -= 1
    assert [(v.rule, v.slot) for v in i7_generations_grow(shell.world, numbers, generations)] == [("I7", slot)]
    assert [(v.rule, v.slot) for v in shell.history.see(shell.world)] == [("I7", slot)]


# --- I8 -------------------------------------------------------------------------------------------------------------


def test_i8_what_comes_after_the_end_changes_nothing() -> None:
    shell = _started()
    table, slot = shell.world.table, shell.world.slot("second")
    number, generation = table.number[[slot]].copy(), table.generation[[slot]].copy()
    commands = shell.feed(ev.JobsFinished(at=40.0, number=number))
    ends = [command for command in commands if isinstance(command, JobsEnded)]
    assert [(end.id, end.phase.tolist()) for end in ends] == [(("second",), [Phase.SUCCEEDED])]
    shell.acknowledge(at=50.0)
    before = shell.fingerprint()
    shell.feed(
        ev.JobsFinished(at=60.0, number=number),
        ev.JobsCancelled(at=60.0, number=number),
        ev.JobsSuspended(at=60.0, number=number),
        ev.JobsResumed(at=60.0, number=number),
        ev.JobsUpdated(at=60.0, updates=(ev.JobUpdate(number=int(number[0]), priority=9),)),
        *(report(at=60.0, number=number, generation=generation) for report in STALE),
    )
    assert shell.fingerprint() == before
    assert shell.ended == [1]
    assert state_of(shell.engine).ended == 1


def test_i8_a_job_that_comes_back_or_ends_twice_is_noticed() -> None:
    shell = _started()
    assert i8_terminal_is_final(shell.world, [77, 78]) == []
    slot = shell.world.slot("second")
    assert [(v.rule, v.slot) for v in i8_terminal_is_final(shell.world, [77, 1])] == [("I8", slot)]
    assert [v.rule for v in i8_terminal_is_final(shell.world, [77, 77])] == ["I8"]
    shell.feed(ev.JobsFinished(at=40.0, number=np.array([1])))
    assert [v.rule for v in shell.history.see(shell.world, [1])] == ["I8"]
    table, slot = shell.world.table, shell.world.slot("third")
    table.number[slot] = 1
    table._numbers = table.number[table._slots]
    table._slot_of = dict(zip(table._numbers.tolist(), table._slots.tolist(), strict=True))
    assert [(v.rule, v.slot) for v in shell.history.see(shell.world)] == [("I8", slot)]


# --- I10 ------------------------------------------------------------------------------------------------------------


def _story(shell: Shell, begin: float) -> bytes:
    """Arrivals, ends, losses and changes of mind; what left the engine meanwhile."""
    heard = len(shell.log)
    extra = [job(f"x{begin}-{i}", begin + i, min=1, max=3, milli=(1000, 500, 0)[i], cpu=500) for i in range(3)]
    shell.submit(*extra, at=begin)
    shell.acknowledge(at=begin + 5)
    shell.feed(ev.NodesLost(at=begin + 10, names=("n1",)))
    shell.acknowledge(at=begin + 15)
    shell.feed(ev.JobsFinished(at=begin + 20, number=shell.world.table.number[shell.world.table.order[:1]].copy()))
    shell.feed(ev.NodesAdded(at=begin + 25, nodes=MACHINES.nodes))
    shell.acknowledge(at=begin + 30)
    shell.feed(ev.JobsSuspended(at=begin + 35, number=shell.world.table.number[shell.world.table.order[-1:]].copy()))
    shell.acknowledge(at=begin + 40)
    return b"".join(shell.log[heard:])


def test_i10_the_same_events_give_the_same_bytes() -> None:
    first, second = (_story(_started(), 100.0) for _ in range(2))
    assert len(first) > 1000
    assert i10_same_output(first, second) == []
    other = _story(_started(), 101.0)
    assert [v.rule for v in i10_same_output(first, other)] == ["I10"]


def test_i10_a_fork_goes_on_as_the_engine_does_and_leaves_it_alone() -> None:
    shell = _started()
    _story(shell, 100.0)
    before = shell.fingerprint()
    twin = Shell(shell.engine.fork())
    ahead = _story(twin, 200.0)
    assert shell.fingerprint() == before
    assert i10_same_output(_story(shell, 200.0), ahead) == []
    assert shell.fingerprint() == twin.fingerprint()


@pytest.mark.parametrize("policy", ["fifo", "elastic-tiresias", "ffdl", "afs-l"])
def test_i10_both_kernels_give_the_same_bytes(policy: str) -> None:
    stories = []
    for implementation in ("interpreted", "compiled"):
        if implementation == "compiled":
            pytest.importorskip("numba")
        kernel_modes.use(implementation)  # type: ignore[arg-type]
        shell = Shell(Engine(cluster=MACHINES, policy=policy, options=PATIENT))
        shell.submit(*JOBS, at=10.0)
        shell.acknowledge(at=20.0)
        stories.append(b"".join(shell.log) + _story(shell, 100.0))
    assert i10_same_output(*stories) == []


# --- I11 ------------------------------------------------------------------------------------------------------------


def test_i11_jobs_are_conserved_whatever_happens_to_them() -> None:
    """`Shell.feed` asks after each event; here every way to end is taken, and the twin shows that a loss is seen."""
    shell = _started()
    state = state_of(shell.engine)
    shell.feed(ev.JobsFinished(at=30.0, number=np.array([0])))
    shell.feed(ev.JobsCancelled(at=31.0, number=np.array([1, 1, 99])))
    shell.feed(ev.JobsSuspended(at=32.0, number=np.array([2])))
    table, slot = shell.world.table, shell.world.slot("fourth")
    shell.feed(ev.JobsFailed(at=33.0, number=np.array([3]), generation=table.generation[[slot]].copy()))
    shell.acknowledge(at=40.0)
    shell.submit(JOBS[4], job("sixth", 41), at=41.0)  # the fifth is active already
    assert (state.submitted, state.ended, len(table)) == (6, 3, 3)
    assert sorted(shell.ended) == [0, 1, 3]
    assert table.phase[shell.world.slot("third")] == Phase.SUSPENDED
    assert i11_conservation(shell.world, state.submitted, state.ended) == []
    assert [v.rule for v in i11_conservation(shell.world, state.submitted + 1, state.ended)] == ["I11"]
