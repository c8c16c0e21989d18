"""Engine faults: an exception in a handler is reported, rolled back, and affects no other job.

Faults are planted at every call of a function that a handler makes, so that it breaks off after any part of its work.
"""

from __future__ import annotations

import gc
import inspect
import math
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, get_args

import numpy as np
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Foreign, Node
from levada.core.commands import FAULT_KINDS, Apply, Command, Decide, Faulted, Wake
from levada.core.job import Job, Phase
from levada.core.plan import OpKind
from levada.core.queue import Queue
from levada.engine import Engine, operations, run_policy
from levada.engine import engine as engine_module
from levada.engine.faults import EngineFault, halves
from levada.tables.invariants import check_state
from tests.engine.engine_state import state_of
from tests.engine.faulty_world import FaultyWorld, faulty_world
from tests.engine.object_contents import contents, differences
from tests.engine.random_walk import NODES, one_step

NOW = 50.0
#: Limit of interruption points per handler; of more, a sample is tried.
MOST_PLACES = 25
#: Computed at first use and not copied.
_CACHES = ("._ranks_of", "._allocatable", ".most_workers", ".fits")


class Planted(Exception):
    """A simulated bug."""


def busy() -> FaultyWorld:
    """Jobs that run (0, 1), start (2), stop (3), are pending (4) and suspended (5); a drained node; a pending decision."""
    system = faulty_world(2, 2, 2, 1)
    system.foreign("pod", node="n3", milli=1000, devices=("0",))
    system.submit(min=1, max=2, retries=2, resizes_in_place=True, time_limit_s=1e6)
    system.submit(min=1, max=1, steps=1e6)
    system.submit(min=1)
    system.submit(min=1)
    system.submit(min=6)
    system.submit(min=1)
    system.users("suspend", 5)
    while system.thoughts:
        system.think()
    late = [op for op in system.ops if op.number == 2]
    system.ops = [op for op in system.ops if op.number != 2]
    while system.ops:
        system.carry_out()
    while system.reports:
        system.deliver()
    system.ops += late
    system.users("suspend", 3)
    system.drain("n3")
    system.pass_time(10.0)
    system.submit(min=1, max=4)
    if not system.thoughts:
        system.pass_time(max(system.wake - system.now, 0.0))
    assert system.thoughts
    assert {op.number: op.kind for op in system.ops} == {2: OpKind.START, 3: OpKind.STOP}
    return system


def _op(system: FaultyWorld, number: int) -> dict[str, Any]:
    (op,) = [op for op in system.ops if op.number == number]
    return {"number": np.array([number]), "generation": np.array([op.generation])}


def _job(system: FaultyWorld, number: int) -> dict[str, Any]:
    return {"number": np.array([number]), "generation": np.array([system.truth[number][0]])}


def _decided(system: FaultyWorld) -> ev.Event:
    decided = run_policy(system.thoughts[-1], NOW)
    assert isinstance(decided, ev.Decided)
    return decided


