"""A gang whose server dies after any of its notes, or whose disk refuses any of them: its end is told all the same."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import msgspec
import pytest

from levada.backends.local.files import World
from levada.backends.local.gang import Gang
from levada.backends.local.messages import ENDED, RUNS, Sighting
from levada.backends.local.record import Record, Stage
from levada.backends.local.roster import Member
from levada.backends.protocol import Launch, Note
from levada.core import events as ev
from levada.core.plan import Op, OpKind
from tests.backends.contract import op, place

_LAUNCH = Launch(command=("true",), max_workers=2)
_START = op(OpKind.START, 1, place(0, "node-0", "0"), place(1, "node-0", "1"))
_OTHERS = {
    "resize": op(OpKind.RESIZE, 2, place(0, "node-0", "0")),
    "stop": op(OpKind.STOP, 2),
}


class Died(Exception):
    """The server was killed."""


class Machine:
    """Workers that do as they are told at once, notes on a disk, and somebody who listens."""

    def __init__(self) -> None:
        self.workers: dict[str, Sighting] = {}
        self.disk = b""
        self.saves = 0
        #: The note after which the server dies, and the one that finds no room.
        self.dies_after = self.full_at = -1
        self.heard: list[ev.Event] = []
        self.notes: list[Note] = []
        self.now = 1000.0
        self.gang = self.open(Record(job="toy-1", number=7))

    def open(self, record: Record) -> Gang:
        """A server that goes on with *record*; what the last one told nobody has heard of."""
        self.heard, self.notes = [], []
        self.gang = Gang(record, self)
        self.gang.seen = dict(self.workers)
        self.gang.tell_end_again()
        return self.gang

    # --- hands ------------------------------------------------------------------------------------------------------

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        self._see(Sighting(job="toy-1", name=member.name, state=RUNS, pid=1, since=self.now))

    def publish(self, world: World) -> None:
        pass

    def leave(self, names: Sequence[str]) -> None:
        for name in names:
            self.ends(name, 75, asked=True)

    def kill(self, names: Sequence[str]) -> None:
        self.leave(names)

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def port(self, node: str) -> int:
        return 29500

    def save(self) -> None:
        self.saves += 1
        if self.saves == self.full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.disk = msgspec.json.encode(self.gang.record)
        if self.saves == self.dies_after:
            raise Died

    def tell(self, event: ev.Event) -> None:
        self.heard.append(event)

    def note(self, note: Note) -> None:
        self.notes.append(note)

    # --- the world --------------------------------------------------------------------------------------------------

    def _see(self, sighting: Sighting) -> None:
        self.workers[sighting.name] = self.gang.seen[sighting.name] = sighting

    def ends(self, name: str, code: int, *, asked: bool = False) -> None:
        if self.workers[name].alive:
            self._see(msgspec.structs.replace(self.workers[name], state=ENDED, code=code, asked=asked))

    def passes(self) -> None:
        """Time, until nothing is left to do."""
        for _ in range(20):
            self.now += 1.0
            try:
                self.gang.step(self.now)
            except OSError:
                continue  # it is tried again

    def do(self, operation: Op, *, lived: bool = False) -> None:
        """An operation, and time for it; one that could not be taken down is sent again, as one is after a crash."""
        while True:
            try:
                self.gang.apply(operation, None if operation.kind == OpKind.STOP else _LAUNCH, 1, self.now)
                break
            except OSError:
                continue
        self.passes()

    def told(self, kind: type[ev.Event]) -> bool:
        """Whether somebody heard of it."""
        return any(type(event) is kind for event in self.heard)


def finishes(machine: Machine) -> None:
    """It runs, and its workers do their part."""
    machine.do(_START)
    for name in ("g1-0", "g1-1"):
        machine.ends(name, 0)
    machine.passes()


def breaks(machine: Machine) -> None:
    """It runs, and a worker breaks."""
    machine.do(_START)
    machine.ends("g1-1", 3)
    machine.passes()


def resizes(machine: Machine) -> None:
    """It runs, and has another size then."""
    machine.do(_START)
    machine.do(_OTHERS["resize"])


def stops(machine: Machine) -> None:
    """It runs, and shall not."""
    machine.do(_START)
    machine.do(_OTHERS["stop"])


_STORIES: list[tuple[Callable[[Machine], None], type[ev.Event], int | None]] = [
    (finishes, ev.JobsFinished, 0),
    (breaks, ev.JobsFailed, 3),
    (resizes, ev.Running, None),
    (stops, ev.Released, None),
]


def saves_of(story: Callable[[Machine], None]) -> int:
    """How often a story is noted when all goes well."""
    machine = Machine()
    story(machine)
    assert machine.saves > 3
    return machine.saves


@pytest.mark.parametrize(("story", "end", "code"), _STORIES)
def test_whoever_takes_over_after_any_note_comes_to_the_same_end(
    story: Callable[[Machine], None], end: type[ev.Event], code: int | None
) -> None:
    for last in range(1, saves_of(story) + 1):
        machine = Machine()
        machine.dies_after = last
        with pytest.raises(Died):
            story(machine)
        machine.open(msgspec.json.decode(machine.disk, type=Record))
        machine.passes()
        # What was issued and not heard of is issued again; the job's workers go on as they would have.
        generation = machine.gang.record.generation
        if not (machine.told(ev.JobsFinished) or machine.told(ev.JobsFailed)):
            machine.do(_START if generation == 1 else _OTHERS[story.__name__.removesuffix("s")])
            if story in (finishes, breaks):
                for name in [name for name, seen in machine.workers.items() if seen.alive]:
                    machine.ends(name, code or 0)
                machine.passes()
            elif generation == 1:
                machine.do(_OTHERS[story.__name__.removesuffix("s")])
        assert machine.told(end), (last, machine.gang.record, machine.heard)
        if code is not None:
            assert [note.data.get("exit_code") for note in machine.notes if note.type == "JobExited"][-1] == code, last
            assert machine.gang.record.stage is Stage.IDLE


@pytest.mark.parametrize(("story", "end", "code"), _STORIES)
def test_a_note_that_finds_no_room_is_made_later(
    story: Callable[[Machine], None], end: type[ev.Event], code: int | None
) -> None:
    for full in range(1, saves_of(story) + 1):
        machine = Machine()
        machine.full_at = full
        story(machine)
        assert machine.told(end), (full, machine.gang.record)
        assert msgspec.json.decode(machine.disk, type=Record) == machine.gang.record, full
        if code is not None:
            assert machine.notes[-1].data["exit_code"] == code
