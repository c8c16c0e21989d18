"""Outgoing reports of a job controller: to the engine, to users and to workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.backends.local.job_actions import JobActions
from levada.backends.local.job_state import AfterStop, Stage
from levada.backends.local.members import started_in
from levada.backends.local.supervisor_protocol import LOST, UNREACHABLE, WorkerStatus
from levada.backends.local.worker_files import LeaseFile, MemberAddress, WorldFile
from levada.backends.local.worker_set import WorkerSet
from levada.backends.protocol import Note
from levada.core import events as ev

#: A lease ends this long after the time limit, so that the engine normally ends the job first.
_LEASE_SLACK_S = 5.0

_EVENTS: dict[str, type[Any]] = {
    "Running": ev.Running,
    "Released": ev.Released,
    "JobsFinished": ev.JobsFinished,
    "JobsFailed": ev.JobsFailed,
    "JobsLeft": ev.JobsLeft,
}


class JobReports:
    """Reports of one job; sends once what must be sent once and repeats the last outcome."""

    def __init__(self, workers: WorkerSet, actions: JobActions) -> None:
        self._workers, self._actions = workers, actions
        self._record = workers.record
        self._published: WorldFile | None = None
        #: The last generation for which `CheckpointSaved` was sent.
        self._saved_generation = -1
        #: `SavesOnStop` was sent for the current workers.
        self._saves_on_stop_sent = False

    def reset(self) -> None:
        """Forget what was sent about earlier workers: their checkpoints say nothing about those that start now."""
        self._saved_generation = -1
        self._saves_on_stop_sent = False

    # --- to workers -------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish the current generation of workers, once per process of the server and change.

        A supervisor may not know what an earlier server published.
        """
        record = self._record
        world = WorldFile(
            generation=record.world,
            members=tuple(member.name for member in record.members),
            addresses=tuple(member.address for member in record.members),
            master=MemberAddress(record.members[0].address, record.port),
            key=record.key,
            lease=self._lease(),
        )
        if self._published != world:
            self._actions.publish(world)
            self._published = world

    def _lease(self) -> LeaseFile | None:
        """The total steps of the job and the time at which its workers must stop, if it has limits.

        The engine ends the job in time while the server runs; the lease does so while the server is away.
        """
        record, settings = self._record, self._record.settings
        until = None
        if settings.seconds is not None and record.stage is Stage.RUNNING:
            until = record.since + settings.seconds + _LEASE_SLACK_S
        steps = settings.granted_steps
        if steps is None and until is None:
            return None
        return LeaseFile(total_steps=steps, until_time=until, then="" if until is None else "stop")

    def republish(self) -> None:
        """Publish again for a machine that reconnected and may have missed the last generation."""
        if self._record.stage in (Stage.STARTING, Stage.RUNNING, Stage.JOINING, Stage.SWITCHING):
            self._published = None
            self.publish()

    # --- to the engine ----------------------------------------------------------------------------------------------

    def emit(self, event: type[Any], **fields: Any) -> None:
        """Send an event about the current generation of the job."""
        record = self._record
        fields = {name: _one(value) if isinstance(value, int) else value for name, value in fields.items()}
        self._actions.emit(event(at=0.0, number=_one(record.number), generation=_one(record.generation), **fields))

    def checkpoint_written(self, at: float) -> None:
        """Report a file written below the checkpoint directory at unix time *at*, if the current workers wrote it."""
        if self._record.stage is Stage.RUNNING and at >= self._record.since:
            self.saved()

    def saved(self) -> None:
        """Send `CheckpointSaved` once per generation: the engine needs to know only that a checkpoint exists."""
        if self._saved_generation != self._record.generation:
            self._saved_generation = self._record.generation
            self.emit(ev.CheckpointSaved)

    def saves_on_stop(self) -> None:
        """Send `SavesOnStop` once per start: the engine remembers it until the next start."""
        if not self._saves_on_stop_sent:
            self._saves_on_stop_sent = True
            self.emit(ev.SavesOnStop)

    def final_steps(self, then: AfterStop) -> None:
        """Report the progress of a job whose workers have all left: the saved steps, or all if it is complete.

        Workers that were asked to leave had time to save. A job that promised to save and did not loses that trust
        until its next checkpoint.
        """
        record, statuses = self._record, self._workers.statuses
        members = [statuses[member.name] for member in record.members if member.name in statuses]
        readings = [status.reading for status in members if status.reading is not None and status.reading.generation]
        if not readings:
            return
        steps = max(reading.steps for reading in readings)
        saved = max(reading.saved_steps for reading in readings)
        self._actions.report_progress(steps if then is AfterStop.FINISHED else saved)
        asked = [status.reading for status in members if status.asked and status.reading is not None]
        promised = [reading.steps for reading in asked if reading.saves_on_stop]
        if then in (AfterStop.RELEASED, AfterStop.START) and saved < max(promised, default=0.0):
            record.broken_at = saved
            self.note(
                "unsaved",
                f"exited on request at step {steps:g} without saving (last checkpoint: step {saved:g}); not preempted "
                "again until it saves",
            )

    def pause(self) -> None:
        """Report how long the workers that stayed stood still during a resize in place."""
        world, statuses = self._record.world, self._workers.statuses
        stayed = [member.name for member in self._record.members if started_in(member.name) < world]
        readings = [statuses[name].reading for name in stayed if name in statuses]
        pauses = [reading.pause_s for reading in readings if reading is not None and reading.generation]
        if pauses:
            self.emit(ev.Paused, seconds=np.array([max(pauses)]))

    def running(self) -> None:
        """Report that the operation is complete; the record is saved first, so that a successor can repeat it."""
        self._record.told = "Running"
        self._actions.save()
        self.emit(ev.Running)

    def repeat_outcome(self) -> None:
        """Send the outcome of the last operation again."""
        record = self._record
        if record.told == "OperationFailed":
            self.emit(ev.OperationFailed, why=record.why)
        elif record.told:
            self.emit(_EVENTS[record.told])

    def repeat_end(self) -> None:
        """Send the end of the job again after a restart: the engine may have missed it."""
        if self._record.told in ("JobsFinished", "JobsFailed", "JobsLeft"):
            self.note_end()
            self.repeat_outcome()

    # --- to users ---------------------------------------------------------------------------------------------------

    def note(self, kind: str, text: str, **data: Any) -> None:
        """Add a note to the history of the job."""
        self._actions.note(Note(job=self._record.job, type=kind, text=text, data=data))

    def note_end(self) -> None:
        """Note how the job ended, if it has."""
        record = self._record
        if record.told == "JobsFinished":
            self.note("exit", "all workers are done", exit_code=0)
        elif record.told == "JobsFailed":
            self.note("exit", record.why, exit_code=record.code)
        elif record.told == "JobsLeft":
            self.note("exit", f"{record.why} (saved; requests a restart)")

    def describe_departure(self, status: WorkerStatus) -> str:
        """How a worker saved and left, with the steps it reached if the job declares its total."""
        steps, total = 0.0 if status.reading is None else status.reading.steps, self._record.settings.granted_steps
        reached = f" at step {steps:g} of {total:g}" if total is not None and self._workers.is_leased(status) else ""
        return f"{describe_exit(status)}{reached}"


def _one(value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([value], np.int64)


def exit_code(status: WorkerStatus) -> int | None:
    """The exit code as shells report it: 128 + the signal number for a killed worker."""
    return None if status.code is None else status.code if status.code >= 0 else 128 - status.code


def describe_exit(status: WorkerStatus) -> str:
    """Which worker is gone and how, e.g. "worker 1 was killed (signal 9)"."""
    worker = f"worker {status.name.partition('-')[2]}"
    if status.state == UNREACHABLE:
        return f"{worker} is on a machine that is out of reach"
    if status.state == LOST:
        return f"{worker} {status.why or 'was lost'}"
    if status.code is not None and status.code < 0:
        return f"{worker} was killed (signal {-status.code})"
    return f"{worker} exited with code {status.code}"
