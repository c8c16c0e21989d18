"""A gang whose server dies after any of its notes, or whose machine refuses anything once: its end is told all the same."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import msgspec
import pytest

from levada.backends.local.files import IN_PROCESS, READY, Reading, World
from levada.backends.local.gang import Gang
from levada.backends.local.messages import ENDED, RUNS, Sighting
from levada.backends.local.record import Record, Stage
from levada.backends.local.roster import Member
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


class Died(Exception):
    """The server was killed."""


class Machine:
    """Workers that do as they are told at once, notes on a disk, and somebody who listens."""

    def __init__(self) -> None:
        self.workers: dict[str, Sighting] = {}
        self.disk = b""
        self.saves = 0
        #: All that it did: notes, worlds, starts and ends.
        self.acts: list[str] = []
        #: The note after which the server dies, and the act that the machine refuses.
        self.dies_after = self.fails_at = -1
        self.world = 0
        #: Workers use the runtime; they do not leave when they are asked to.
        self.elastic = self.stubborn = False
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

    def _act(self, what: str) -> None:
        self.acts.append(what)
        if len(self.acts) == self.fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def start(self, member: Member, members: Sequence[Member], world: int) -> None:
        self._act("start")
        reading = Reading(flags=READY | IN_PROCESS, generation=world) if self.elastic else None
        self._see(Sighting(job="toy-1", name=member.name, state=RUNS, pid=1, since=self.now, reading=reading))

    def publish(self, world: World) -> None:
        self._act("publish")
        self.world = world.generation

    def leave(self, names: Sequence[str]) -> None:
        self._act("leave")
        for name in names if not self.stubborn else ():
            self.ends(name, 75, asked=True)

    def kill(self, names: Sequence[str]) -> None:
        self._act("kill")
        for name in names:
            self.ends(name, -9, asked=True)

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def port(self, node: str) -> int:
        return 29500

    def is_awaited(self, node: str) -> bool:
        return False

    def save(self) -> None:
        self.saves += 1
        self._act("save")
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


def must_be_killed(machine: Machine) -> None:
    """It runs, shall not, and does not listen."""
    machine.stubborn = True
    stops(machine)


def shows_what_it_can(machine: Machine) -> None:
    """It runs, and says that it can be resized while it does."""
    machine.elastic = True
    machine.do(_START)


_STORIES: list[tuple[Callable[[Machine], None], type[ev.Event], int | None]] = [
    (finishes, ev.JobsFinished, 0),
    (breaks, ev.JobsFailed, 3),
    (resizes, ev.Running, None),
    (stops, ev.Released, None),
]
_MORE: list[tuple[Callable[[Machine], None], type[ev.Event], int | None]] = [
    (must_be_killed, ev.Released, None),
    (shows_what_it_can, ev.ResizesInPlace, None),
]


def in_peace(story: Callable[[Machine], None]) -> Machine:
    """A story in which all goes well."""
    machine = Machine()
    story(machine)
    return machine


@pytest.mark.parametrize(("story", "end", "code"), _STORIES)
def test_whoever_takes_over_after_any_note_comes_to_the_same_end(
    story: Callable[[Machine], None], end: type[ev.Event], code: int | None
) -> None:
    saves = in_peace(story).saves
    assert saves > 3
    for last in range(1, saves + 1):
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
            assert [note.data.get("exit_code") for note in machine.notes if note.type == "exit"][-1] == code, last
            assert machine.gang.record.stage is Stage.IDLE


@pytest.mark.parametrize(("story", "end", "code"), [*_STORIES, *_MORE])
def test_what_the_machine_refuses_once_is_done_later(
    story: Callable[[Machine], None], end: type[ev.Event], code: int | None
) -> None:
    peace = in_peace(story)
    for at, what in enumerate(peace.acts, 1):
        machine = Machine()
        machine.fails_at = at
        story(machine)
        assert machine.told(end), (at, what, machine.gang.record)
        assert msgspec.json.decode(machine.disk, type=Record) == machine.gang.record, (at, what)
        assert machine.world == peace.world, (at, what)
        assert ("kill" in machine.acts) == ("kill" in peace.acts), (at, what, "who would have left was killed")
        assert [name for name, seen in machine.workers.items() if seen.alive] == [
            name for name, seen in peace.workers.items() if seen.alive
        ], (at, what)
        if code is not None:
            assert machine.notes[-1].data["exit_code"] == code


def test_all_that_a_machine_can_refuse_is_refused_in_some_story() -> None:
    acts = {what for story, _, _ in [*_STORIES, *_MORE] for what in in_peace(story).acts}
    assert acts == {"save", "publish", "start", "leave", "kill"}
