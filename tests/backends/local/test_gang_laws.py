"""Laws of a gang in a world where everything goes wrong: workers die, news is late, the server crashes half-way.

The machine is played here; the gang is the real one. Whatever happens, nobody is told that a device is free while
something runs on it, no device has two workers, and when the world turns kind every operation comes to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from levada.backends.local.files import COMPLETE, IN_PROCESS, READY, Reading, World
from levada.backends.local.gang import Gang
from levada.backends.local.messages import ENDED, LOST, RUNS, STARTING, Sighting
from levada.backends.local.record import Record, Stage, Then
from levada.backends.local.roster import Member
from levada.backends.protocol import Launch, Note
from levada.core import events as ev
from levada.core.grant import WorkerPlace
from levada.core.plan import Op, OpKind
from tests.backends.contract import op, place

DEVICES = [("node-0", str(at)) for at in range(3)] + [("node-1", str(at)) for at in range(3)]
TICK_S = 0.05


class Worker:
    """A process of the machine that is played."""

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

    def seen(self) -> Sighting:
        reading = Reading(self.flags, self.generation, 1.0, 0.0) if self.flags else None
        return Sighting(
            job="toy-1",
            name=self.member.name,
            state=self.state,
            pid=None if self.state == STARTING else 1,
            code=self.code if self.state == ENDED else None,
            asked=self.asked,
            since=self.since,
            reading=reading,
        )


class Machine:
    """The hands of a gang, and what comes of what they do. *kind* is False while things go wrong."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.kind = False
        self.elastic = self.random.random() < 0.7
        self.now = 1000.0
        self.workers: dict[str, Worker] = {}
        self.world: World | None = None
        #: Nodes of machines that have not told yet what they run.
        self.away: set[str] = set()
        self.saved = b""
        self.told: list[ev.Event] = []
        self.gang = Gang(Record(job="toy-1", number=7), self)
        self.launch = Launch(command=("x",), grace_s=1.0, start_limit_s=3.0, max_workers=6)

    # --- hands ------------------------------------------------------------------------------------------------------

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        assert member in members
        assert self.saved, "who starts something has noted before that it will"
        if member.name not in self.workers:
            self.workers[member.name] = Worker(member, world)
        self.gang.seen[member.name] = self.workers[member.name].seen()

    def publish(self, world: World) -> None:
        assert self.world is None or world.generation >= self.world.generation
        self.world = world

    def leave(self, names: Sequence[str]) -> None:
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

    def is_awaited(self, node: str) -> bool:
        return node in self.away

    def save(self) -> None:
        self.saved = msgspec.json.encode(self.gang.record)

    async def reserve(self, generation: int, world: int) -> None:
        self.saved = msgspec.json.encode(msgspec.structs.replace(self.gang.record, last_world=world))

    def tell(self, event: ev.Event) -> None:
        self.told.append(event)
        self._check(event)

    def progress(self, steps: float) -> None:
        pass

    def note(self, note: Note) -> None:
        pass

    # --- laws -------------------------------------------------------------------------------------------------------

    def devices(self) -> list[tuple[str, str]]:
        """Those in use, once for each user."""
        alive = [worker.member for worker in self.workers.values() if worker.alive]
        return [(member.node, device) for member in alive for device in member.devices]

    def _check(self, event: ev.Event) -> None:
        record = self.gang.record
        wanted = {(where.node, device) for where in record.places for device in where.devices}
        if isinstance(event, ev.JobsFailed | ev.JobsLeft | ev.JobsFinished | ev.OperationFailed):
            assert self.devices() == []
        elif isinstance(event, ev.Released):
            assert set(self.devices()) <= (set() if record.kind == OpKind.STOP else wanted)
        elif isinstance(event, ev.Running) and event.generation.tolist() == [record.generation]:
            assert set(self.devices()) <= wanted

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """A moment passes."""
        self.now += TICK_S
        for worker in list(self.workers.values()):
            if worker.alive:
                self._live(worker)
        assert len(self.devices()) == len(set(self.devices())), "a device has two workers"
        if not self.kind and self.random.random() < 0.02:
            self.crash()
        for name, worker in self.workers.items():
            if self.kind or self.random.random() < 0.5:
                self.gang.seen[name] = worker.seen()
        self.gang.step(self.now)

    def _live(self, worker: Worker) -> None:
        random, world = self.random, self.world
        if worker.state == STARTING:
            if random.random() < 0.5:
                worker.state, worker.since = RUNS, self.now
            return
        if not self.kind and random.random() < 0.01:
            worker.end(random.choice([-9, 1, 3]))
        elif worker.asked and random.random() < 0.5:
            worker.end(random.choice([75, 0, 143]))
        elif self.elastic and random.random() < 0.6:
            self._train(worker, world)

    def _train(self, worker: Worker, world: World | None) -> None:
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
        """The server dies and another one takes over: all that it has is on disk and in the kernel."""
        if self.saved:
            self.gang = Gang(msgspec.json.decode(self.saved, type=Record), self)
            self.gang.seen = {name: worker.seen() for name, worker in self.workers.items()}

    # --- what the engine does ---------------------------------------------------------------------------------------

    def places(self) -> list[WorkerPlace]:
        """Some free devices, or some that the job has."""
        count = self.random.randint(1, 4)
        return [place(at, *device) for at, device in enumerate(self.random.sample(DEVICES, count))]

    def next(self, generation: int) -> Op:
        """An operation that an engine could issue now."""
        alive = [worker for worker in self.workers.values() if worker.alive]
        if not alive and self.gang.record.stage is Stage.IDLE:
            return op(OpKind.START, generation, *self.places())
        record = self.gang.record
        survives = record.stage is Stage.SWITCHING and record.told == "Running"
        settled = record.stage is Stage.RUNNING or survives
        kind = OpKind.RESIZE if settled and self.random.random() < 0.7 else OpKind.STOP
        return op(kind, generation, *(self.places() if kind == OpKind.RESIZE else []))

    def outcome(self, generation: int) -> bool:
        """Whether the engine knows what became of an operation."""
        kinds = (ev.Running, ev.OperationFailed, ev.JobsFailed, ev.JobsLeft)
        stop = self.gang.record.kind == OpKind.STOP
        found = [event for event in self.told if isinstance(event, (*kinds, ev.Released) if stop else kinds)]
        over = any(isinstance(event, ev.JobsFinished) for event in self.told)
        return over or any(event.generation.tolist() == [generation] for event in found)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_goes_wrong_no_device_is_used_twice_and_all_comes_to_an_end(seed: int) -> None:
    machine = Machine(seed)
    generation = 0
    for _ in range(12):
        generation += 1
        machine.gang.apply(machine.next(generation), machine.launch, 1, machine.now)
        for _ in range(machine.random.choice([1, 5, 40, 120])):
            machine.tick()
    machine.kind = True
    for moment in range(2000):
        # News of before may still be on its way.
        if moment > 2 and machine.outcome(generation) and not machine.gang.busy:
            break
        machine.tick()
    assert machine.outcome(generation)
    assert not machine.gang.busy
    running = {worker.member.name for worker in machine.workers.values() if worker.alive}
    assert running == (
        {member.name for member in machine.gang.record.members} if machine.gang.record.stage is Stage.RUNNING else set()
    )


