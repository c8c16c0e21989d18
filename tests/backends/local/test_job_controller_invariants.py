"""Invariants of a job controller under random faults, with simulated workers.

Workers die, status updates are late, the server crashes at any point. The controller never reports a device as free
while a worker uses it, no device has two workers, and once the faults stop every operation completes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from levada.backends.local.job_controller import JobController
from levada.backends.local.job_state import AfterStop, ControllerState, Stage
from levada.backends.local.members import Member
from levada.backends.local.supervisor_protocol import ENDED, LOST, RUNS, STARTING, WorkerStatus
from levada.backends.local.worker_files import COMPLETE, IN_PROCESS, READY, WorkerReading, WorldFile
from levada.backends.protocol import Launch, Note
from levada.core import events as ev
from levada.core.grant import WorkerPlace
from levada.core.plan import Op, OpKind
from tests.backends.contract import op, place

DEVICES = [("node-0", str(at)) for at in range(3)] + [("node-1", str(at)) for at in range(3)]
TICK_S = 0.05


class SimulatedWorker:
    """A simulated worker process."""

    def __init__(self, member: Member, world: int) -> None:
        self.member, self.born = member, world
        self.state, self.code, self.asked = STARTING, 0, False
        self.flags = self.generation = 0
        self.since = 0.0

    @property
    def alive(self) -> bool:
        return self.state in (STARTING, RUNS)

    def end(self, code: int) -> None:
        self.state, self.code = (LOST, 0) if code == -9 else (ENDED, code)

    def seen(self) -> WorkerStatus:
        reading = WorkerReading(self.flags, self.generation, 1.0, 0.0) if self.flags else None
        return WorkerStatus(
            job="toy-1",
            name=self.member.name,
            state=self.state,
            pid=None if self.state == STARTING else 1,
            code=self.code if self.state == ENDED else None,
            asked=self.asked,
            since=self.since,
            reading=reading,
        )


class SimulatedMachines:
    """The side effects of a job controller on simulated machines. *fault_free* is False while faults are injected."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.fault_free = False
        self.elastic = self.random.random() < 0.7
        self.now = 1000.0
        self.workers: dict[str, SimulatedWorker] = {}
        self.world: WorldFile | None = None
        #: Nodes of machines that have not reported their workers yet.
        self.away: set[str] = set()
        self.saved = b""
        self.events: list[ev.Event] = []
        self.controller = JobController(ControllerState(job="toy-1", number=7), self)
        self.launch = Launch(command=("x",), grace_s=1.0, start_limit_s=3.0, max_workers=6)

    # --- actions ----------------------------------------------------------------------------------------------------

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        assert member in members
        assert self.saved, "who starts something has noted before that it will"
        if member.name not in self.workers:
            self.workers[member.name] = SimulatedWorker(member, world)
        self.controller.workers.statuses[member.name] = self.workers[member.name].seen()

    def publish(self, world: WorldFile) -> None:
        assert self.world is None or world.generation >= self.world.generation
        self.world = world

    def terminate(self, names: Sequence[str]) -> None:
        for name in names:
            self.workers[name].asked = True

    def kill(self, names: Sequence[str]) -> None:
        for name in names:
            if self.workers[name].alive:
                self.workers[name].end(-9)

    def address(self, node: str) -> str:
        return node

    def port(self, node: str) -> int:
        return 1

    def may_reconnect(self, node: str) -> bool:
        return node in self.away

    def save(self) -> None:
        self.saved = msgspec.json.encode(self.controller.record)

    async def reserve(self, generation: int, world: int) -> None:
        self.saved = msgspec.json.encode(msgspec.structs.replace(self.controller.record, last_world=world))

    def emit(self, event: ev.Event) -> None:
        self.events.append(event)
        self._check(event)

    def report_progress(self, steps: float) -> None:
        pass

    def note(self, note: Note) -> None:
        pass

    # --- invariants -------------------------------------------------------------------------------------------------

    def devices(self) -> list[tuple[str, str]]:
        """Used devices, once per user."""
        alive = [worker.member for worker in self.workers.values() if worker.alive]
        return [(member.node, device) for member in alive for device in member.devices]

    def _check(self, event: ev.Event) -> None:
        record = self.controller.record
        wanted = {(where.node, device) for where in record.places for device in where.devices}
        if isinstance(event, ev.JobsFailed | ev.JobsLeft | ev.JobsFinished | ev.OperationFailed):
            assert self.devices() == []
        elif isinstance(event, ev.Released):
            assert set(self.devices()) <= (set() if record.kind == OpKind.STOP else wanted)
        elif isinstance(event, ev.Running) and event.generation.tolist() == [record.generation]:
            assert set(self.devices()) <= wanted

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance time and let random faults happen."""
        self.now += TICK_S
        for worker in list(self.workers.values()):
            if worker.alive:
                self._live(worker)
        assert len(self.devices()) == len(set(self.devices())), "a device has two workers"
        if not self.fault_free and self.random.random() < 0.02:
            self.crash()
        for name, worker in self.workers.items():
            if self.fault_free or self.random.random() < 0.5:
                self.controller.workers.statuses[name] = worker.seen()
        self.controller.step(self.now)

    def _live(self, worker: SimulatedWorker) -> None:
        random, world = self.random, self.world
        if worker.state == STARTING:
            if random.random() < 0.5:
                worker.state, worker.since = RUNS, self.now
            return
        if not self.fault_free and random.random() < 0.01:
            worker.end(random.choice([-9, 1, 3]))
        elif worker.asked and random.random() < 0.5:
            worker.end(random.choice([75, 0, 143]))
        elif self.elastic and random.random() < 0.6:
            self._train(worker, world)

    def _train(self, worker: SimulatedWorker, world: WorldFile | None) -> None:
        worker.flags |= READY | IN_PROCESS
        if world is None or world.generation < worker.born or world.generation == worker.generation:
            return
        if worker.member.name not in world.members:
            if world.generation > max(worker.born, worker.generation):
                worker.end(75)
        elif all(
            self.workers[name].alive and self.workers[name].flags for name in world.members if name in self.workers
        ):
            worker.generation = world.generation

    def crash(self) -> None:
        """Replace the server; the next one has only the disk and the running processes."""
        if self.saved:
            self.controller = JobController(msgspec.json.decode(self.saved, type=ControllerState), self)
            self.controller.workers.statuses = {name: worker.seen() for name, worker in self.workers.items()}

    # --- commands of the engine -------------------------------------------------------------------------------------

    def places(self) -> list[WorkerPlace]:
        """Random places on free devices or devices of the job."""
        count = self.random.randint(1, 4)
        return [place(at, *device) for at, device in enumerate(self.random.sample(DEVICES, count))]

    def next(self, generation: int) -> Op:
        """An operation that an engine could issue now."""
        alive = [worker for worker in self.workers.values() if worker.alive]
        if not alive and self.controller.record.stage is Stage.IDLE:
            return op(OpKind.START, generation, *self.places())
        record = self.controller.record
        survives = record.stage is Stage.SWITCHING and record.told == "Running"
        settled = record.stage is Stage.RUNNING or survives
        kind = OpKind.RESIZE if settled and self.random.random() < 0.7 else OpKind.STOP
        return op(kind, generation, *(self.places() if kind == OpKind.RESIZE else []))

    def outcome(self, generation: int) -> bool:
        """Whether the engine knows the outcome of an operation."""
        kinds = (ev.Running, ev.OperationFailed, ev.JobsFailed, ev.JobsLeft)
        stop = self.controller.record.kind == OpKind.STOP
        outcomes = [event for event in self.events if isinstance(event, (*kinds, ev.Released) if stop else kinds)]
        over = any(isinstance(event, ev.JobsFinished) for event in self.events)
        return over or any(event.generation.tolist() == [generation] for event in outcomes)


@pytest.mark.parametrize("seed", range(30))
def test_under_random_faults_no_device_is_used_twice_and_every_operation_ends(seed: int) -> None:
    machine = SimulatedMachines(seed)
    generation = 0
    for _ in range(12):
        generation += 1
        machine.controller.apply(machine.next(generation), machine.launch, 1, machine.now)
        for _ in range(machine.random.choice([1, 5, 40, 120])):
            machine.tick()
    machine.fault_free = True
    for moment in range(2000):
        # Earlier status updates may be delayed.
        if moment > 2 and machine.outcome(generation) and not machine.controller.busy:
            break
        machine.tick()
    assert machine.outcome(generation)
    assert not machine.controller.busy
    running = {worker.member.name for worker in machine.workers.values() if worker.alive}
    assert running == (
        {member.name for member in machine.controller.record.members}
        if machine.controller.record.stage is Stage.RUNNING
        else set()
    )


def test_a_job_reported_complete_succeeds_however_its_other_workers_end() -> None:
    machine = SimulatedMachines(1)
    machine.elastic = machine.fault_free = True
    machine.controller.apply(op(OpKind.START, 1, *machine.places()), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    first, *others = machine.workers.values()
    first.flags |= COMPLETE
    first.end(0)
    for other in others:
        other.end(1)
    machine.tick()
    assert isinstance(machine.events[-1], ev.JobsFinished)


def _down(machine: SimulatedMachines) -> None:
    """The server stops all workers and ends; the next one reads its state from disk."""
    for _ in range(2000):
        if not machine.controller.has_workers():
            break
        machine.controller.quit(machine.now)
        machine.tick()
    assert machine.devices() == [], "something runs though the server has stopped it"
    machine.crash()


@pytest.mark.parametrize("kind", [OpKind.START, OpKind.RESIZE, OpKind.STOP])
def test_an_interrupted_operation_is_completed_when_applied_again(kind: int) -> None:
    """In every stage; the server may not have received the completion report."""
    stages = set()
    for seed in range(120):
        machine = SimulatedMachines(seed)
        machine.fault_free = True
        generation, last = 1, op(OpKind.START, 1, *machine.places())
        machine.controller.apply(last, machine.launch, 1, machine.now)
        if kind != OpKind.START:
            while not machine.outcome(1):
                machine.tick()
            for _ in range(20):
                machine.tick()
            generation, last = 2, op(kind, 2, *(machine.places() if kind == OpKind.RESIZE else []))
            machine.controller.apply(last, machine.launch, 1, machine.now)
        for _ in range(seed % 40):
            machine.tick()
        record = machine.controller.record
        stages.add((record.stage, record.then if record.stage is Stage.STOPPING else None))
        _down(machine)
        machine.events.clear()
        machine.controller.apply(last, machine.launch, 2, machine.now)
        for _ in range(200):
            machine.tick()
        assert machine.outcome(generation), f"seed {seed} hangs"
        assert machine.controller.record.stage is (Stage.IDLE if kind == OpKind.STOP else Stage.RUNNING)
        wanted = {(where.node, device) for where in machine.controller.record.places for device in where.devices}
        assert set(machine.devices()) == (set() if kind == OpKind.STOP else wanted)
    resized = {
        (Stage.JOINING, None),
        (Stage.SWITCHING, None),
        (Stage.STOPPING, AfterStop.START),
        (Stage.STARTING, None),
        (Stage.RUNNING, None),
    }
    expected = {
        OpKind.START: {(Stage.STARTING, None), (Stage.RUNNING, None)},
        OpKind.RESIZE: resized,
        OpKind.STOP: {(Stage.STOPPING, AfterStop.RELEASED), (Stage.IDLE, None)},
    }
    assert stages >= expected[kind]


@pytest.mark.parametrize("is_up", [True, False])
def test_a_job_succeeds_if_a_lost_worker_is_seen_before_the_completion_report(is_up: bool) -> None:
    machine = SimulatedMachines(1)
    machine.elastic = machine.fault_free = True
    machine.controller.apply(
        op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), machine.launch, 1, 1000.0
    )
    while is_up and not machine.outcome(1):
        machine.tick()
    first, other = machine.workers.values()
    first.state = other.state = RUNS
    other.end(-9)
    machine.controller.workers.statuses[other.member.name] = other.seen()
    machine.controller.step(machine.now)
    first.flags, first.asked = READY | IN_PROCESS | COMPLETE, True
    first.end(0)
    machine.controller.workers.statuses[first.member.name] = first.seen()
    machine.controller.step(machine.now)
    assert isinstance(machine.events[-1], ev.JobsFinished)
    assert not machine.controller.busy


@pytest.mark.parametrize("kind", [OpKind.STOP, OpKind.RESIZE])
def test_a_failure_during_an_operation_counts(kind: int) -> None:
    """Otherwise a job without retries would run again."""
    machine = SimulatedMachines(1)
    machine.elastic, machine.fault_free = False, True
    places = [place(0, "node-1", "0")] if kind == OpKind.RESIZE else []
    machine.controller.apply(op(OpKind.START, 1, place(0, "node-0", "0")), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    (worker,) = machine.workers.values()
    worker.end(3)  # not observed yet
    machine.controller.apply(op(kind, 2, *places), machine.launch, 1, machine.now)
    worker.asked = False
    machine.tick()
    failed = machine.events[-1]
    assert isinstance(failed, ev.JobsFailed)
    assert failed.generation.tolist() == [2]
    assert (machine.controller.record.code, machine.controller.record.why) == (3, "worker 0 exited with code 3")
    assert len(machine.workers) == 1


@pytest.mark.parametrize("kind", [OpKind.STOP, OpKind.RESIZE])
@pytest.mark.parametrize("known", [True, False])
def test_a_worker_failure_seen_before_the_stop_counts(known: bool, kind: int) -> None:
    """Otherwise the exit of a stopped worker may have caused the failure: a stop must not use a retry."""
    machine = SimulatedMachines(1)
    machine.elastic, machine.fault_free = False, True
    places = place(0, "node-0", "0"), place(1, "node-1", "0")
    machine.controller.apply(op(OpKind.START, 1, *places), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    machine.workers["g1-1"].end(3)
    if known:
        machine.controller.workers.statuses["g1-1"] = machine.workers["g1-1"].seen()
        machine.controller.step(machine.now)
        assert machine.controller.record.then is AfterStop.FAILED
    machine.controller.apply(op(kind, 2, *places[: kind == OpKind.RESIZE]), machine.launch, 1, machine.now)
    machine.workers["g1-1"].asked = False
    while not machine.outcome(2):
        machine.tick()
    assert any(isinstance(event, ev.JobsFailed) for event in machine.events) == known
    assert machine.controller.record.code == (3 if known else None)


@pytest.mark.parametrize("kind", [OpKind.STOP, OpKind.RESIZE])
def test_possible_starts_on_a_disconnected_machine_are_awaited(kind: int) -> None:
    """Otherwise its devices would be free, or another generation would start, while it runs."""
    machine = SimulatedMachines(1)
    machine.elastic, machine.fault_free = False, True
    machine.controller.apply(op(OpKind.START, 1, place(0, "node-0", "0")), machine.launch, 1, machine.now)
    machine.controller = JobController(msgspec.json.decode(machine.saved, type=ControllerState), machine)
    machine.away = {"node-0"}
    places = [place(0, "node-1", "0")] if kind == OpKind.RESIZE else []
    machine.controller.apply(op(kind, 2, *places), machine.launch, 2, machine.now)
    machine.controller.step(machine.now)
    assert machine.events == []
    assert list(machine.workers) == ["g1-0"]
    machine.away.clear()
    while not machine.outcome(2):
        machine.tick()
    assert not machine.workers["g1-0"].alive


@pytest.mark.parametrize("stray", [False, True])
def test_a_reported_failure_does_not_fail_the_next_start(stray: bool) -> None:
    """After a server restart the agent reports the failed worker again, or a stray worker must exit first."""
    machine = SimulatedMachines(1)
    machine.elastic, machine.fault_free = False, True
    machine.controller.apply(op(OpKind.START, 1, place(0, "node-0", "0")), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    machine.workers["g1-0"].end(3)
    machine.tick()
    assert isinstance(machine.events[-1], ev.JobsFailed)
    machine.controller = JobController(msgspec.json.decode(machine.saved, type=ControllerState), machine)
    if stray:
        left_over = Member(name="g0-1", index=1, node="node-1", devices=("1",))
        machine.start(left_over, (left_over,), 0)
    else:
        machine.away = {"node-0"}
    machine.controller.apply(op(OpKind.START, 2, place(0, "node-1", "0")), machine.launch, 2, machine.now)
    machine.away.clear()
    while not machine.outcome(2):
        machine.tick()
    assert isinstance(machine.events[-1], ev.Running)
    assert sum(isinstance(event, ev.JobsFailed) for event in machine.events) == 1
