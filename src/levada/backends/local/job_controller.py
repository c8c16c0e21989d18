"""Job controller: the state machine that carries out the operations of one job.

`step` compares the record with the observed workers and does what is next. It may be called at any time; after a crash
another controller continues from the record on disk. All side effects go through `JobActions`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from levada.backends.local.job_actions import JobActions
from levada.backends.local.job_reports import JobReports, describe_exit, exit_code
from levada.backends.local.job_state import AfterStop, ControllerState, Stage
from levada.backends.local.members import Member, covering, matched, members_of
from levada.backends.local.supervisor_protocol import ENDED, UNREACHABLE, WorkerStatus
from levada.backends.local.worker_set import IN_PROCESS, WorkerSet
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.grant import WorkerPlace
from levada.core.plan import Op, OpKind

#: Grace period for the remaining workers of a job that failed or finished, or of a start that is rolled back.
_SHORT_GRACE_S = 10.0
#: Leavers exit when they read the new generation; after this time the controller asks them to leave.
_LEAVE_BY_ITSELF_S = 5.0
#: A job that left voluntarily restarts in its place if it ran for this time; otherwise the engine decides.
_WORTH_RESTARTING_S = 30.0
#: Survivors of a loss that have not formed a generation after this time restart from their checkpoint.
_SURVIVE_S = 30.0
#: Workers that are alive this long after their grace period are killed: their shim is late, too.
_LATE_S = 10.0


class JobController:
    """Starts, resizes and stops the workers of one job as the engine's operations demand."""

    def __init__(self, record: ControllerState, actions: JobActions) -> None:
        self.record = record
        self.workers = WorkerSet(record)
        self.reports = JobReports(self.workers, actions)
        self._actions = actions
        #: Names of workers that were asked to leave, and of those that were killed, in this stage.
        self._asked: set[str] = set()
        self._killed: set[str] = set()
        self._in_place_reported = False
        self._complete_since = 0.0
        #: Names of workers that an earlier server may have started.
        self._inherited = {member.name for member in (*record.members, *record.newcomers)}

    @property
    def busy(self) -> bool:
        """Whether an operation is under way or workers are about to change state."""
        if self.record.stage is Stage.RUNNING:
            return self.workers.reports_complete() or self.workers.awaits_peers()
        return self.record.stage not in (Stage.IDLE, Stage.ORPHANED)

    # --- operations -------------------------------------------------------------------------------------------------

    def apply(self, op: Op, launch: Launch | None, epoch: int, now: float) -> None:
        """Accept an operation, unless it or a newer one was accepted before."""
        with self._rolled_back_on_error():
            self._apply(op, launch, epoch, now)
        self.step(now)

    def _apply(self, op: Op, launch: Launch | None, epoch: int, now: float) -> None:
        record = self.record
        if op.generation < record.generation:
            return
        # Orphaned workers are stopped under the generation that they were found with.
        stray = op.kind == OpKind.STOP and record.kind != OpKind.STOP
        again = stray or record.stage is Stage.ORPHANED or self._was_quit()
        if op.generation == record.generation and not again:
            self.reports.repeat_outcome()
            return
        if record.told == "JobsFinished" and record.number == op.number:
            # The operation crossed with the end of the job: a finished job never starts again.
            record.generation = op.generation
            self._actions.save()
            self.reports.repeat_outcome()
            return
        survives = record.stage is Stage.SWITCHING and record.told == "Running"
        if record.stage is Stage.IDLE:
            # All workers of an idle job have ended, and their end was reported: it must not count again for this one.
            record.members = record.newcomers = record.leavers = ()
        failed = record.stage is Stage.STOPPING and record.then is AfterStop.FAILED
        record.number, record.epoch = op.number, epoch
        record.generation, record.kind, record.told = op.generation, op.kind, ""
        if not failed:
            record.why, record.code = "", None
        if op.kind == OpKind.STOP:
            self._stop(AfterStop.FAILED if failed else AfterStop.RELEASED, now)
        else:
            assert op.grant is not None
            assert launch is not None
            # Workers can stay only if the settings they were started with do not change.
            stays = (record.stage is Stage.RUNNING or survives) and record.batch == op.batch
            previous, record.launch, record.places, record.batch = record.launch, launch, op.grant.places, op.batch
            if op.kind == OpKind.RESIZE and stays and self.workers.can_resize_in_place(previous):
                if survives:
                    record.waits = True
                    self._actions.save()
                else:
                    self._join(now)
            elif failed:
                self._stop(AfterStop.FAILED, now)
            elif self.workers.alive() or self._may_run_unseen():
                self._stop(AfterStop.START, now)
            else:
                self._begin(now)

    async def reserve(self, generation: int) -> None:
        """Make the next generation of workers durable before an idle job starts, without blocking the loop."""
        record = self.record
        await self._actions.reserve(generation, max(record.last_world + 1, generation))

    def quit(self, now: float) -> None:
        """Stop all workers at any stage; the operation is carried out when it is applied again."""
        record = self.record
        if record.stage is not Stage.STOPPING or record.then is AfterStop.START:
            with self._rolled_back_on_error():
                # Workers that are leaving already keep their grace period.
                self._stop(AfterStop.RELEASED, record.since if record.stage is Stage.STOPPING else now)
            self.step(now)

    def repeat_losses(self, is_lost: Callable[[str], bool]) -> None:
        """After a restart, report workers that are gone and that the job continues without.

        The server before may have ended between the loss and its commit to the log; the engine ignores a loss that it
        knows. Workers on a node that *is_lost* go with the node.
        """
        record = self.record
        if record.told != "Running" or record.stage not in (Stage.RUNNING, Stage.SWITCHING):
            return
        for place in record.places:
            if place.group == "worker" and covering(record.members, place) is None and not is_lost(place.node):
                self.reports.emit(ev.WorkersFailed, running=len(record.members), index=place.index)

    def has_workers(self) -> bool:
        """Whether workers are alive, are being started, or will be once others have left."""
        record = self.record
        restarts = record.stage is Stage.STOPPING and record.then is AfterStop.START
        return record.stage is Stage.STARTING or restarts or bool(self.workers.alive())

    def _was_quit(self) -> bool:
        """Whether `quit` ended the last operation: a release completes only a stop."""
        record = self.record
        return record.stage is Stage.IDLE and record.told == "Released" and record.kind != OpKind.STOP

    # --- stages -----------------------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Advance until the stage no longer changes."""
        before = None
        while before is not self.record.stage:
            before = self.record.stage
            with self._rolled_back_on_error():
                self._stop_strays()
                _STEPS[before](self, now)

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[None]:
        """Restore the record if it could not be saved; the next step tries again."""
        record = self.record
        before = {name: getattr(record, name) for name in record.__struct_fields__}
        try:
            yield
        except OSError:
            for name, value in before.items():
                setattr(record, name, value)
            raise

    def _idle(self, now: float) -> None:
        pass

    def _starting(self, now: float) -> None:
        record, workers = self.record, self.workers
        self.reports.publish()
        for member in record.members:
            if member.name not in workers.statuses:
                self._actions.start(member, record.members, record.world)
        if workers.finished():
            self.reports.running()
            self._stop(AfterStop.FINISHED, now)
        elif (failure := workers.failure(record.members)) is not None:
            if failure.state == ENDED:
                if all(workers.was_executed(member) for member in record.members):
                    self.reports.running()
                self._fail(failure, now)
            else:
                self._give_up(describe_exit(failure), now)
        elif all(workers.is_up(member, now) for member in record.members):
            told, record.told = record.told, "Running"
            self._enter(Stage.RUNNING, now)
            if told == "Running":
                self.reports.emit(ev.WorkersStarted, running=workers.running)
            else:
                self.reports.emit(ev.Running)
        elif now - record.since > record.settings.start_limit_s:
            missing = [member for member in record.members if not workers.is_up(member, now)]
            self._give_up(f"{len(missing)} of {len(record.members)} workers were not up in time", now)

    def _running(self, now: float) -> None:
        record, workers = self.record, self.workers
        if self._is_done(now):
            self._stop(AfterStop.FINISHED, now)
        elif (failure := workers.failure(record.members)) is not None:
            self._handle_loss(failure, now)
        elif workers.awaits_peers() and now - record.since > record.settings.start_limit_s:
            self._give_up("workers wait for peers that never joined", now)
        else:
            if record.settings.seconds is not None:
                self.reports.publish()  # the end of the lease is known only now
            self._report_abilities()

    def _joining(self, now: float) -> None:
        record, workers = self.record, self.workers
        staying, _ = matched(record.members, record.places)
        members = tuple(sorted([*staying, *record.newcomers], key=_by_index))
        for member in record.newcomers:
            if member.name not in workers.statuses:
                self._actions.start(member, members, record.last_world)
        if self._is_done(now):
            self._stop(AfterStop.FINISHED, now)
        elif (failure := workers.failure(record.members)) is not None:
            self._fail(failure, now)
        elif (failure := workers.failure(record.newcomers)) is not None or workers.any_ended(record.newcomers):
            cause = "it ended" if failure is None else describe_exit(failure)
            self._restart(f"a new worker did not join ({cause})", now)
        elif now - record.since > record.settings.start_limit_s:
            self._restart("new workers were not ready in time", now)
        elif all(workers.reports(member, lambda reading: reading.ready) for member in record.newcomers):
            names = {member.name for member in staying}
            record.leavers = tuple(member for member in record.members if member.name not in names)
            record.newcomers = ()
            self._switch(members, now)

    def _switching(self, now: float) -> None:
        record, workers, limit = self.record, self.workers, self.record.settings.start_limit_s
        self.reports.publish()
        leaving = [member.name for member in record.leavers if workers.is_alive(member.name)]
        if not leaving and record.kind == OpKind.RESIZE and record.told == "" and not record.waits:
            record.told = "Released"
            self.reports.emit(ev.Released)
        # Workers may have been past their last step when the new generation was published.
        if self._is_done(now) or workers.finished_before_switch():
            self._stop(AfterStop.FINISHED, now)
        elif (failure := workers.failure(record.members)) is not None:
            if record.told == "Running":
                self._handle_loss(failure, now)
            else:
                self._restart(f"{describe_exit(failure)} while the job was resized", now)
        elif not leaving and all(workers.has_entered(member) for member in record.members):
            record.leavers = ()
            self._enter(Stage.RUNNING, now)
            if record.waits:
                record.waits = False
                self._join(now)
            elif record.told != "Running":
                self.reports.pause()
                self.reports.running()
        elif now - record.since > (min(limit, _SURVIVE_S) if record.waits or record.told == "Running" else limit):
            self._restart("workers did not enter the new generation in time", now)
        elif now - record.since > min(_LEAVE_BY_ITSELF_S, record.settings.grace_s):
            self._ask_to_leave(leaving)

    def _stopping(self, now: float) -> None:
        record, workers = self.record, self.workers
        alive = workers.alive()
        if alive or self._may_run_unseen():
            self._ask_to_leave(alive)
            grace = record.settings.grace_s
            short = record.then in (AfterStop.FAILED, AfterStop.LEFT, AfterStop.ROLLED_BACK, AfterStop.FINISHED)
            if now - record.since > (min(grace, _SHORT_GRACE_S) if short else grace + _LATE_S):
                late = [name for name in alive if name not in self._killed]
                self._actions.kill(late)
                self._killed.update(late)
            return
        # A finished job never starts again, for whatever reason it was stopped.
        if workers.finished():
            record.then = AfterStop.FINISHED
        elif (
            record.then in (AfterStop.START, AfterStop.RELEASED)
            and not record.why
            and (failure := workers.failure_before_stop())
        ):
            # The operation crossed with a failure, which counts as if it had been seen before the operation.
            record.then, record.code = AfterStop.FAILED, exit_code(failure)
            record.why = describe_exit(failure)
        then = record.then
        self.reports.final_steps(then)
        if then is AfterStop.START:
            if record.kind != OpKind.START or record.told == "Running":
                self.reports.emit(ev.JobsRestarted)  # a start is reported when it is complete
            if record.kind == OpKind.RESIZE and record.told == "":
                self.reports.emit(ev.Released)
            elif record.told == "Running":
                self.reports.emit(ev.WorkersStopped, running=0)
            self._begin(now)
            return
        # Saved with the stage: a successor must know which outcome to report.
        record.told = _OUTCOMES[then]
        self._enter(Stage.IDLE, now)
        if then is AfterStop.ROLLED_BACK:
            self.reports.note("undone", f"start rolled back: {record.why}")
        self.reports.note_end()
        self.reports.repeat_outcome()

    # --- transitions ------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Start a new generation of workers from scratch."""
        record = self.record
        record.world = self._next_world()
        record.members = self._members_for(record.places, record.world)
        record.newcomers = record.leavers = ()
        record.port, record.key = self._actions.port(record.members[0].node), _fresh_key()
        self.workers.drop_ended()
        self.reports.reset()
        self._enter(Stage.STARTING, now)

    def _join(self, now: float) -> None:
        """Resize in place: start the new workers while the members train on."""
        record = self.record
        staying, new = matched(record.members, record.places)
        if not staying:
            # All workers that have the model in memory leave: only a checkpoint carries it over.
            self._stop(AfterStop.START, now)
            return
        if not new and len(staying) == len(record.members):
            record.members = tuple(staying)
            self.reports.emit(ev.Released)
            self.reports.running()
            return
        record.newcomers = self._members_for(new, self._next_world())
        record.port = self._actions.port(min([*staying, *record.newcomers], key=_by_index).node)
        self._enter(Stage.JOINING, now)

    def _members_for(self, places: Sequence[WorkerPlace], world: int) -> tuple[Member, ...]:
        return members_of(
            places,
            framework=self.record.settings.framework,
            world=world,
            address=self._actions.address,
            port=self._actions.port,
        )

    def _switch(self, members: tuple[Member, ...], now: float) -> None:
        """Make *members* the next generation of workers."""
        record = self.record
        record.members, record.world, record.key = members, record.last_world, _fresh_key()
        self._enter(Stage.SWITCHING, now)

    def _next_world(self) -> int:
        record = self.record
        record.last_world = max(record.last_world + 1, record.generation)
        return record.last_world

    def _handle_loss(self, failure: WorkerStatus, now: float) -> None:
        """Continue with the survivors of an unexpected exit where the job can, else restart or fail it."""
        record, workers = self.record, self.workers
        survivors = tuple(member for member in record.members if workers.is_alive(member.name))
        gone = [member for member in record.members if not workers.is_alive(member.name)]
        left = sum(not member.is_server for member in survivors)
        if left and record.in_process and not any(member.is_server for member in gone):
            # The engine decides whether the survivors are enough for the job.
            cause = describe_exit(failure)
            text = f"{cause}; {left} {'is' if left == 1 else 'are'} left"
            self.reports.note("loss", text, cause=cause, lost_exit_code=exit_code(failure))
            record.port = self._actions.port(survivors[0].node)
            for member in gone:
                # Workers on a lost machine are reported with their node.
                if workers.statuses[member.name].state != UNREACHABLE:
                    self.reports.emit(ev.WorkersFailed, running=len(survivors), index=member.index)
            self._next_world()
            self._switch(survivors, now)
        elif failure.state == UNREACHABLE:
            # The engine knows of the lost node and will send an operation for the rest.
            return
        elif (
            workers.left_voluntarily(failure)
            and now - record.since > _WORTH_RESTARTING_S
            and not self._is_out_of_time(now)
        ):
            self._restart(f"{self.reports.describe_departure(failure)} by itself", now)
        else:
            self._fail(failure, now)

    def _fail(self, failure: WorkerStatus, now: float) -> None:
        record = self.record
        record.code = exit_code(failure)
        left = self.workers.left_voluntarily(failure)
        record.why = self.reports.describe_departure(failure) if left else describe_exit(failure)
        self._stop(AfterStop.LEFT if left else AfterStop.FAILED, now)

    def _give_up(self, why: str, now: float) -> None:
        """Roll back a start that does not succeed. A resize has no workers to go back to, so it fails the job."""
        self.record.why = why
        started = self.record.kind == OpKind.START and self.record.told == ""
        self._stop(AfterStop.ROLLED_BACK if started else AfterStop.FAILED, now)

    def _restart(self, why: str, now: float) -> None:
        self.record.why = why
        self.reports.note("restart", f"{why}: restarting all workers")
        self._stop(AfterStop.START, now)

    def _stop(self, then: AfterStop, now: float) -> None:
        self.record.then, self.record.waits = then, False
        self._enter(Stage.STOPPING, now)

    def _enter(self, stage: Stage, now: float) -> None:
        self.record.stage, self.record.since = stage, now
        if stage is not Stage.STOPPING:
            self._asked.clear()
            self._killed.clear()
        self._actions.save()

    # --- observations -----------------------------------------------------------------------------------------------

    def _is_done(self, now: float) -> bool:
        """Whether the job is complete and all workers have ended, or had the grace period to do so."""
        self._complete_since = (self._complete_since or now) if self.workers.reports_complete() else 0.0
        lingers = self._complete_since > 0 and now - self._complete_since > self.record.settings.grace_s
        return self.workers.finished() or lingers

    def _is_out_of_time(self, now: float) -> bool:
        """Whether the lease of the job has ended: the engine decides what follows."""
        seconds = self.record.settings.seconds
        return seconds is not None and now - self.record.since >= seconds

    def _stop_strays(self) -> None:
        """Ask workers of other generations to leave, e.g. those of a machine that reconnected."""
        record = self.record
        if record.stage not in (Stage.STOPPING, Stage.ORPHANED):
            known = (*record.members, *record.newcomers, *record.leavers) if record.stage is not Stage.IDLE else ()
            names = {member.name for member in known}
            self._ask_to_leave([name for name in self.workers.alive() if name not in names])

    def _may_run_unseen(self) -> bool:
        """Whether a worker started by an earlier server may run on a machine that has not reported yet."""
        members = (*self.record.members, *self.record.newcomers)
        unseen = [
            member for member in members if member.name in self._inherited and member.name not in self.workers.statuses
        ]
        return any(self._actions.may_reconnect(member.node) for member in unseen)

    def _ask_to_leave(self, names: Sequence[str]) -> None:
        fresh = [name for name in names if name not in self._asked]
        if fresh:
            self._actions.terminate(fresh)
            self._asked.update(fresh)

    def _report_abilities(self) -> None:
        """Report what a running job can do: resize in place, continue from a checkpoint, save on stop."""
        record = self.record
        readings = [reading for reading in self.workers.readings() if reading.ready]
        if not readings:
            return
        record.runtime = True
        able = record.settings.framework in IN_PROCESS and len(readings) == len(record.members)
        if able and all(reading.in_process for reading in readings) and not self._in_place_reported:
            record.in_process = True
            self._actions.save()
            self._in_place_reported = True
            self.reports.emit(ev.ResizesInPlace)
        if any(reading.saved and reading.saved_steps > record.broken_at for reading in readings):
            self.reports.saved()
        if record.broken_at < 0 and any(reading.saves_on_stop for reading in readings):
            self.reports.saves_on_stop()


_STEPS = {
    Stage.IDLE: JobController._idle,
    Stage.ORPHANED: JobController._idle,
    Stage.STARTING: JobController._starting,
    Stage.RUNNING: JobController._running,
    Stage.JOINING: JobController._joining,
    Stage.SWITCHING: JobController._switching,
    Stage.STOPPING: JobController._stopping,
}
#: The outcome that is reported once all workers have left.
_OUTCOMES = {
    AfterStop.RELEASED: "Released",
    AfterStop.ROLLED_BACK: "OperationFailed",
    AfterStop.FINISHED: "JobsFinished",
    AfterStop.FAILED: "JobsFailed",
    AfterStop.LEFT: "JobsLeft",
}


def _fresh_key() -> str:
    return secrets.token_hex(32)


def _by_index(member: Member) -> tuple[bool, int]:
    return member.is_server, member.index
