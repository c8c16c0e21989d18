"""A job controller whose server is killed after any write, or whose machine rejects any action once."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import msgspec
import pytest

from levada.backends.local.job_controller import JobController
from levada.backends.local.job_state import ControllerState, Stage
from levada.backends.local.members import Member
from levada.backends.local.supervisor_protocol import ENDED, RUNS, WorkerStatus
from levada.backends.local.worker_files import IN_PROCESS, READY, WorkerReading, WorldFile
from levada.backends.protocol import Launch, Note
from levada.core import events as ev
from levada.core.plan import Op, OpKind
from tests.backends.contract import op, place

_LAUNCH = Launch(command=("true",), max_workers=2, grace_s=3.0)
_START = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
_OTHERS = {
    "resize": op(OpKind.RESIZE, 2, place(0, "node-0", "0")),
    "stop": op(OpKind.STOP, 2),
}


class ServerKilled(Exception):
    """The server was killed."""


class CrashingMachine:
    """Side effects of a job controller: workers that react at once, a disk, and received events."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerStatus] = {}
        self.disk = b""
        self.saves = 0
        #: All actions: writes, published generations, starts, stops and kills.
        self.actions: list[str] = []
        #: The write after which the server is killed, and the action that the machine rejects.
        self.dies_after = self.fails_at = -1
        self.world = 0
        #: Workers use the runtime; workers ignore SIGTERM.
        self.elastic = self.stubborn = False
        self.events: list[ev.Event] = []
        self.notes: list[Note] = []
        self.now = 1000.0
        self.controller = self.open(ControllerState(job="toy-1", number=7))

    def open(self, record: ControllerState) -> JobController:
        """A server that continues with *record*; reports of the last one are lost."""
        self.events, self.notes = [], []
        self.controller = JobController(record, self)
        self.controller.workers.statuses = dict(self.workers)
        self.controller.reports.repeat_end()
        return self.controller

    # --- actions ----------------------------------------------------------------------------------------------------

    def _act(self, what: str) -> None:
        self.actions.append(what)
        if len(self.actions) == self.fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        self._act("start")
        reading = WorkerReading(flags=READY | IN_PROCESS, generation=world) if self.elastic else None
        self._observe(WorkerStatus(job="toy-1", name=member.name, state=RUNS, pid=1, since=self.now, reading=reading))

    def publish(self, world: WorldFile) -> None:
        self._act("publish")
        self.world = world.generation

    def terminate(self, names: Sequence[str]) -> None:
        self._act("leave")
        for name in names if not self.stubborn else ():
            self.end_worker(name, 75, asked=True)

    def kill(self, names: Sequence[str]) -> None:
        self._act("kill")
        for name in names:
            self.end_worker(name, -9, asked=True)

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def port(self, node: str) -> int:
        return 29500

    def may_reconnect(self, node: str) -> bool:
        return False

    def save(self) -> None:
        self.saves += 1
        self._act("save")
        self.disk = msgspec.json.encode(self.controller.record)
        if self.saves == self.dies_after:
            raise ServerKilled

    def emit(self, event: ev.Event) -> None:
        self.events.append(event)

    def note(self, note: Note) -> None:
        self.notes.append(note)

    # --- time and faults --------------------------------------------------------------------------------------------

    def _observe(self, status: WorkerStatus) -> None:
        self.workers[status.name] = self.controller.workers.statuses[status.name] = status

    def end_worker(self, name: str, code: int, *, asked: bool = False) -> None:
        if self.workers[name].alive:
            self._observe(msgspec.structs.replace(self.workers[name], state=ENDED, code=code, asked=asked))

    def pass_time(self) -> None:
        """Let 20 s pass, enough for all consequences."""
        for _ in range(20):
            self.now += 1.0
            try:
                self.controller.step(self.now)
            except OSError:
                continue  # the step is retried

    def do(self, operation: Op, *, lived: bool = False) -> None:
        """Apply an operation until it is stored, and let time pass."""
        while True:
            try:
                self.controller.apply(operation, None if operation.kind == OpKind.STOP else _LAUNCH, 1, self.now)
                break
            except OSError:
                continue
        self.pass_time()

    def has_received(self, kind: type[ev.Event]) -> bool:
        """Whether an event of this kind was received."""
        return any(type(event) is kind for event in self.events)


def finishes(machine: CrashingMachine) -> None:
    """The job runs and its workers succeed."""
    machine.do(_START)
    for name in ("g1-0", "g1-1"):
        machine.end_worker(name, 0)
    machine.pass_time()