JOBS = JobBatch.of([Job(id="new", submitted=NOW, min=1, max=2, after=("j1",), gpu_types=("v100", "h100"))])
#: Fields of each event that make it effective in `busy`.
EVENTS: dict[type, Callable[[FaultyWorld], dict[str, Any]]] = {
    ev.JobsSubmitted: lambda _: {"jobs": JOBS},
    ev.JobsUpdated: lambda _: {"updates": (ev.JobUpdate(number=0, max=1, priority=3, queue="q"),)},
    ev.JobsCancelled: lambda _: {"number": np.array([4])},
    ev.JobsSuspended: lambda _: {"number": np.array([0])},
    ev.JobsResumed: lambda _: {"number": np.array([5])},
    ev.WorkersStarted: lambda system: {**_job(system, 0), "running": np.array([1])},
    ev.WorkersStopped: lambda system: {**_job(system, 0), "running": np.array([0])},
    ev.WorkersFailed: lambda system: {**_job(system, 1), "running": np.array([0]), "index": np.array([0])},
    ev.JobsFinished: lambda system: _job(system, 0),
    ev.JobsLeft: lambda system: _job(system, 0),
    ev.JobsFailed: lambda system: _job(system, 0),
    ev.Progress: lambda _: {"number": np.array([0]), "steps": np.array([7.0])},
    ev.CheckpointSaved: lambda system: _job(system, 0),
    ev.SavesOnStop: lambda system: _job(system, 0),
    ev.ResizesInPlace: lambda system: _job(system, 1),
    ev.ResizeModes: lambda _: {"number": np.array([0]), "in_place": np.array([0])},
    ev.JobsRestarted: lambda system: _job(system, 0),
    ev.NodesAdded: lambda _: {"nodes": (Node.of("n9", {"a100": 2}),)},
    ev.NodesChanged: lambda system: {"nodes": (Node.of(_home(system, 0), {"v100": 1}),)},
    ev.NodesCordoned: lambda _: {"names": ("n2",)},
    ev.NodesDrained: lambda system: {"names": (_home(system, 0),), "force": True},
    ev.NodesLost: lambda system: {"names": (_home(system, 0),)},
    ev.NodesRemoved: lambda _: {"names": ("n3",)},
    ev.ForeignAppeared: lambda _: {"foreign": (Foreign(id="other", node="n2", milli=500),)},
    ev.ForeignGone: lambda _: {"ids": ("pod",)},
    ev.Released: lambda system: _op(system, 3),
    ev.Running: lambda system: _op(system, 2),
    ev.OperationFailed: lambda system: _op(system, 2),
    ev.OperationTimedOut: lambda system: _op(system, 2),
    ev.Paused: lambda system: {**_job(system, 0), "seconds": np.array([2.0])},
    ev.ReservationExpired: lambda _: {"ids": ("pod",)},
    ev.Observed: lambda system: {**_job(system, 1), "running": np.array([1])},
    ev.PolicyChanged: lambda _: {"name": "fifo"},
    ev.OptionsChanged: lambda _: {"options": {"backoff_s": 7.0}},
    ev.QueuesChanged: lambda _: {"queues": (Queue(name="q", limit={"v100": 1.0}),)},
    ev.PricesChanged: lambda _: {"prices": {"v100": 2.0}},
    ev.BeliefsChanged: lambda _: {},
    ev.DecideFailed: lambda system: {"revision": system.thoughts[-1].revision, "why": "it broke"},
    ev.BackendAway: lambda _: {},
    ev.BackendBack: lambda _: {},
    ev.Restarted: lambda _: {},
    ev.Tick: lambda _: {},
}


def _home(system: FaultyWorld, number: int) -> str:
    return str(system.truth[number][1][0][0][0])


