"""Observed workers of one job: liveness, exits and completion. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from levada.backends.local import worker_files
from levada.backends.local.job_state import ControllerState, Stage
from levada.backends.local.members import Member
from levada.backends.local.supervisor_protocol import ENDED, LOST, RUNS, WorkerStatus
from levada.backends.protocol import Launch

#: A script without the runtime counts as up once its process has lived for this time.
_UP_AFTER_S = 0.25
#: Frameworks whose workers can change their generation in place if the script uses the runtime. Other frameworks
#: connect their workers only at start, so a resize takes a restart.
IN_PROCESS = frozenset({"plain"})


class WorkerSet:
    """The last status of each worker of a job, judged against its record."""

    def __init__(self, record: ControllerState) -> None:
        self.record = record
        #: By worker name.
        self.statuses: dict[str, WorkerStatus] = {}
        #: Names of workers that were lost once. They never become members again, even if their machine returns.
        self.lost: set[str] = set()

    def drop_ended(self) -> None:
        """Forget ended and lost workers before a new generation starts."""
        self.statuses = {name: status for name, status in self.statuses.items() if status.alive}
        self.lost.clear()

    # --- liveness ---------------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of running workers, without parameter servers."""
        names = {status.name for status in self.statuses.values() if status.state == RUNS}
        if self.record.stage is Stage.ORPHANED:
            return len(names)
        return sum(member.workers for member in self.record.members if member.name in names and not member.is_server)

    def alive(self) -> list[str]:
        """Names of all workers that run or are being started, including strays."""
        return sorted(name for name, status in self.statuses.items() if status.alive)

    def is_alive(self, name: str) -> bool:
        """Whether a worker runs or is being started."""
        return name in self.statuses and self.statuses[name].alive

    def is_member(self, name: str) -> bool:
        """Whether a worker belongs to the current generation."""
        return any(member.name == name for member in self.record.members)

    def was_executed(self, member: Member) -> bool:
        """Whether the worker's process was seen at least once."""
        return member.name in self.statuses and self.statuses[member.name].pid is not None

    def is_up(self, member: Member, now: float) -> bool:
        """Whether a worker trains, or has lived long enough if its script does not use the runtime."""
        status = self.statuses.get(member.name)
        if status is None or not (status.state == RUNS or self.succeeded(status)):
            return False
        if status.state == ENDED:
            return True
        uses_runtime = status.reading is not None and status.reading.ready
        if uses_runtime or (self.record.runtime and not member.is_server):
            return self.has_entered(member)
        return now - status.since >= _UP_AFTER_S

    # --- reports of the runtime -------------------------------------------------------------------------------------

    def reports(self, member: Member, predicate: Callable[[worker_files.WorkerReading], bool]) -> bool:
        """Whether a worker is alive and its report satisfies *predicate*."""
        status = self.statuses.get(member.name)
        return status is not None and status.alive and status.reading is not None and predicate(status.reading)

    def readings(self) -> list[worker_files.WorkerReading]:
        """The reports of all members that have one."""
        members = [self.statuses[member.name] for member in self.record.members if member.name in self.statuses]
        return [status.reading for status in members if status.reading is not None]

    def has_entered(self, member: Member) -> bool:
        """Whether a worker trains in the current generation."""
        return self.reports(member, lambda reading: reading.generation >= self.record.world)

    def awaits_peers(self) -> bool:
        """Whether members that use the runtime still wait to enter the current generation.

        The controller learns only from the first report that a script uses the runtime.
        """
        world = self.record.world
        return any(
            self.reports(member, lambda reading: reading.ready and reading.generation < world)
            for member in self.record.members
        )

    def can_resize_in_place(self, previous: Launch | None) -> bool:
        """Whether all members live and can change their generation; *previous* is what they were started with."""
        record = self.record
        same = previous is not None and record.launch is not None and previous.command == record.launch.command
        able = record.settings.framework in IN_PROCESS and record.in_process
        alive = all(self.reports(member, lambda reading: reading.in_process) for member in record.members)
        return same and able and alive

    # --- exits ------------------------------------------------------------------------------------------------------

    def succeeded(self, status: WorkerStatus) -> bool:
        """Whether a worker ended successfully: its own part, or the whole job, is complete."""
        complete = status.reading is not None and status.reading.complete
        done = status.code == worker_files.DONE and not status.asked and not self.is_leased(status)
        return status.state == ENDED and (complete or done)

    def is_leased(self, status: WorkerStatus) -> bool:
        """Whether exit code 0 of a worker does not mean that the job is complete."""
        return status.reading is not None and status.reading.leased

    def left_voluntarily(self, status: WorkerStatus) -> bool:
        """Whether a worker saved and left in order to be restarted, which is no failure."""
        return status.code == worker_files.LEFT or (status.code == worker_files.DONE and self.is_leased(status))

    def failure(self, members: Sequence[Member]) -> WorkerStatus | None:
        """The worker that ended unexpectedly, if any; one with an exit code is preferred over lost ones."""
        if self.reports_complete():
            return None  # however the others end
        statuses = [self.statuses[member.name] for member in members if member.name in self.statuses]
        failed = [status for status in statuses if not status.alive and not self.succeeded(status)]
        return min(failed, key=lambda status: (status.state != ENDED, status.state != LOST, status.name), default=None)

    def failure_before_stop(self) -> WorkerStatus | None:
        """A member that failed with an exit code of its own before the job was asked to stop, if any.

        Where other members left on request, their exit may have caused the failure; then there is none.
        """
        statuses = [self.statuses[member.name] for member in self.record.members if member.name in self.statuses]
        if any(status.asked for status in statuses):
            return None
        failed = [
            status for status in statuses if status.state == ENDED and status.code not in (None, worker_files.LEFT)
        ]
        return next((status for status in failed if (status.code or 0) > 0), None)

    def any_ended(self, members: Sequence[Member]) -> bool:
        """Whether one of *members* has ended for any reason."""
        return any(member.name in self.statuses and not self.statuses[member.name].alive for member in members)

    # --- completion -------------------------------------------------------------------------------------------------

    def reports_complete(self) -> bool:
        """Whether a member reports that the whole job is complete."""
        return any(reading.complete for reading in self.readings())

    def finished(self) -> bool:
        """Whether all workers succeeded, or one reports completion and all others have ended."""
        return self._all_finished([member for member in self.record.members if not member.is_server])

    def finished_before_switch(self) -> bool:
        """Whether all workers that trained have finished; the others wait to enter their first generation."""
        workers = [member for member in self.record.members if not member.is_server]
        trained = [
            member
            for member in workers
            if not self.reports(member, lambda reading: reading.ready and not reading.generation)
        ]
        return self._all_finished(trained)

    def _all_finished(self, members: Sequence[Member]) -> bool:
        statuses = [self.statuses.get(member.name) for member in members]
        ended = [status for status in statuses if status is not None and not status.alive]
        if not ended or len(ended) < len(members):
            return False
        return self.reports_complete() or all(self.succeeded(status) for status in ended)