def fails(machine: CrashingMachine) -> None:
    """The job runs and a worker fails."""
    machine.do(_START)
    machine.end_worker("g1-1", 3)
    machine.pass_time()


def resizes(machine: CrashingMachine) -> None:
    """The job runs and is resized."""
    machine.do(_START)
    machine.do(_OTHERS["resize"])


def stops(machine: CrashingMachine) -> None:
    """The job runs and is stopped."""
    machine.do(_START)
    machine.do(_OTHERS["stop"])


def must_be_killed(machine: CrashingMachine) -> None:
    """The job runs and is stopped, but its workers ignore SIGTERM."""
    machine.stubborn = True
    stops(machine)


def reports_resize_in_place(machine: CrashingMachine) -> None:
    """The job runs and reports that it resizes in place."""
    machine.elastic = True
    machine.do(_START)


_SCENARIOS: list[tuple[Callable[[CrashingMachine], None], type[ev.Event], int | None]] = [
    (finishes, ev.JobsFinished, 0),
    (fails, ev.JobsFailed, 3),
    (resizes, ev.Running, None),
    (stops, ev.Released, None),
]
_MORE_SCENARIOS: list[tuple[Callable[[CrashingMachine], None], type[ev.Event], int | None]] = [
    (must_be_killed, ev.Released, None),
    (reports_resize_in_place, ev.ResizesInPlace, None),
]


def run_without_faults(scenario: Callable[[CrashingMachine], None]) -> CrashingMachine:
    """Run a scenario without faults."""
    machine = CrashingMachine()
    scenario(machine)
    return machine


@pytest.mark.parametrize(("scenario", "end", "code"), _SCENARIOS)
def test_a_takeover_after_any_write_reaches_the_same_end(
    scenario: Callable[[CrashingMachine], None], end: type[ev.Event], code: int | None
) -> None:
    saves = run_without_faults(scenario).saves
    assert saves > 3
    for last in range(1, saves + 1):
        machine = CrashingMachine()
        machine.dies_after = last
        with pytest.raises(ServerKilled):
            scenario(machine)
        machine.open(msgspec.json.decode(machine.disk, type=ControllerState))
        machine.pass_time()
        # Unacknowledged operations are issued again; the workers continue as before.
        generation = machine.controller.record.generation
        if not (machine.has_received(ev.JobsFinished) or machine.has_received(ev.JobsFailed)):
            machine.do(_START if generation == 1 else _OTHERS[scenario.__name__.removesuffix("s")])
            if scenario in (finishes, fails):
                for name in [name for name, status in machine.workers.items() if status.alive]:
                    machine.end_worker(name, code or 0)
                machine.pass_time()
            elif generation == 1:
                machine.do(_OTHERS[scenario.__name__.removesuffix("s")])
        assert machine.has_received(end), (last, machine.controller.record, machine.events)
        if code is not None:
            assert [note.data.get("exit_code") for note in machine.notes if note.type == "exit"][-1] == code, last
            assert machine.controller.record.stage is Stage.IDLE


@pytest.mark.parametrize(("scenario", "end", "code"), [*_SCENARIOS, *_MORE_SCENARIOS])
def test_a_refused_action_is_retried(
    scenario: Callable[[CrashingMachine], None], end: type[ev.Event], code: int | None
) -> None:
    expected = run_without_faults(scenario)
    for at, what in enumerate(expected.actions, 1):
        machine = CrashingMachine()
        machine.fails_at = at
        scenario(machine)
        assert machine.has_received(end), (at, what, machine.controller.record)
        assert msgspec.json.decode(machine.disk, type=ControllerState) == machine.controller.record, (at, what)
        assert machine.world == expected.world, (at, what)
        assert ("kill" in machine.actions) == ("kill" in expected.actions), (
            at,
            what,
            "a worker that would have exited was killed",
        )
        assert [name for name, status in machine.workers.items() if status.alive] == [
            name for name, status in expected.workers.items() if status.alive
        ], (at, what)
        if code is not None:
            assert machine.notes[-1].data["exit_code"] == code


def test_every_action_is_refused_in_some_scenario() -> None:
    actions = {
        what for scenario, _, _ in [*_SCENARIOS, *_MORE_SCENARIOS] for what in run_without_faults(scenario).actions
    }
    assert actions == {"save", "publish", "start", "leave", "kill"}