def test_a_job_that_says_that_it_is_complete_is_done_however_the_others_end() -> None:
    machine = Machine(1)
    machine.elastic = machine.kind = True
    machine.gang.apply(op(OpKind.START, 1, *machine.places()), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    first, *others = machine.workers.values()
    first.flags |= COMPLETE
    first.end(0)
    for other in others:
        other.end(1)
    machine.tick()
    assert isinstance(machine.told[-1], ev.JobsFinished)


def _down(machine: Machine) -> None:
    """The server stops all workers and ends; another one finds what is on disk."""
    for _ in range(2000):
        if not machine.gang.alive() and not machine.gang.starts():
            break
        machine.gang.quit(machine.now)
        machine.tick()
    assert machine.devices() == [], "something runs though the server has stopped it"
    machine.crash()


@pytest.mark.parametrize("kind", [OpKind.START, OpKind.RESIZE, OpKind.STOP])
def test_an_operation_that_a_server_ended_in_the_middle_of_is_done_when_it_is_applied_again(kind: int) -> None:
    """Whatever the stage; the server may not have heard that it was complete."""
    stages = set()
    for seed in range(120):
        machine = Machine(seed)
        machine.kind = True
        generation, last = 1, op(OpKind.START, 1, *machine.places())
        machine.gang.apply(last, machine.launch, 1, machine.now)
        if kind != OpKind.START:
            while not machine.outcome(1):
                machine.tick()
            for _ in range(20):
                machine.tick()
            generation, last = 2, op(kind, 2, *(machine.places() if kind == OpKind.RESIZE else []))
            machine.gang.apply(last, machine.launch, 1, machine.now)
        for _ in range(seed % 40):
            machine.tick()
        record = machine.gang.record
        stages.add((record.stage, record.then if record.stage is Stage.STOPPING else None))
        _down(machine)
        machine.told.clear()
        machine.gang.apply(last, machine.launch, 2, machine.now)
        for _ in range(200):
            machine.tick()
        assert machine.outcome(generation), f"seed {seed} hangs"
        assert machine.gang.record.stage is (Stage.IDLE if kind == OpKind.STOP else Stage.RUNNING)
        wanted = {(where.node, device) for where in machine.gang.record.places for device in where.devices}
        assert set(machine.devices()) == (set() if kind == OpKind.STOP else wanted)
    resized = {
        (Stage.JOINING, None),
        (Stage.SWITCHING, None),
        (Stage.STOPPING, Then.START),
        (Stage.STARTING, None),
        (Stage.RUNNING, None),
    }
    expected = {
        OpKind.START: {(Stage.STARTING, None), (Stage.RUNNING, None)},
        OpKind.RESIZE: resized,
        OpKind.STOP: {(Stage.STOPPING, Then.RELEASED), (Stage.IDLE, None)},
    }
    assert stages >= expected[kind]


@pytest.mark.parametrize("is_up", [True, False])
def test_a_job_is_done_also_where_the_loss_of_a_worker_is_seen_before_the_word_of_another(is_up: bool) -> None:
    machine = Machine(1)
    machine.elastic = machine.kind = True
    machine.gang.apply(op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1")), machine.launch, 1, 1000.0)
    while is_up and not machine.outcome(1):
        machine.tick()
    first, other = machine.workers.values()
    first.state = other.state = RUNS
    other.end(-9)
    machine.gang.seen[other.member.name] = other.seen()
    machine.gang.step(machine.now)
    first.flags, first.asked = READY | IN_PROCESS | COMPLETE, True
    first.end(0)
    machine.gang.seen[first.member.name] = first.seen()
    machine.gang.step(machine.now)
    assert isinstance(machine.told[-1], ev.JobsFinished)
    assert not machine.gang.busy


@pytest.mark.parametrize("kind", [OpKind.STOP, OpKind.RESIZE])
def test_a_failure_that_crosses_with_an_operation_is_a_failure(kind: int) -> None:
    """Else a job that has no retries left would run again."""
    machine = Machine(1)
    machine.elastic, machine.kind = False, True
    there = [place(0, "node-1", "0")] if kind == OpKind.RESIZE else []
    machine.gang.apply(op(OpKind.START, 1, place(0, "node-0", "0")), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    (worker,) = machine.workers.values()
    worker.end(3)  # which nobody has seen yet
    machine.gang.apply(op(kind, 2, *there), machine.launch, 1, machine.now)
    worker.asked = False
    machine.tick()
    failed = machine.told[-1]
    assert isinstance(failed, ev.JobsFailed)
    assert failed.generation.tolist() == [2]
    assert (machine.gang.record.code, machine.gang.record.why) == (3, "worker 0 left with exit code 3")
    assert len(machine.workers) == 1


@pytest.mark.parametrize("kind", [OpKind.STOP, OpKind.RESIZE])
@pytest.mark.parametrize("known", [True, False])
def test_a_failure_of_one_worker_counts_if_it_was_seen_before_the_others_were_asked(known: bool, kind: int) -> None:
    """Else the end of one that left because it was asked may have broken it: a stop must not cost a retry."""
    machine = Machine(1)
    machine.elastic, machine.kind = False, True
    places = place(0, "node-0", "0"), place(1, "node-1", "0")
    machine.gang.apply(op(OpKind.START, 1, *places), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    machine.workers["g1-1"].end(3)
    if known:
        machine.gang.seen["g1-1"] = machine.workers["g1-1"].seen()
        machine.gang.step(machine.now)
        assert machine.gang.record.then is Then.FAILED
    machine.gang.apply(op(kind, 2, *places[: kind == OpKind.RESIZE]), machine.launch, 1, machine.now)
    machine.workers["g1-1"].asked = False
    while not machine.outcome(2):
        machine.tick()
    assert any(isinstance(event, ev.JobsFailed) for event in machine.told) == known
    assert machine.gang.record.code == (3 if known else None)


@pytest.mark.parametrize("kind", [OpKind.STOP, OpKind.RESIZE])
def test_what_another_server_may_have_started_on_a_machine_that_is_away_is_waited_for(kind: int) -> None:
    """Else its devices would be free, or another generation would start, while it runs."""
    machine = Machine(1)
    machine.elastic, machine.kind = False, True
    machine.gang.apply(op(OpKind.START, 1, place(0, "node-0", "0")), machine.launch, 1, machine.now)
    machine.gang = Gang(msgspec.json.decode(machine.saved, type=Record), machine)
    machine.away = {"node-0"}
    there = [place(0, "node-1", "0")] if kind == OpKind.RESIZE else []
    machine.gang.apply(op(kind, 2, *there), machine.launch, 2, machine.now)
    machine.gang.step(machine.now)
    assert machine.told == []
    assert list(machine.workers) == ["g1-0"]
    machine.away.clear()
    while not machine.outcome(2):
        machine.tick()
    assert not machine.workers["g1-0"].alive


@pytest.mark.parametrize("stray", [False, True])
def test_a_reported_failure_does_not_fail_the_next_start(stray: bool) -> None:
    """After a restart of the server, the agent of the failed worker reports it again, or a stray has to leave first."""
    machine = Machine(1)
    machine.elastic, machine.kind = False, True
    machine.gang.apply(op(OpKind.START, 1, place(0, "node-0", "0")), machine.launch, 1, machine.now)
    while not machine.outcome(1):
        machine.tick()
    machine.workers["g1-0"].end(3)
    machine.tick()
    assert isinstance(machine.told[-1], ev.JobsFailed)
    machine.gang = Gang(msgspec.json.decode(machine.saved, type=Record), machine)
    if stray:
        left_over = Member(name="g0-1", index=1, node="node-1", devices=("1",))
        machine.start(left_over, (left_over,), 0)
    else:
        machine.away = {"node-0"}
    machine.gang.apply(op(OpKind.START, 2, place(0, "node-1", "0")), machine.launch, 2, machine.now)
    machine.away.clear()
    while not machine.outcome(2):
        machine.tick()
    assert isinstance(machine.told[-1], ev.Running)
    assert sum(isinstance(event, ev.JobsFailed) for event in machine.told) == 1
