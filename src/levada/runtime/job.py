"""Job API of a training script: steps, checkpoints, members, stop requests."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from operator import index
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, SupportsIndex, TypeVar, cast, overload

from levada.runtime import checkpoint
from levada.runtime.channel import Channel, Instructions, NoChannel
from levada.runtime.checkpoint import Outdated, SavedProgress
from levada.runtime.framework import Framework
from levada.runtime.generation_file import World
from levada.runtime.group import Group
from levada.runtime.heartbeat import HeartbeatThread
from levada.runtime.membership import AskedToStop, Excluded, Membership
from levada.runtime.report import COMPLETE, IN_PROCESS, LEASED, LEAVES, READY, SAVES, ProgressReport
from levada.runtime.state import TrainingState
from levada.runtime.sync_interval import SyncInterval
from levada.runtime.worker_env import WorkerEnv

T = TypeVar("T")

_NOTHING = object()
#: Exit codes: saved and left on request; could not save.
LEFT, FAILED = 75, 1

#: A worker waits at most this long for the supervisor after a stop request.
_SILENCE_S = 1.0


class NextStep(Enum):
    """What all members do after a step."""

    GO_ON = "go on"
    SWITCH = "switch"
    STOP = "stop"


class Job:
    """A training job in this worker; created by `levada.runtime.init`.

    Only between steps it follows the supervisor: it saves and leaves when asked to, and enters a new generation with
    more or fewer members.
    """

    def __init__(
        self,
        place: WorkerEnv,
        channel: Channel,
        framework: Framework,
        save_every_s: float,
    ) -> None:
        self._framework = framework
        self._state = TrainingState(framework.dump, framework.load)
        self._is_elastic = framework.is_elastic
        self._save_every_s = save_every_s
        self._is_supervised = not isinstance(channel, NoChannel)
        #: Steps and epochs completed by the whole job.
        self.step = 0
        self.epoch = 0
        #: Number of checkpoints over all restarts, and the steps in the last one.
        self.saves = 0
        self.saved_step = 0
        self._position = 0
        self._saved_at = time.monotonic()
        self._is_save_wanted = False
        self._is_in_step = False
        self._flags = 0
        self._pause_s = 0.0
        #: When this worker was asked to stop, and the number of exchanges with the supervisor by then.
        self._asked: tuple[float, int] | None = None
        self._lost_at: float | None = None
        #: Set outside the step loop for a worker without peers; members of a group check when a sync is due.
        self._check_requested = False
        self._sync = SyncInterval()
        #: The members have agreed to stop, so the end of the script is not the end of the job.
        self.is_stopped = False
        #: Total steps of the job, if a lease grants them.
        self.total_steps = math.inf
        self._has_ended = False
        self._members = Membership(
            place, self._state, self._framework, self._latest_world, lambda: self._asked is not None
        )
        self._heartbeat = HeartbeatThread(channel, self._describe, self._on_instructions)
        self._heartbeat.start()
        self._handle_signals()
        atexit.register(self._end)

    # ---------------------------------------------------------------------------------------------- what a script sees

    @property
    def rank(self) -> int:
        """Rank of this worker; it may change with the generation."""
        return self._members.rank

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self._members.world.members)

    @property
    def generation(self) -> int:
        """Generation of the current members; 0 without a supervisor."""
        return self._members.world.generation

    @property
    def is_main(self) -> bool:
        """Whether this worker has rank 0, which saves and prints."""
        return self.rank == 0

    @property
    def checkpoint_dir(self) -> Path | None:
        """Checkpoint directory; None if LEVADA_CHECKPOINT_DIR is not set."""
        return self._members.place.checkpoints

    @property
    def group(self) -> Group:
        """The members, for collective operations. It changes with every generation: do not store it."""
        return self._members.group

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether this worker was asked to save and leave, or its lease has ended."""
        return self._asked is not None or self._heartbeat.instructions.lease.is_over(self.step, time.time())

    def state(
        self, *, save: Callable[[], Any] | None = None, load: Callable[[Any], None] | None = None, **objects: Any
    ) -> None:
        """Register what is saved, sent to new members and restored: objects by name, or functions *save* and *load*.

        Call it before the first step, which restores the state.
        """
        if (save is None) != (load is None):
            raise TypeError("give both save and load, or neither")
        self._state.add(objects)
        if save is not None and load is not None:
            self._state.add_functions(save, load)

    @property
    def is_joined(self) -> bool:
        """Whether this worker is a member of a generation."""
        return self._members.is_in

    def join(self) -> None:
        """Wait until all members have joined and share one state; `steps` and `epochs` call it."""
        if not self._members.is_in:
            self._flags |= READY | (IN_PROCESS if self._is_elastic else 0)
            if self._state and self.checkpoint_dir is not None:
                self._flags |= SAVES
            self._enter(None)

    @overload
    def steps(self, work: SupportsIndex) -> Iterator[int]: ...
    @overload
    def steps(self, work: Iterable[T]) -> Iterator[T]: ...
    def steps(self, work: SupportsIndex | Iterable[T]) -> Iterator[int] | Iterator[T]:
        """Count steps: from the checkpoint up to a total number, or one pass over the items of *work*.

        If *work* has a method `starting_at(position)`, it must return this worker's shard of the items from there on;
        it is called again whenever the members have changed.
        """
        # An array is both: iterate over its items.
        return self._iterate(work) if isinstance(work, Iterable) else self._count(index(work))

    def epochs(self, total: int) -> Iterator[int]:
        """Count epochs from the checkpoint up to *total*."""
        self.join()
        while self.epoch < total:
            yield self.epoch
            self.epoch += 1
            self._position = 0

    def guard(self) -> Guard:
        """A `with` block around a step: if a peer is lost in it, the remaining members repeat the step."""
        return Guard(self)

    def save_now(self) -> None:
        """Save a checkpoint if this is the main worker; within a step, after the step."""
        if self._is_in_step:
            self._is_save_wanted = self._check_requested = True
        else:
            self._save()

    def _save(self) -> bool:
        """Save a checkpoint; False if none was saved, for which the main worker prints the reason to stderr."""
        self._saved_at, self._is_save_wanted = time.monotonic(), False
        if not self.is_main or not self._state:
            return False
        if self.checkpoint_dir is None:
            _warn("no checkpoint: LEVADA_CHECKPOINT_DIR is not set")
            return False
        try:
            progress = self._progress._replace(saves=self.saves + 1, saved_step=self.step)
            checkpoint.save(self.checkpoint_dir, self.generation, progress, self._state.dump())
        except Outdated as error:
            _warn(f"{error}; this worker leaves")
            self._exit(LEFT)
        except OSError as error:
            _warn(f"no checkpoint: {error}")
            return False
        self.saves, self.saved_step = progress.saves, progress.saved_step
        return True

    def saved(self, step: int | None = None) -> None:
        """Report a checkpoint that the script wrote itself, of *step* steps (default: all so far)."""
        self.saves += 1
        self.saved_step = self.step if step is None else step
        if self.is_asked_to_stop:
            self._flags |= LEAVES
            self._heartbeat.flush()  # the script may exit without time for a last report

    def tick(self) -> bool:
        """Count a step and return whether to stop now: for scripts with their own, non-elastic loop."""
        self.step += 1
        return (self._check_requested or self.step >= self._sync.due) and self.agree_next_step() is NextStep.STOP

    def follow_lease(self) -> None:
        """Declare that only `complete`, not exit code 0, ends the job, and that the script saves when asked to leave.

        The main worker declares it for all: it saves, and may still do so when the others have left.
        """
        if self.is_main:
            self._flags |= LEASED | SAVES
        self._heartbeat.wait_for_instructions()
        # Fixed for this process, so that workers that count the same steps end after the same one.
        self.total_steps = self._heartbeat.instructions.lease.total_steps

    def hand_over(self) -> None:
        """Stop reporting: another process reports for this worker. This process keeps ignoring SIGTERM."""
        self._has_ended = True
        self._heartbeat.end()

    def complete(self) -> None:
        """Report that the whole job is complete. Every worker must call it before it exits with code 0.

        It has no effect after a stop request: the job continues from its checkpoint.
        """
        if not self.is_stopped:
            self.finish()

    def finish(self) -> None:
        """Report that the whole job is complete, even if it was asked to stop after its last step."""
        self._flags |= COMPLETE
        if self._is_elastic:
            with contextlib.suppress(ConnectionError):
                self._members.group.barrier()
        self._heartbeat.flush()

    # ------------------------------------------------------------------------------------------------------- the loop

    def _count(self, total: int) -> Iterator[int]:
        self.join()
        while self.step < total:
            self._is_in_step = True
            yield self.step
            self._is_in_step = False
            if self._lost_at is None:
                self._finish_step()
            else:
                self._enter(self._lost_at)

    def _iterate(self, items: Iterable[T]) -> Iterator[T]:
        self.join()
        # Items that are sharded over workers are sharded again when the members change.
        shard: Callable[[int], Iterator[T]] | None = getattr(items, "starting_at", None)
        rest = shard(self._position) if shard else islice(iter(items), self._position, None)
        generation = self.generation
        try:
            while (item := next(rest, _NOTHING)) is not _NOTHING:
                position = self._position
                # After a loss the item is repeated, unless other members have completed it.
                while self._position == position:
                    self._is_in_step = True
                    yield cast("T", item)
                    self._is_in_step = False
                    if self._lost_at is None:
                        self._position += 1
                        self._finish_step()
                    else:
                        self._enter(self._lost_at)
                    if shard and self.generation != generation:
                        rest, generation = shard(self._position), self.generation
                        break
        finally:
            # Also when the script breaks out of its loop.
            self._position, self._is_in_step = 0, False

    def _finish_step(self) -> None:
        self.step += 1
        if self._check_requested or self.step >= self._sync.due:
            self._check()

    def _check(self) -> None:
        """Between two steps: agree with the members on what to do, and do it."""
        next_step = self.agree_next_step()
        if next_step is NextStep.STOP:
            self._stop()
        elif next_step is NextStep.SWITCH:
            self._enter(time.monotonic())
        elif self._is_save_wanted or (self.checkpoint_dir and self._is_save_due):
            self._save()

    def agree_next_step(self) -> NextStep:
        """Agree with all members on what to do after this step; all must call it after the same steps."""
        # Cleared before its causes are read, so that a request that is set meanwhile is not lost.
        self._check_requested = False
        if self._has_peers and self.step < self._sync.due:
            return NextStep.GO_ON
        members = self._members
        newest = members.newest if self._is_elastic else members.generation
        stop = self.is_asked_to_stop and self._is_up_to_date and not (self._is_elastic and members.is_excluded)
        try:
            votes = self._agree((float(stop), -newest, -self._sync.proposal(self.step, self._lease_step)))
        except Exception as error:
            if not self._can_survive(error):
                raise
            self._enter(time.monotonic())
            return NextStep.GO_ON
        self._sync.agreed(self.step, -votes[2])
        if not self._has_peers:
            self._sync.due = self._lease_step
        if -votes[1] > members.generation:
            return NextStep.SWITCH
        self.is_stopped = votes[0] > 0
        return NextStep.STOP if self.is_stopped else NextStep.GO_ON

    @property
    def _is_save_due(self) -> bool:
        return bool(self._state) and time.monotonic() - self._saved_at >= self._save_every_s

    @property
    def _is_up_to_date(self) -> bool:
        """Whether an exchange with the supervisor was completed since this worker was asked to stop.

        Before that it may not know of a generation that continues without it, and would stop all other members.
        """
        if self._asked is None:
            return True
        at, exchanges = self._asked
        return self._heartbeat.exchanges >= exchanges + 2 or time.monotonic() - at > _SILENCE_S

    @property
    def _has_peers(self) -> bool:
        return self._members.group.size > 1

    @property
    def _lease_step(self) -> float:
        lease = self._heartbeat.instructions.lease
        return lease.until_step if lease.stops else math.inf

    def _agree(self, votes: Sequence[float]) -> list[float]:
        return self._members.group.agree(votes)

    # ----------------------------------------------------------------------------------------------- entering and
    # leaving

    def _enter(self, since: float | None) -> None:
        """Enter the newest generation; *since* is when training paused."""
        self._lost_at = None
        self._heartbeat.fast = True
        self._members.leave()
        try:
            progress = self._members.join(self._progress)
        except Excluded:
            self._exit(LEFT)
        except AskedToStop:
            self._save_if_ahead()
            self._exit(LEFT)
        self.step, self.epoch, self._position, self.saves, self.saved_step = progress
        self._sync.restart(self.step)
        self._check_requested = False
        if since is not None:
            self._pause_s = time.monotonic() - since
        self._heartbeat.fast = False
        self._heartbeat.restart_clock()

    def _stop(self) -> NoReturn:
        """Stop all members: rank 0 saves, then all leave."""
        failed = bool(self._state) and self.is_main and not self._save()
        try:
            failed = self._agree((float(failed),))[0] > 0
        except Exception:
            failed = failed or not self.is_main  # unknown whether the main worker has saved
        if self._state and not failed:
            self._flags |= LEAVES
        self._exit(FAILED if failed and self.is_main else LEFT)

    def _save_if_ahead(self) -> None:
        """Save before leaving alone, without a group that agrees on the main worker."""
        folder = self.checkpoint_dir
        if folder is None or not self._state or not self._members.is_in:
            return
        with contextlib.suppress(OSError, Outdated):
            saved = checkpoint.peek(folder)
            if saved is None or saved.step < self.step:
                progress = self._progress._replace(saves=self.saves + 1, saved_step=self.step)
                checkpoint.save(folder, self.generation, progress, self._state.dump())
                self.saves, self.saved_step = progress.saves, progress.saved_step
            self._flags |= LEAVES

    def _exit(self, code: int) -> NoReturn:
        self._end()
        raise SystemExit(code)

    def _end(self) -> None:
        """Send the last report and close all connections."""
        if self._has_ended:
            return
        self._has_ended = True
        self._heartbeat.end()
        self._framework.close()
        self._members.group.close()

    def _can_survive(self, error: BaseException) -> bool:
        return self._is_elastic and self._is_supervised and self._framework.is_loss(error)

    def _mark_lost(self) -> None:
        self._lost_at = time.monotonic()

    # --------------------------------------------------------------------------------------- outside the step loop

    @property
    def _progress(self) -> SavedProgress:
        return SavedProgress(self.step, self.epoch, self._position, self.saves, self.saved_step)

    def _describe(self) -> ProgressReport:
        return ProgressReport(
            flags=self._flags,
            generation=self._members.generation,
            step=float(self.step),
            saves=self.saves,
            saved_step=float(self.saved_step),
            pause_s=self._pause_s,
        )

    def _latest_world(self) -> World | None:
        return self._heartbeat.instructions.world

    def _on_instructions(self, instructions: Instructions) -> None:
        """Called by the heartbeat thread: makes a worker without peers check after its step if there is a reason."""
        if self._has_peers or not self._members.is_in:
            return
        is_newer = self._is_elastic and self._members.newest > self._members.generation
        if is_newer or self._is_save_due or self._asked is not None or instructions.lease.stops:
            self._check_requested = True

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set handlers; SIGTERM ends this worker at once

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked = self._asked or (time.monotonic(), self._heartbeat.exchanges)
            self._check_requested = True

        signal.signal(signal.SIGTERM, ask)
        # Child processes, e.g. data loaders, keep the default action.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


class Guard:
    """Context manager that survives the loss of a peer in its block."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not self._job._can_survive(error):
            return False
        self._job._mark_lost()
        return True


def _warn(text: str) -> None:
    sys.stderr.write(f"levada: {text}\n")
