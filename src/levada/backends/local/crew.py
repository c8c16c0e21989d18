"""The workers of one job as they are: who is up, who is gone and how, and whether all is done. Only looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from levada.backends.local import files
from levada.backends.local.messages import ENDED, LOST, RUNS, Sighting
from levada.backends.local.record import Record, Stage
from levada.backends.local.roster import Member
from levada.backends.protocol import Launch

#: A script without the runtime is up when its process has lived so long.
_MOMENT_S = 0.25
#: Frameworks whose workers can go over to another generation, if their script uses the runtime. Others bring their
#: workers together at their start and never again, so that another size takes a restart.
IN_PROCESS = frozenset({"plain"})


class Crew:
    """The record of a job, and how each of its workers is seen."""

    def __init__(self, record: Record) -> None:
        self.record = record
        #: By name.
        self.seen: dict[str, Sighting] = {}
        #: Those that counted as lost once: they are never members again, though their machine should come back.
        self.forsaken: set[str] = set()

    @property
    def busy(self) -> bool:
        """Something is to be done, or waited for."""
        if self.record.stage is Stage.RUNNING:
            return self.is_complete() or self.waits_for_peers()
        return self.record.stage not in (Stage.IDLE, Stage.ADRIFT)

    @property
    def running(self) -> int:
        """How many workers run."""
        names = {seen.name for seen in self.seen.values() if seen.state == RUNS}
        if self.record.stage is Stage.ADRIFT:
            return len(names)
        return sum(member.workers for member in self.record.members if member.name in names and not member.is_server)

    @property
    def launch(self) -> Launch:
        """What to run."""
        return self.record.launch or Launch(command=())

    def roster(self) -> set[str]:
        """The names of all that count: members, those who join and those who leave."""
        record = self.record
        return {member.name for member in (*record.members, *record.newcomers, *record.leavers)}

    def alive(self) -> list[str]:
        """The names of all that run or may do so in a moment, whether they count or not."""
        return sorted(name for name, seen in self.seen.items() if seen.alive)

    def is_alive(self, name: str) -> bool:
        """It runs, or may do so in a moment."""
        return name in self.seen and self.seen[name].alive

    def reads(self, member: Member, true: Callable[[files.Reading], bool]) -> bool:
        """It lives, and this is true of its report."""
        seen = self.seen.get(member.name)
        return seen is not None and seen.alive and seen.reading is not None and true(seen.reading)

    def entered(self, member: Member) -> bool:
        """It trains in the current generation."""
        return self.reads(member, lambda reading: reading.generation >= self.record.world)

    def waits_for_peers(self) -> bool:
        """Some use the runtime, which the supervisor could not know when they were started, and could not begin."""
        record = self.record
        return any(
            self.reads(member, lambda one: one.ready and one.generation < record.world) for member in record.members
        )

    def was_up(self, member: Member) -> bool:
        """It was executed."""
        return member.name in self.seen and self.seen[member.name].pid is not None

    def is_up(self, member: Member, now: float) -> bool:
        """It trains, or does what scripts without the runtime do."""
        seen = self.seen.get(member.name)
        if seen is None or not (seen.state == RUNS or self.has_done(seen)):
            return False
        if seen.state == ENDED:
            return True
        joins = seen.reading is not None and seen.reading.ready
        if joins or (self.record.runtime and not member.is_server):
            return self.entered(member)
        return now - seen.since >= _MOMENT_S

    def has_done(self, seen: Sighting) -> bool:
        """It has ended well: its part is done, or the whole job."""
        complete = seen.reading is not None and seen.reading.complete
        done = seen.code == files.DONE and not seen.asked and not self.is_leased(seen)
        return seen.state == ENDED and (complete or done)

    def is_leased(self, seen: Sighting) -> bool:
        """How it ends does not say whether the job is done."""
        return seen.reading is not None and seen.reading.leased

    def left_by_itself(self, seen: Sighting) -> bool:
        """It saved and left so as to be started again, which is no failure."""
        return seen.code == files.LEFT or (seen.code == files.DONE and self.is_leased(seen))

    def broken(self, members: Sequence[Member]) -> Sighting | None:
        """The worker that is gone though nobody asked, if any: one that tells a code before those that do not."""
        if self.is_complete():
            return None  # however the others end
        found = [self.seen[member.name] for member in members if member.name in self.seen]
        gone = [seen for seen in found if not seen.alive and not self.has_done(seen)]
        return min(gone, key=lambda seen: (seen.state != ENDED, seen.state != LOST, seen.name), default=None)

    def broke_by_itself(self) -> Sighting | None:
        """A member that failed with an exit code of its own before the job was asked to stop, if any.

        Where others left because they were asked, their end may have broken it.
        """
        gone = [self.seen[member.name] for member in self.record.members if member.name in self.seen]
        if any(one.asked for one in gone):
            return None
        failed = [one for one in gone if one.state == ENDED and one.code not in (None, files.LEFT)]
        return next((one for one in failed if (one.code or 0) > 0), None)

    def any_ended(self, members: Sequence[Member]) -> bool:
        """One of them is gone, however."""
        return any(member.name in self.seen and not self.seen[member.name].alive for member in members)

    def has(self, name: str) -> bool:
        """Whether this worker is a member of the current generation."""
        return any(member.name == name for member in self.record.members)

    def readings(self) -> list[files.Reading]:
        """What its members report."""
        found = [self.seen[member.name].reading for member in self.record.members if member.name in self.seen]
        return [reading for reading in found if reading is not None]

    def is_complete(self) -> bool:
        """Somebody says that the whole job is done."""
        return any(reading.complete for reading in self.readings())

    def finished(self) -> bool:
        """All workers have done their part, or one says that all is done and the others have ended."""
        workers = [self.seen.get(member.name) for member in self.record.members if not member.is_server]
        ended = [seen for seen in workers if seen is not None and not seen.alive]
        if not workers or len(ended) < len(workers):
            return False
        return self.is_complete() or all(self.has_done(seen) for seen in ended)

    def is_done_without_newcomers(self) -> bool:
        """All who trained have done their part; the others still wait to be let into a world that never begins."""
        workers = [member for member in self.record.members if not member.is_server]
        trained = [member for member in workers if not self.reads(member, lambda one: one.ready and not one.generation)]
        seen = [self.seen.get(member.name) for member in trained]
        ended = [each for each in seen if each is not None and not each.alive]
        if not ended or len(ended) < len(trained):
            return False
        return self.is_complete() or all(self.has_done(each) for each in ended)

    def resizes_in_process(self, was: Launch | None) -> bool:
        """All members live and can go over to another generation; *was* is what they were started with."""
        record = self.record
        same = was is not None and record.launch is not None and was.command == record.launch.command
        able = self.launch.framework in IN_PROCESS and record.in_process
        alive = all(self.reads(member, lambda reading: reading.in_process) for member in record.members)
        return same and able and alive
