"""What an operation means for one job: a state machine over its workers, whatever machines they are on.

`step` looks at how things are and does what is next; it may be called at any time, and after a crash it goes on from
the record on disk. It does nothing by itself: `Hands` does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from levada.backends.local.crew import IN_PROCESS
from levada.backends.local.hands import Hands
from levada.backends.local.messages import ENDED, UNREACHABLE, Sighting
from levada.backends.local.record import Record, Stage, Then
from levada.backends.local.roster import Member, covering, matched, members_of
from levada.backends.local.voice import Voice, exit_code, how, index_of
from levada.backends.protocol import Launch
from levada.core import events as ev
from levada.core.plan import Op, OpKind

#: What is left of a job that broke, or of a start that did not succeed, has so long to leave.
_SHORT_GRACE_S = 10.0
#: Leavers go by themselves when they see the new world; after that long they are told.
_LEAVE_BY_ITSELF_S = 5.0
#: A job that left by itself starts again in its place if it ran so long; else the engine says when.
_WORTH_RESTARTING_S = 30.0
#: Survivors of a loss that have not found together by then start again from their checkpoint.
_SURVIVE_S = 30.0
#: Beyond the grace period even a shim is late.
_LATE_S = 10.0


class Gang(Voice):
    """The workers of one job, and what is to become of them."""

    def __init__(self, record: Record, hands: Hands) -> None:
        super().__init__(record, hands)
        self._asked: set[str] = set()
        self._killed: set[str] = set()
        self._told_in_process = False
        self._complete_since = 0.0
        #: Names of workers that a server before this one may have started.
        self._inherited = {member.name for member in (*record.members, *record.newcomers)}

    # --- operations -------------------------------------------------------------------------------------------------

    def apply(self, op: Op, launch: Launch | None, epoch: int, now: float) -> None:
        """Takes an operation down, unless it is known or something newer is."""
        with self._kept():
            self._apply(op, launch, epoch, now)
        self.step(now)

    def _apply(self, op: Op, launch: Launch | None, epoch: int, now: float) -> None:
        record = self.record
        if op.generation < record.generation:
            return
        # Workers that nobody should have are stopped under the generation that they were found with.
        stray = op.kind == OpKind.STOP and record.kind != OpKind.STOP
        again = stray or record.stage is Stage.ADRIFT or self._was_quit()
        if op.generation == record.generation and not again:
            self._tell_again()
            return
        if record.told == "JobsFinished" and record.number == op.number:
            # The operation and the end crossed: what is done is never begun again.
            record.generation = op.generation
            self._hands.save()
            self._tell_again()
            return
        survives = record.stage is Stage.SWITCHING and record.told == "Running"
        if record.stage is Stage.IDLE:
            # All workers of an idle job have ended, and their end was reported: it must not count again for this one.
            record.members = record.newcomers = record.leavers = ()
        failed = record.stage is Stage.STOPPING and record.then is Then.FAILED
        record.number, record.epoch = op.number, epoch
        record.generation, record.kind, record.told = op.generation, op.kind, ""
        if not failed:
            record.why, record.code = "", None
        if op.kind == OpKind.STOP:
            self._stop(Then.FAILED if failed else Then.RELEASED, now)
        else:
            assert op.grant is not None
            assert launch is not None
            # What they were started with must not change for those who stay.
            stays = (record.stage is Stage.RUNNING or survives) and record.batch == op.batch
            was, record.launch, record.places, record.batch = record.launch, launch, op.grant.places, op.batch
            if op.kind == OpKind.RESIZE and stays and self.resizes_in_process(was):
                if survives:
                    record.waits = True
                    self._hands.save()
                else:
                    self._join(now)
            elif failed:
                self._stop(Then.FAILED, now)
            elif self.alive() or self._may_run_unseen():
                self._stop(Then.START, now)
            else:
                self._begin(now)

    async def reserve(self, generation: int) -> None:
        """Before a job starts that has no workers: the disk knows the number of its next world before anybody waits."""
        record = self.record
        await self._hands.reserve(generation, max(record.last_world + 1, generation))

    def quit(self, now: float) -> None:
        """Stops all workers, whatever was under way; the operation is carried out when it is applied again."""
        record = self.record
        if record.stage is not Stage.STOPPING or record.then is Then.START:
            with self._kept():
                # Workers that are leaving already keep the time that they have.
                self._stop(Then.RELEASED, record.since if record.stage is Stage.STOPPING else now)
            self.step(now)

    def tell_losses_again(self, is_lost: Callable[[str], bool]) -> None:
        """After a restart, report workers that are gone and that the job goes on without.

        The server before may have ended between the loss and its commit to the log; the engine ignores a loss that it
        knows. Workers on a node that *is_lost* go with the node.
        """
        record = self.record
        if record.told != "Running" or record.stage not in (Stage.RUNNING, Stage.SWITCHING):
            return
        for place in record.places:
            if place.group == "worker" and covering(record.members, place) is None and not is_lost(place.node):
                self._tell(ev.WorkersFailed, running=len(record.members), index=place.index)

    def starts(self) -> bool:
        """Workers are being started, or will be when others have left."""
        record = self.record
        return record.stage is Stage.STARTING or (record.stage is Stage.STOPPING and record.then is Then.START)

    def _was_quit(self) -> bool:
        """`quit` ended the last operation: all was released, which completes nothing but a stop."""
        record = self.record
        return record.stage is Stage.IDLE and record.told == "Released" and record.kind != OpKind.STOP

    # --- the machine ------------------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Does what is next."""
        before = None
        while before is not self.record.stage:
            before = self.record.stage
            with self._kept():
                self._send_strays_away()
                _STEPS[before](self, now)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What could not be kept on disk has not happened: the next step does it again."""
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
        record = self.record
        self._publish()
        for member in record.members:
            if member.name not in self.seen:
                self._hands.start(member, record.members, record.world)
        if self.finished():
            self._tell_running()
            self._stop(Then.FINISHED, now)
        elif (broken := self.broken(record.members)) is not None:
            if broken.state == ENDED:
                if all(self.was_up(member) for member in record.members):
                    self._tell_running()
                self._fail(broken, now)
            else:
                self._give_up(f"worker {index_of(broken.name)} {how(broken)}", now)
        elif all(self.is_up(member, now) for member in record.members):
            told, record.told = record.told, "Running"
            self._settle(Stage.RUNNING, now)
            if told == "Running":
                self._tell(ev.WorkersStarted, running=self.running)
            else:
                self._tell(ev.Running)
        elif now - record.since > self.launch.start_limit_s:
            missing = [member for member in record.members if not self.is_up(member, now)]
            self._give_up(f"{len(missing)} of {len(record.members)} workers were not up in time", now)

    def _running(self, now: float) -> None:
        record = self.record
        if self._is_done(now):
            self._stop(Then.FINISHED, now)
        elif (broken := self.broken(record.members)) is not None:
            self._lose(broken, now)
        elif self.waits_for_peers() and now - record.since > self.launch.start_limit_s:
            self._give_up("workers wait for others that never joined them", now)
        else:
            if self.launch.seconds is not None:
                self._publish()  # now that it is known when they are over
            self._look_at_readings()

    def _joining(self, now: float) -> None:
        record = self.record
        kept, _ = matched(record.members, record.places)
        crew = tuple(sorted([*kept, *record.newcomers], key=_by_index))
        for member in record.newcomers:
            if member.name not in self.seen:
                self._hands.start(member, crew, record.last_world)
        if self._is_done(now):
            self._stop(Then.FINISHED, now)
        elif (broken := self.broken(record.members)) is not None:
            self._fail(broken, now)
        elif (broken := self.broken(record.newcomers)) is not None or self.any_ended(record.newcomers):
            ended = "ended" if broken is None else f"{index_of(broken.name)} {how(broken)}"
            self._restart(f"a new worker ({ended}) did not join", now)
        elif now - record.since > self.launch.start_limit_s:
            self._restart("new workers were not ready in time", now)
        elif all(self.reads(member, lambda reading: reading.ready) for member in record.newcomers):
            names = {member.name for member in kept}
            record.leavers = tuple(member for member in record.members if member.name not in names)
            record.newcomers = ()
            self._switch(crew, now)

    def _switching(self, now: float) -> None:
        record, limit = self.record, self.launch.start_limit_s
        self._publish()
        leaving = [member.name for member in record.leavers if self.is_alive(member.name)]
        if not leaving and record.kind == OpKind.RESIZE and record.told == "" and not record.waits:
            record.told = "Released"
            self._tell(ev.Released)
        # They may have been past their last step when the new world was made known.
        if self._is_done(now) or self.is_done_without_newcomers():
            self._stop(Then.FINISHED, now)
        elif (broken := self.broken(record.members)) is not None:
            if record.told == "Running":
                self._lose(broken, now)
            else:
                self._restart(f"worker {index_of(broken.name)} {how(broken)} while the job was resized", now)
        elif not leaving and all(self.entered(member) for member in record.members):
            record.leavers = ()
            self._settle(Stage.RUNNING, now)
            if record.waits:
                record.waits = False
                self._join(now)
            elif record.told != "Running":
                self._tell_pause()
                self._tell_running()
        elif now - record.since > (min(limit, _SURVIVE_S) if record.waits or record.told == "Running" else limit):
            self._restart("workers did not enter the new generation in time", now)
        elif now - record.since > min(_LEAVE_BY_ITSELF_S, self.launch.grace_s):
            self._ask(leaving)

    def _stopping(self, now: float) -> None:
        record = self.record
        alive = self.alive()
        if alive or self._may_run_unseen():
            self._ask(alive)
            grace = self.launch.grace_s
            short = record.then in (Then.FAILED, Then.LEFT, Then.ROLLED_BACK, Then.FINISHED)
            if now - record.since > (min(grace, _SHORT_GRACE_S) if short else grace + _LATE_S):
                late = [name for name in alive if name not in self._killed]
                self._hands.kill(late)
                self._killed.update(late)
            return
        # Whatever they were stopped for: what is done is not begun again.
        if self.finished():
            record.then = Then.FINISHED
        elif record.then in (Then.START, Then.RELEASED) and not record.why and (broken := self.broke_by_itself()):
            # The operation and the failure crossed: it counts as one, as it would have a moment before.
            record.then, record.code = Then.FAILED, exit_code(broken)
            record.why = f"worker {index_of(broken.name)} {how(broken)}"
        then = record.then
        self._tell_steps(then)
        if then is Then.START:
            if record.kind != OpKind.START or record.told == "Running":
                self._tell(ev.JobsRestarted)  # a start is told of when it is complete
            if record.kind == OpKind.RESIZE and record.told == "":
                self._tell(ev.Released)
            elif record.told == "Running":
                self._tell(ev.WorkersStopped, running=0)
            self._begin(now)
            return
        # Kept with the stage: whoever takes over from here must know what there was to tell.
        record.told = _ENDS[then]
        self._settle(Stage.IDLE, now)
        if then is Then.ROLLED_BACK:
            self._note("undone", f"start was undone: {record.why}")
        self._note_end()
        self._tell_again()

    # --- transitions ------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """A new generation of workers, from nothing."""
        record = self.record
        record.world = self._next_world()
        record.members = members_of(
            record.places,
            framework=self.launch.framework,
            world=record.world,
            address=self._hands.address,
            port=self._hands.port,
        )
        record.newcomers = record.leavers = ()
        record.port, record.key = self._hands.port(record.members[0].node), _fresh_key()
        self.seen = {name: seen for name, seen in self.seen.items() if seen.alive}
        self.forsaken.clear()
        self._told_saved = -1  # what workers before these saved is no checkpoint of theirs
        self._told_saves_on_stop = False
        self._settle(Stage.STARTING, now)

    def _join(self, now: float) -> None:
        """A resize in process: newcomers come first."""
        record = self.record
        kept, new = matched(record.members, record.places)
        if not kept:
            # Whoever knows the model leaves with this change: only a checkpoint carries it over.
            self._stop(Then.START, now)
            return
        if not new and len(kept) == len(record.members):
            record.members = tuple(kept)
            self._tell(ev.Released)
            self._tell_running()
            return
        record.newcomers = members_of(
            new,
            framework=self.launch.framework,
            world=self._next_world(),
            address=self._hands.address,
            port=self._hands.port,
        )
        record.port = self._hands.port(min([*kept, *record.newcomers], key=_by_index).node)
        self._settle(Stage.JOINING, now)

    def _switch(self, crew: tuple[Member, ...], now: float) -> None:
        """The next world, of this crew."""
        record = self.record
        record.members, record.world, record.key = crew, record.last_world, _fresh_key()
        self._settle(Stage.SWITCHING, now)

    def _next_world(self) -> int:
        record = self.record
        record.last_world = max(record.last_world + 1, record.generation)
        return record.last_world

    def _lose(self, broken: Sighting, now: float) -> None:
        """A worker is gone though nobody asked: survivors get a world of their own where they can go on."""
        record = self.record
        left = tuple(member for member in record.members if self.is_alive(member.name))
        gone = [member for member in record.members if not self.is_alive(member.name)]
        workers = sum(not member.is_server for member in left)
        if workers and record.in_process and not any(member.is_server for member in gone):
            # Whether that is enough for the job, the engine knows.
            cause = f"worker {index_of(broken.name)} {how(broken)}"
            are_left = f"{workers} {'is' if workers == 1 else 'are'} left"
            self._note("loss", f"{cause}; {are_left}", cause=cause, lost_exit_code=exit_code(broken))
            record.port = self._hands.port(left[0].node)
            for member in gone:
                # What was on a machine that is lost is the machine's news.
                if self.seen[member.name].state != UNREACHABLE:
                    self._tell(ev.WorkersFailed, running=len(left), index=member.index)
            self._next_world()
            self._switch(left, now)
        elif broken.state == UNREACHABLE:
            # The engine knows, and what it wants to happen to the rest is on its way.
            return
        elif self.left_by_itself(broken) and now - record.since > _WORTH_RESTARTING_S and not self._is_out_of_time(now):
            self._restart(f"{self._how_it_left(broken)} by itself", now)
        else:
            self._fail(broken, now)

    def _fail(self, broken: Sighting, now: float) -> None:
        record = self.record
        record.code = exit_code(broken)
        left = self.left_by_itself(broken)
        record.why = self._how_it_left(broken) if left else f"worker {index_of(broken.name)} {how(broken)}"
        self._stop(Then.LEFT if left else Then.FAILED, now)

    def _give_up(self, why: str, now: float) -> None:
        """A start that does not succeed is undone. Of a resize nothing is left then, so that the job broke."""
        self.record.why = why
        started = self.record.kind == OpKind.START and self.record.told == ""
        self._stop(Then.ROLLED_BACK if started else Then.FAILED, now)

    def _restart(self, why: str, now: float) -> None:
        self.record.why = why
        self._note("restart", f"{why}: all workers stop and start again")
        self._stop(Then.START, now)

    def _stop(self, then: Then, now: float) -> None:
        self.record.then, self.record.waits = then, False
        self._settle(Stage.STOPPING, now)

    def _settle(self, stage: Stage, now: float) -> None:
        self.record.stage, self.record.since = stage, now
        if stage is not Stage.STOPPING:
            self._asked.clear()
            self._killed.clear()
        self._hands.save()

    # --- looking ----------------------------------------------------------------------------------------------------

    def _is_done(self, now: float) -> bool:
        """The job is done, and who did not end by itself after that had time enough to."""
        self._complete_since = (self._complete_since or now) if self.is_complete() else 0.0
        lingers = self._complete_since > 0 and now - self._complete_since > self.launch.grace_s
        return self.finished() or lingers

    def _is_out_of_time(self, now: float) -> bool:
        """Its lease has ended: the engine says what becomes of it."""
        return self.launch.seconds is not None and now - self.record.since >= self.launch.seconds

    def _send_strays_away(self) -> None:
        """Whoever is of no generation that counts, as after a machine was out of reach."""
        if self.record.stage not in (Stage.STOPPING, Stage.ADRIFT):
            roster = set() if self.record.stage is Stage.IDLE else self.roster()
            self._ask([name for name in self.alive() if name not in roster])

    def _may_run_unseen(self) -> bool:
        """Whether a worker may run that a server before this one started, on a machine that has yet to tell of it."""
        members = (*self.record.members, *self.record.newcomers)
        unseen = [one for one in members if one.name in self._inherited and one.name not in self.seen]
        return any(self._hands.is_awaited(one.node) for one in unseen)

    def _ask(self, names: Sequence[str]) -> None:
        fresh = [name for name in names if name not in self._asked]
        if fresh:
            self._hands.leave(fresh)
            self._asked.update(fresh)

    def _look_at_readings(self) -> None:
        """What reports tell once a job runs."""
        record = self.record
        told = [reading for reading in self.readings() if reading.ready]
        if not told:
            return
        record.runtime = True
        able = self.launch.framework in IN_PROCESS
        in_process = able and len(told) == len(record.members) and all(reading.in_process for reading in told)
        if in_process and not self._told_in_process:
            record.in_process = True
            self._hands.save()
            self._told_in_process = True
            self._tell(ev.ResizesInPlace)
        if any(reading.saved and reading.saved_steps > record.broken_at for reading in told):
            self._tell_saved()
        if record.broken_at < 0 and any(reading.saves_on_stop for reading in told):
            self._tell_saves_on_stop()


_STEPS = {
    Stage.IDLE: Gang._idle,
    Stage.ADRIFT: Gang._idle,
    Stage.STARTING: Gang._starting,
    Stage.RUNNING: Gang._running,
    Stage.JOINING: Gang._joining,
    Stage.SWITCHING: Gang._switching,
    Stage.STOPPING: Gang._stopping,
}
_ENDS = {
    Then.RELEASED: "Released",
    Then.ROLLED_BACK: "OperationFailed",
    Then.FINISHED: "JobsFinished",
    Then.FAILED: "JobsFailed",
    Then.LEFT: "JobsLeft",
}


def _fresh_key() -> str:
    return secrets.token_hex(32)


def _by_index(member: Member) -> tuple[bool, int]:
    return member.is_server, member.index
