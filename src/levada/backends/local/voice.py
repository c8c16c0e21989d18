"""What a gang says: to the engine, to people, and to its workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.backends.local.crew import Crew
from levada.backends.local.files import Address, Lease, World
from levada.backends.local.hands import Hands
from levada.backends.local.messages import LOST, UNREACHABLE, Sighting
from levada.backends.local.record import Record, Stage, Then
from levada.backends.local.roster import started_in
from levada.backends.protocol import Note
from levada.core import events as ev

#: A lease ends so long after the time limit: first the engine has its turn.
_LEASE_SLACK_S = 5.0

_EVENTS: dict[str, type[Any]] = {
    "Running": ev.Running,
    "Released": ev.Released,
    "JobsFinished": ev.JobsFinished,
    "JobsFailed": ev.JobsFailed,
    "JobsLeft": ev.JobsLeft,
}


class Voice(Crew):
    """The workers of one job, and whom to tell of them."""

    def __init__(self, record: Record, hands: Hands) -> None:
        super().__init__(record)
        self._hands = hands
        #: What workers were told.
        self._published: World | None = None
        #: The engine's generation of which it knows that something was saved.
        self._told_saved = -1
        #: It knows that these workers save when they are asked to stop.
        self._told_saves_on_stop = False

    # --- to the workers ---------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Once for each world in the life of this process; a supervisor may not have heard of it before."""
        record = self.record
        world = World(
            generation=record.world,
            members=tuple(member.name for member in record.members),
            addresses=tuple(member.address for member in record.members),
            master=Address(record.members[0].address, record.port),
            key=record.key,
            lease=self._lease(),
        )
        if self._published != world:
            self._hands.publish(world)
            self._published = world

    def _lease(self) -> Lease | None:
        """The steps of the whole job, and the seconds it may still run.

        While the server is there the engine ends the job in time; the lease does where the server is away.
        """
        record, launch = self.record, self.launch
        until = None
        if launch.seconds is not None and record.stage is Stage.RUNNING:
            until = record.since + launch.seconds + _LEASE_SLACK_S
        steps = launch.granted_steps
        if steps is None and until is None:
            return None
        return Lease(total_steps=steps, until_time=until, then="" if until is None else "stop")

    def publish_again(self) -> None:
        """A machine is back that may have missed something."""
        if self.record.stage in (Stage.STARTING, Stage.RUNNING, Stage.JOINING, Stage.SWITCHING):
            self._published = None
            self._publish()

    # --- to the engine ----------------------------------------------------------------------------------------------

    def saved(self, at: float) -> None:
        """Something was written that the job could go on from."""
        if self.record.stage is Stage.RUNNING and at >= self.record.since:
            self._tell_saved()

    def _tell_saved(self) -> None:
        """Once for each generation: that there is something to go on from is all that the engine wants to know."""
        if self._told_saved != self.record.generation:
            self._told_saved = self.record.generation
            self._tell(ev.CheckpointSaved)

    def _tell_saves_on_stop(self) -> None:
        """Once for each start: the engine knows it until the next one."""
        if not self._told_saves_on_stop:
            self._told_saves_on_stop = True
            self._tell(ev.SavesOnStop)

    def _tell_steps(self, then: Then) -> None:
        """All workers have left: how far the job is now. Steps that nobody saved are lost, unless it is done.

        Those that were asked to leave had time to save; a job that said it would and did not is not believed again.
        """
        record = self.record
        seen = [self.seen[member.name] for member in record.members if member.name in self.seen]
        readings = [one.reading for one in seen if one.reading is not None and one.reading.generation]
        if not readings:
            return
        steps = max(reading.steps for reading in readings)
        saved = max(reading.saved_steps for reading in readings)
        self._hands.progress(steps if then is Then.FINISHED else saved)
        asked = [one.reading for one in seen if one.asked and one.reading is not None]
        promised = [reading.steps for reading in asked if reading.saves_on_stop]
        if then in (Then.RELEASED, Then.START) and saved < max(promised, default=0.0):
            record.broken_at = saved
            self._note(
                "unsaved",
                f"asked to stop after step {steps:g}, it left without saving; its last checkpoint has step {saved:g}. "
                "It is not stopped for other jobs again before it has saved",
            )

    def _tell_pause(self) -> None:
        """How long those stood still who were there before this world."""
        world = self.record.world
        stayed = [member.name for member in self.record.members if started_in(member.name) < world]
        readings = [self.seen[name].reading for name in stayed if name in self.seen]
        pauses = [reading.pause_s for reading in readings if reading is not None and reading.generation]
        if pauses:
            self._tell(ev.Paused, seconds=np.array([max(pauses)]))

    def _tell_running(self) -> None:
        """The operation is complete; what was told can be told again."""
        self.record.told = "Running"
        self._hands.save()
        self._tell(ev.Running)

    def _tell(self, event: type[Any], **fields: Any) -> None:
        record = self.record
        fields = {name: _one(value) if isinstance(value, int) else value for name, value in fields.items()}
        self._hands.tell(event(at=0.0, number=_one(record.number), generation=_one(record.generation), **fields))

    def _tell_again(self) -> None:
        record = self.record
        if record.told == "OperationFailed":
            self._tell(ev.OperationFailed, why=record.why)
        elif record.told:
            self._tell(_EVENTS[record.told])

    def tell_end_again(self) -> None:
        """After a restart: an end that the engine may not have heard of."""
        if self.record.told in ("JobsFinished", "JobsFailed", "JobsLeft"):
            self._note_end()
            self._tell_again()

    # --- to people --------------------------------------------------------------------------------------------------

    def _note_end(self) -> None:
        record = self.record
        if record.told == "JobsFinished":
            self._note("exit", "all workers are done", exit_code=0)
        elif record.told == "JobsFailed":
            self._note("exit", record.why, exit_code=record.code)
        elif record.told == "JobsLeft":
            self._note("exit", f"{record.why} by itself, which says that it has saved and wants to start again")

    def _how_it_left(self, seen: Sighting) -> str:
        """How a worker saved and left, with the steps that are missing where the job says how many it has."""
        steps, total = 0.0 if seen.reading is None else seen.reading.steps, self.launch.granted_steps
        missing = f" at step {steps:g} of {total:g}" if total is not None and self.is_leased(seen) else ""
        return f"worker {index_of(seen.name)} {how(seen)}{missing}"

    def _note(self, what: str, text: str, **data: Any) -> None:
        self._hands.note(Note(job=self.record.job, type=what, text=text, data=data))


def _one(value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([value], np.int64)


def index_of(name: str) -> str:
    """The index in the name of a worker."""
    return name.partition("-")[2]


def exit_code(seen: Sighting) -> int | None:
    """As shells have it: 128 and the signal."""
    return None if seen.code is None else seen.code if seen.code >= 0 else 128 - seen.code


def how(seen: Sighting) -> str:
    """How a worker is gone, after its name."""
    if seen.state == UNREACHABLE:
        return "is on a machine that is out of reach"
    if seen.state == LOST:
        return seen.why or "was lost"
    if seen.code is not None and seen.code < 0:
        return f"was killed (signal {-seen.code})"
    return f"left with exit code {seen.code}"