def event_of(kind: type, system: FaultyWorld) -> ev.Event:
    event: ev.Event = _decided(system) if kind is ev.Decided else kind(at=NOW, **EVENTS[kind](system))
    return event


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Raise in the handler of a kind of event at its n-th function call, or (n = 0) at its end."""

    sane = dict(engine_module._HANDLERS)

    def broken(kind: type, place: int, guilty: Callable[[Any], bool] = lambda _: True) -> list[int]:
        calls = [0]

        def handler(engine: Engine, event: Any) -> None:
            calls[0] = _broken_off(lambda: sane[kind](engine, event), place if guilty(event) else -1)
            if place == 0 and guilty(event):
                raise Planted("at the end")

        monkeypatch.setitem(engine_module._HANDLERS, kind, handler)
        return calls

    return broken


def facts(engine: Engine) -> dict[str, str]:
    return {
        path: text for path, text in contents(state_of(engine)).items() if not any(cache in path for cache in _CACHES)
    }


def sound(engine: Engine) -> None:
    state = state_of(engine)
    assert check_state(state.world, submitted=state.submitted, ended=state.ended) == []


def command_values(commands: list[Command]) -> list[tuple[Any, ...]]:
    """Commands as values."""
    return [
        (c.kind, c.position, c.number, c.error)
        if isinstance(c, Faulted)
        else (type(c).__name__, c.at if isinstance(c, Wake) else codec.pack(c.plan) if isinstance(c, Apply) else None)
        for c in commands
    ]


def undoing(system: FaultyWorld) -> Engine:
    engine = system.engine.fork()
    engine.undo_faults = True
    return engine


@pytest.mark.parametrize("kind", get_args(ev.Event), ids=lambda kind: kind.__name__)
def test_an_exception_anywhere_in_a_handler_is_rolled_back(kind: type, plant: Callable[..., list[int]]) -> None:
    system = busy()
    event = event_of(kind, system)
    calls = plant(kind, -1)
    undoing(system).handle(event)
    places = [0, *range(1, calls[0] + 1)]
    if len(places) > MOST_PLACES:
        places = [places[int(at)] for at in np.linspace(0, len(places) - 1, MOST_PLACES)]
    for place in places:
        plant(kind, -1)
        expected = undoing(system)
        expected.handle(ev.Tick(at=event.at))
        expected_facts = facts(expected)
        plant(kind, place)
        engine, again = undoing(system), undoing(system)
        commands = engine.handle(event)
        if kind is ev.PolicyChanged and "at call" in engine.query.last_rejection:
            assert state_of(engine).policy_named == "elastic-fifo"
            continue  # a failed policy is not an engine fault
        (fault,) = [command for command in commands if isinstance(command, Faulted)]
        assert (fault.kind, fault.position, fault.event) == (kind.__name__, 0, event)
        assert fault.error.startswith("Planted: at ")
        assert "Planted" in fault.traceback
        assert "in handler" in fault.traceback
        sound(engine)
        different = differences(expected_facts, facts(engine))
        assert {path for path in different if not _may_differ(kind, path)} == set(), different
        assert command_values(again.handle(event)) == command_values(commands), "the same events give the same faults"
        assert differences(facts(engine), facts(again)) == {}
        plant(kind, -1)


def _may_differ(kind: type, path: str) -> bool:
    """Intended differences to a state without the event."""
    if kind in (ev.Decided, ev.DecideFailed):
        names = ("rejections", "last_rejection", "next_try", "deciding", "heed_at", "dirty", "told_wake", "in_view")
        names += ("asked_policy", "last_decided", "policy_wake", "acked", "turnover", "world.table")
        return path.startswith(tuple(f".{name}" for name in names))
    if kind is ev.Restarted:
        # The policy runs again.
        names = ("deciding", "dirty", "told_wake", "last_decided", "in_view", "turnover", "acked", "world.table")
        return path.startswith(tuple(f".{name}" for name in names))
    if kind is ev.JobsSubmitted:
        return path == ".world.next_number"
    if kind is ev.NodesLost:
        return path.startswith((".world.", ".dirty", ".rejections", ".next_try", ".may_issue"))
    return False


@pytest.mark.parametrize("kind", get_args(ev.Event), ids=lambda kind: kind.__name__)
def test_after_a_fault_the_same_event_works_and_all_jobs_finish(kind: type, plant: Callable[..., list[int]]) -> None:
    system = busy()
    event = event_of(kind, system)
    system.engine.undo_faults = True
    plant(kind, 0)
    commands = system.engine.handle(event)
    assert [command.kind for command in commands if isinstance(command, Faulted)] == [kind.__name__]
    plant(kind, -1)
    system._collect([command for command in commands if not isinstance(command, Faulted)])
    system.check()
    if kind in (ev.NodesLost, ev.NodesChanged):
        system.lost_nodes.update(event.names if isinstance(event, ev.NodesLost) else ())
    _make_true(system, event)
    system.tell(event)
    if kind is ev.QueuesChanged:
        system.set_queues(())
    system.settle()
    state = state_of(system.engine)
    assert state.submitted == state.ended + len(state.world.table.order)
    phases = {system.engine.query.ids[n]: system.job(f"j{n + 1}")["phase"] for n in system.active() if n < 7}
    assert set(phases.values()) <= {Phase.SUSPENDED}, phases


def _make_true(system: FaultyWorld, event: ev.Event) -> None:
    """Apply the effect of the event to the world."""
    over = (ev.JobsFinished, ev.JobsLeft, ev.JobsFailed, ev.WorkersFailed)
    if isinstance(event, over):
        system.truth.pop(int(event.number[0]))
    elif isinstance(event, ev.Observed):
        system.truth = {1: system.truth[1]}
    elif isinstance(event, ev.NodesLost | ev.NodesChanged):
        gone = _home(system, 0)
        system.truth = {n: job for n, job in system.truth.items() if all(p[0][0] != gone for p in job[1].values())}
        if isinstance(event, ev.NodesLost):
            system.lost_nodes.add(gone)
        else:
            system.changed[gone] = {"0"}
    elif isinstance(event, ev.Released | ev.Running | ev.OperationFailed | ev.OperationTimedOut):
        number = int(event.number[0])
        (at,) = [at for at, op in enumerate(system.ops) if op.number == number]
        system.carry_out(at, fail=isinstance(event, ev.OperationFailed), lose=isinstance(event, ev.OperationTimedOut))
        system.reports.clear()


STEPS = {"ring": "Alarms", "drain": "Drains", "issue": "Operations", "ask": "Decision"}


@pytest.mark.parametrize("step", STEPS)
def test_an_exception_after_the_handlers_is_rolled_back(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system = busy()
    engine, again = undoing(system), undoing(system)
    original = getattr(Engine, step)

    def broken(self: Engine) -> None:
        original(self)
        raise Planted("after it")

    monkeypatch.setattr(Engine, step, broken)
    tick = ev.Tick(at=500.0)
    commands = engine.handle(tick)
    kinds = [command.kind for command in commands if isinstance(command, Faulted)]
    assert set(kinds) == {STEPS[step]}
    sound(engine)
    assert command_values(again.handle(tick)) == command_values(commands)
    if step in ("issue", "ask"):
        assert not any(isinstance(command, Apply if step == "issue" else Decide) for command in commands)
    wakes = [command.at for command in commands if isinstance(command, Wake)]
    assert all(at > engine.query.now for at in wakes), "no busy loop"
    engine.handle(ev.JobsSubmitted(at=501.0, jobs=JOBS))
    assert "new" in state_of(engine).world.numbers
    monkeypatch.undo()
    engine.handle(ev.Tick(at=5000.0))
    sound(engine)


def test_a_fault_of_one_job_does_not_drop_the_event_for_others(plant: Callable[..., list[int]]) -> None:
    system = busy()
    engine = undoing(system)
    plant(ev.JobsCancelled, 0, lambda event: 1 in event.number)
    commands = engine.handle(ev.JobsCancelled(at=NOW, number=np.arange(6)))
    (fault,) = [command for command in commands if isinstance(command, Faulted)]
    assert fault.number == (1,)
    assert fault.position == 0
    assert engine.query.ids.keys() == {0, 1, 2, 3, 6}, "the others stop first, or have ended"
    sound(engine)


def test_jobs_after_a_submission_that_fails_keep_their_numbers(plant: Callable[..., list[int]]) -> None:
    engine = undoing(faulty_world(4))
    plant(ev.JobsSubmitted, 0, lambda event: "b" in event.jobs.id)
    jobs = JobBatch.of([Job(id=name, submitted=0.0) for name in "abc"])
    commands = engine.handle(ev.JobsSubmitted(at=0.0, jobs=jobs))
    (fault,) = [command for command in commands if isinstance(command, Faulted)]
    assert isinstance(fault.event, ev.JobsSubmitted)
    assert fault.event.jobs.id == ("b",)
    assert state_of(engine).world.numbers == {"a": 0, "c": 2}
    assert (state_of(engine).submitted, state_of(engine).world.next_number) == (2, 3)
    sound(engine)


def test_a_job_whose_operation_cannot_be_sent_is_quarantined_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    system = faulty_world(4, max_failures=2, backoff_s=1.0)
    system.engine.undo_faults = True
    for _ in range(3):
        system.submit()
    apply = operations._apply

    def broken(state: Any, sent: Any, *devices: Any) -> None:
        apply(state, sent, *devices)
        if 1 in sent[0]:
            raise Planted("job 1")

    monkeypatch.setattr(operations, "_apply", broken)
    seen: list[str] = []
    for _ in range(40):
        commands: list[Command] = []
        if system.thoughts:
            commands = system.engine.handle(run_policy(system.thoughts.pop(), system.now))
        else:
            system.now += 1.0
            system.wake = math.inf if system.wake <= system.now else system.wake
            commands = system.engine.handle(ev.Tick(at=system.now))
        for fault in [command for command in commands if isinstance(command, Faulted)]:
            assert (fault.kind, fault.number) == ("Operations", (1,))
            seen.append(fault.kind)
        system._collect([command for command in commands if not isinstance(command, Faulted)])
        system.check()
        while system.ops:
            system.carry_out()
        while system.reports:
            system.deliver()
    assert len(seen) == 2, "then it is quarantined"
    assert sorted(system.truth) == [0, 2], "the others run"
    assert system.why("j2") == "set-aside"
    monkeypatch.undo()
    system.users("resume", 1)
    system.calm()
    assert sorted(system.truth) == [0, 1, 2]


def test_without_undo_the_engine_raises(plant: Callable[..., list[int]]) -> None:
    system = busy()
    plant(ev.Tick, 0)
    with pytest.raises(EngineFault, match=r"Tick at .*: Planted: at the end"):
        system.pass_time(1.0)


def test_a_transient_fault_is_reported_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = undoing(faulty_world(4))
    original, raised = engine_module._HANDLERS[ev.JobsSubmitted], []

    def once(engine: Engine, event: Any) -> None:
        original(engine, event)
        if not raised:
            raised.append(True)
            raise MemoryError

    monkeypatch.setitem(engine_module._HANDLERS, ev.JobsSubmitted, once)
    commands = engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="a", submitted=0.0)])))
    assert [command.kind for command in commands if isinstance(command, Faulted)] == ["Engine"]
    assert state_of(engine).world.numbers == {"a": 0}
    assert any(isinstance(command, Decide) for command in commands)


def test_an_engine_fault_on_a_decision_is_a_rejection_and_a_fault(plant: Callable[..., list[int]]) -> None:
    system = faulty_world(4, max_rejections=2, backoff_s=1.0)
    engine = undoing(system)
    commands = engine.handle(ev.JobsSubmitted(at=0.0, jobs=JobBatch.of([Job(id="a", submitted=0.0)])))
    plant(ev.Decided, 0)
    for now in (0.0, 10.0, 20.0, 600.0):
        commands = engine.handle(ev.Tick(at=now)) if now else commands
        (question,) = [command for command in commands if isinstance(command, Decide)]
        commands = engine.handle(run_policy(question, now))
        assert [command.kind for command in commands if isinstance(command, Faulted)] == ["Decided"]
        sound(engine)
        assert engine.explain("a").reason.code == "rejected"
        if now == 10.0:
            break
    assert engine.query.rejections == 2
    assert "internal error" in engine.query.last_rejection
    plant(ev.Decided, -1)
    questions = [command for command in commands if isinstance(command, Decide)]
    assert questions, "plain FIFO takes over at once"
    assert any(isinstance(command, Apply) for command in engine.handle(run_policy(questions[0], 10.0)))


def test_every_event_has_a_fault_kind_and_batches_can_be_split() -> None:
    assert {kind.__name__ for kind in engine_module._HANDLERS} <= set(FAULT_KINDS)
    many = ev.WorkersFailed(
        at=0.0, number=np.arange(5), generation=np.arange(5), running=np.arange(5), index=np.arange(5)
    )
    first, second = halves(many) or (None, None)
    assert isinstance(first, ev.WorkersFailed)
    assert isinstance(second, ev.WorkersFailed)
    assert (first.index.tolist(), second.generation.tolist()) == ([0, 1], [2, 3, 4])
    parts = halves(ev.NodesLost(at=0.0, names=("a", "b")))
    assert parts == (ev.NodesLost(at=0.0, names=("a",)), ev.NodesLost(at=0.0, names=("b",)))
    for whole in (
        ev.Tick(at=0.0),
        ev.NodesLost(at=0.0, names=("a",)),
        ev.QueuesChanged(at=0.0, queues=(Queue(name="a"),) * 2),
    ):
        assert halves(whole) is None


class BuggyEngineWorld(FaultyWorld):
    """A faulty world with injected engine bugs."""

    def __init__(self) -> None:
        super().__init__(nodes=NODES)
        self.engine.undo_faults = True
        self.faults: list[Faulted] = []

    def _collect(self, commands: list[Command]) -> None:
        self.faults += [command for command in commands if isinstance(command, Faulted)]
        super()._collect([command for command in commands if not isinstance(command, Faulted)])


@pytest.mark.parametrize("seed", range(4))
def test_injected_faults_break_no_invariant(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, rng = BuggyEngineWorld(), random.Random(seed)

    def brittle(name: str, original: Callable[..., None]) -> Callable[..., None]:
        def work(engine: Engine, *event: Any) -> None:
            # The same step of the same event fails at the same point.
            fate = random.Random(f"{seed} {name} {engine.query.revision}")
            _broken_off(lambda: original(engine, *event), fate.randint(1, 20) if fate.random() < 0.1 else -1)

        return work

    with monkeypatch.context() as bugs:
        for kind, handler in list(engine_module._HANDLERS.items()):
            if kind is not ev.PolicyChanged:  # an exception in the constructor of a policy makes its event invalid
                bugs.setitem(engine_module._HANDLERS, kind, brittle(kind.__name__, handler))
        for step in STEPS:
            bugs.setattr(Engine, step, brittle(step, getattr(Engine, step)))
        for _ in range(150):
            one_step(world, rng)
    assert len({fault.kind for fault in world.faults}) > 5
    # Events that were not applied are sent again, like after a server restart.
    world.set_queues(())
    for name in sorted(set(world.nodes) - set(world.changed)):
        world.return_node(name)
    world.observe()
    world.tell(ev.Restarted(at=world.now))
    for number in world.active():
        world.users("resume", number)
    world.settle()
    state = state_of(world.engine)
    assert state.submitted == state.ended + len(state.living())


def _broken_off(work: Callable[[], None], place: int) -> int:
    """Raise in *work* at its n-th call of a function of Levada; return the number of calls."""
    calls = 0

    def trace(frame: FrameType, what: str, _: Any) -> None:
        nonlocal calls
        # Exceptions raised while a generator is closed are lost.
        counts = what == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if counts and frame.f_globals.get("__name__", "").startswith("levada."):
            calls += 1
            if calls == place:
                raise Planted(f"at call {place}")

    before = sys.gettrace()
    # Finalizers run by the collector would be counted, too, and their exceptions are lost.
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return calls
