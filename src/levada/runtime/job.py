"""A training job as its script sees it."""

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
from levada.runtime.channel import Channel, News, NoChannel
from levada.runtime.checkpoint import Outdated, Progress
from levada.runtime.framework import Framework
from levada.runtime.group import Group
from levada.runtime.membership import Asked, Excluded, Membership
from levada.runtime.place import Place
from levada.runtime.pulse import Pulse
from levada.runtime.report import COMPLETE, IN_PROCESS, LEASED, LEAVES, READY, SAVES, Report
from levada.runtime.rhythm import Rhythm
from levada.runtime.state import State
from levada.runtime.world import World

T = TypeVar("T")

_NOTHING = object()
#: Exit codes: saved and left on request; could not save.
LEFT, FAILED = 75, 1

#: A supervisor that says nothing for so long is not waited for.
_UNHEARD_S = 1.0


class Verdict(Enum):
    """What members do next."""

    GO_ON = "go on"
    SWITCH = "switch"
    STOP = "stop"


class Job:
    """This worker's part in a job: `levada.runtime.init` makes one.

    Between steps, and only there, it follows the supervisor: saves and leaves when asked to, and goes over to a new
    generation with more or fewer members.
    """

    def __init__(
        self,
        place: Place,
        channel: Channel,
        framework: Framework,
        save_every_s: float,
    ) -> None:
        self._framework = framework
        self._state = State(framework.dump, framework.load)
        self._is_elastic = framework.is_elastic
        self._save_every_s = save_every_s
        self._is_heard = not isinstance(channel, NoChannel)
        #: Steps and passes over the data done by the whole job.
        self.step = 0
        self.epoch = 0
        #: Checkpoints, ever, and the steps in the last one.
        self.saves = 0
        self.saved_step = 0
        self._position = 0
        self._saved_at = time.monotonic()
        self._is_save_wanted = False
        self._is_in_step = False
        self._flags = 0
        self._pause_s = 0.0
        #: When, and how often the thread had looked by then.
        self._asked: tuple[float, int] | None = None
        self._lost_at: float | None = None
        #: Set by others than the step loop, for a worker alone; members of a group look up when it is due.
        self._attention = False
        self._rhythm = Rhythm()
        #: The members have agreed to stop: what the script calls the end of its work is not the end of the job.
        self.is_stopped = False
        #: Of the whole job, where it follows a lease that grants them.
        self.total_steps = math.inf
        self._has_ended = False
        self._members = Membership(
            place, self._state, self._framework, self._world_heard, lambda: self._asked is not None
        )
        self._pulse = Pulse(channel, self._describe, self._hear)
        self._pulse.start()
        self._listen_to_signals()
        atexit.register(self._end)

    # ---------------------------------------------------------------------------------------------- what a script sees

    @property
    def rank(self) -> int:
        """This worker's place among all; another one may be given to it in the next generation."""
        return self._members.rank

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return len(self._members.world.members)

    @property
    def generation(self) -> int:
        """How often the members have changed; 0 without a supervisor."""
        return self._members.world.generation

    @property
    def is_main(self) -> bool:
        """Whether this is the one that saves and prints."""
        return self.rank == 0

    @property
    def checkpoint_dir(self) -> Path | None:
        """Where checkpoints go; None where nobody named a folder."""
        return self._members.place.checkpoints

    @property
    def group(self) -> Group:
        """The members, for sums and messages; another one in every generation, so do not keep it."""
        return self._members.group

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether this worker was asked to save and leave, or its lease is over."""
        return self._asked is not None or self._pulse.news.lease.is_over(self.step, time.time())

    def state(
        self, *, save: Callable[[], Any] | None = None, load: Callable[[Any], None] | None = None, **objects: Any
    ) -> None:
        """Says what is saved, given to newcomers and restored: objects by name, or two functions *save* and *load*.

        To be called before the first step; restored is what it was given when the first step is asked for.
        """
        if (save is None) != (load is None):
            raise TypeError("give both save and load, or neither")
        self._state.add(objects)
        if save is not None and load is not None:
            self._state.add_functions(save, load)

    @property
    def is_joined(self) -> bool:
        """Whether this worker is a member and trains."""
        return self._members.is_in

    def join(self) -> None:
        """Waits until all members are there and share one state; `steps` and `epochs` do it by themselves."""
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
        """Counts steps: up to a total number, from where the checkpoint is; or one pass over the items of *work*.

        Where *work* has a method `starting_at(position)`, that gives this worker's part of the items from there on,
        again whenever the members have changed.
        """
        # An array is both: its items are meant.
        return self._pass_over(work) if isinstance(work, Iterable) else self._count(index(work))

    def epochs(self, total: int) -> Iterator[int]:
        """Counts passes over the data, from where the checkpoint is."""
        self.join()
        while self.epoch < total:
            yield self.epoch
            self.epoch += 1
            self._position = 0

    def guard(self) -> Guard:
        """A `with` block around a step: where a peer is lost in it, the step is done again with those who remain."""
        return Guard(self)

    def save_now(self) -> None:
        """Saves a checkpoint, if this is the main worker; in the middle of a step, when the step is done."""
        if self._is_in_step:
            self._is_save_wanted = self._attention = True
        else:
            self._save()

    def _save(self) -> bool:
        """False where nothing was saved, which the main worker says on stderr."""
        self._saved_at, self._is_save_wanted = time.monotonic(), False
        if not self.is_main or not self._state:
            return False
        if self.checkpoint_dir is None:
            _say("no checkpoint: LEVADA_CHECKPOINT_DIR is not set")
            return False
        try:
            progress = self._progress._replace(saves=self.saves + 1, saved_step=self.step)
            checkpoint.save(self.checkpoint_dir, self.generation, progress, self._state.dump())
        except Outdated as error:
            _say(f"{error}; this worker leaves")
            self._exit(LEFT)
        except OSError as error:
            _say(f"no checkpoint: {error}")
            return False
        self.saves, self.saved_step = progress.saves, progress.saved_step
        return True

    def saved(self, step: int | None = None) -> None:
        """Says that the script has saved by itself, so many steps (or all so far); `save_now` needs no such word."""
        self.saves += 1
        self.saved_step = self.step if step is None else step
        if self.is_asked_to_stop:
            self._flags |= LEAVES
            self._pulse.flush()  # the script may be about to end in a way that leaves no time for a last report

    def tick(self) -> bool:
        """Counts a step and says whether to stop now: for scripts with a loop of their own, that is not elastic."""
        self.step += 1
        return (self._attention or self.step >= self._rhythm.due) and self.verdict() is Verdict.STOP

    def follow_lease(self) -> None:
        """Only `complete` ends the job from now on, not exit code 0; and the script saves when it has to leave.

        Of several workers the main one answers for that: it saves, and may still do so when the others have left.
        """
        if self.is_main:
            self._flags |= LEASED | SAVES
        self._pulse.wait_for_news()
        # Fixed for this process, so that workers that count the same steps end after the same one.
        self.total_steps = self._pulse.news.lease.total_steps

    def hand_over(self) -> None:
        """Another process reports for this worker from now on. This one outlives SIGTERM and says nothing more."""
        self._has_ended = True
        self._pulse.end()

    def complete(self) -> None:
        """Says that the whole job is done. To be called by every worker, before it ends with exit code 0.

        After the supervisor asked to stop it has no effect: the job goes on from its checkpoint.
        """
        if not self.is_stopped:
            self.finish()

    def finish(self) -> None:
        """Says that the whole job is done, even where it was asked to stop after its last step."""
        self._flags |= COMPLETE
        if self._is_elastic:
            with contextlib.suppress(ConnectionError):
                self._members.group.barrier()
        self._pulse.flush()

    # ------------------------------------------------------------------------------------------------------- the loop

    def _count(self, total: int) -> Iterator[int]:
        self.join()
        while self.step < total:
            self._is_in_step = True
            yield self.step
            self._is_in_step = False
            if self._lost_at is None:
                self._count_one()
            else:
                self._enter(self._lost_at)

    def _pass_over(self, items: Iterable[T]) -> Iterator[T]:
        self.join()
        # Items that are shared out among workers are shared out anew when these change.
        share: Callable[[int], Iterator[T]] | None = getattr(items, "starting_at", None)
        rest = share(self._position) if share else islice(iter(items), self._position, None)
        generation = self.generation
        try:
            while (item := next(rest, _NOTHING)) is not _NOTHING:
                position = self._position
                # After a loss the item is done again, unless others have done it.
                while self._position == position:
                    self._is_in_step = True
                    yield cast("T", item)
                    self._is_in_step = False
                    if self._lost_at is None:
                        self._position += 1
                        self._count_one()
                    else:
                        self._enter(self._lost_at)
                    if share and self.generation != generation:
                        rest, generation = share(self._position), self.generation
                        break
        finally:
            # Also when the script breaks out of its pass.
            self._position, self._is_in_step = 0, False

    def _count_one(self) -> None:
        self.step += 1
        if self._attention or self.step >= self._rhythm.due:
            self._look_up()

    def _look_up(self) -> None:
        """Between two steps: does what the members agree on."""
        verdict = self.verdict()
        if verdict is Verdict.STOP:
            self._stop()
        elif verdict is Verdict.SWITCH:
            self._enter(time.monotonic())
        elif self._is_save_wanted or (self.checkpoint_dir and self._is_save_due):
            self._save()

    def verdict(self) -> Verdict:
        """What all members do after this step; to be asked by all of them after the same steps."""
        # First this, then what it stands for: whoever sets it again meanwhile is not forgotten.
        self._attention = False
        if self._has_peers and self.step < self._rhythm.due:
            return Verdict.GO_ON
        members = self._members
        newest = members.newest if self._is_elastic else members.generation
        stop = self.is_asked_to_stop and self._is_up_to_date and not (self._is_elastic and members.is_excluded)
        try:
            votes = self._agree((float(stop), -newest, -self._rhythm.proposal(self.step, self._lease_step)))
        except Exception as error:
            if not self._can_survive(error):
                raise
            self._enter(time.monotonic())
            return Verdict.GO_ON
        self._rhythm.agreed(self.step, -votes[2])
        if not self._has_peers:
            self._rhythm.due = self._lease_step
        if -votes[1] > members.generation:
            return Verdict.SWITCH
        self.is_stopped = votes[0] > 0
        return Verdict.STOP if self.is_stopped else Verdict.GO_ON

    @property
    def _is_save_due(self) -> bool:
        return bool(self._state) and time.monotonic() - self._saved_at >= self._save_every_s

    @property
    def _is_up_to_date(self) -> bool:
        """Whether the thread has looked once since this worker was asked to stop.

        Until then it may not know of a generation that goes on without it, and would stop all the others.
        """
        if self._asked is None:
            return True
        at, looks = self._asked
        return self._pulse.looks >= looks + 2 or time.monotonic() - at > _UNHEARD_S

    @property
    def _has_peers(self) -> bool:
        return self._members.group.size > 1

    @property
    def _lease_step(self) -> float:
        lease = self._pulse.news.lease
        return lease.until_step if lease.stops else math.inf

    def _agree(self, votes: Sequence[float]) -> list[float]:
        return self._members.group.agree(votes)

    # ------------------------------------------------------------------------------------------- coming in and leaving

    def _enter(self, since: float | None) -> None:
        """Goes over to the newest generation; *since* is when training came to a stand."""
        self._lost_at = None
        self._pulse.hurries = True
        self._members.leave()
        try:
            progress = self._members.join(self._progress)
        except Excluded:
            self._exit(LEFT)
        except Asked:
            self._save_if_ahead()
            self._exit(LEFT)
        self.step, self.epoch, self._position, self.saves, self.saved_step = progress
        self._rhythm.restart(self.step)
        self._attention = False
        if since is not None:
            self._pause_s = time.monotonic() - since
        self._pulse.hurries = False
        self._pulse.restart_clock()

    def _stop(self) -> NoReturn:
        """All members: rank 0 saves, all leave."""
        failed = bool(self._state) and self.is_main and not self._save()
        try:
            failed = self._agree((float(failed),))[0] > 0
        except Exception:
            failed = failed or not self.is_main  # nobody knows whether the main worker has saved
        if self._state and not failed:
            self._flags |= LEAVES
        self._exit(FAILED if failed and self.is_main else LEFT)

    def _save_if_ahead(self) -> None:
        """Saves before leaving alone, when nobody can be asked who is the main worker."""
        folder = self.checkpoint_dir
        if folder is None or not self._state or not self._members.is_in:
            return
        with contextlib.suppress(OSError, Outdated):
            found = checkpoint.peek(folder)
            if found is None or found.step < self.step:
                progress = self._progress._replace(saves=self.saves + 1, saved_step=self.step)
                checkpoint.save(folder, self.generation, progress, self._state.dump())
                self.saves, self.saved_step = progress.saves, progress.saved_step
            self._flags |= LEAVES

    def _exit(self, code: int) -> NoReturn:
        self._end()
        raise SystemExit(code)

    def _end(self) -> None:
        """The last report; nothing is said or heard after it."""
        if self._has_ended:
            return
        self._has_ended = True
        self._pulse.end()
        self._framework.close()
        self._members.group.close()

    def _can_survive(self, error: BaseException) -> bool:
        return self._is_elastic and self._is_heard and self._framework.is_loss(error)

    def _lose(self) -> None:
        self._lost_at = time.monotonic()

    # ------------------------------------------------------------------------------------------ beside the step loop

    @property
    def _progress(self) -> Progress:
        return Progress(self.step, self.epoch, self._position, self.saves, self.saved_step)

    def _describe(self) -> Report:
        return Report(
            flags=self._flags,
            generation=self._members.generation,
            step=float(self.step),
            saves=self.saves,
            saved_step=float(self.saved_step),
            pause_s=self._pause_s,
        )

    def _world_heard(self) -> World | None:
        return self._pulse.news.world

    def _hear(self, news: News) -> None:
        """Called by the thread all the time: makes a worker without peers look up where there is reason to."""
        if self._has_peers or not self._members.is_in:
            return
        is_newer = self._is_elastic and self._members.newest > self._members.generation
        if is_newer or self._is_save_due or self._asked is not None or news.lease.stops:
            self._attention = True

    def _listen_to_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may: then the supervisor's SIGTERM ends this worker at once

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked = self._asked or (time.monotonic(), self._pulse.looks)
            self._attention = True

        signal.signal(signal.SIGTERM, ask)
        # Children, such as those that load data, end on SIGTERM as ever.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


class Guard:
    """Survives the loss of a peer in its block."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not self._job._can_survive(error):
            return False
        self._job._lose()
        return True


def _say(text: str) -> None:
    sys.stderr.write(f"levada: {text}\n")
