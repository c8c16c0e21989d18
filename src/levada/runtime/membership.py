"""Membership of a worker in generations: waiting, joining, state alignment.

A worker that is not a member yet waits. Members meet at rank 0's address, exchange their step counts, and take the
state of the member that is furthest ahead; a worker that lost a peer within a step is one step behind. If a peer is
lost meanwhile, or a newer generation is published, they start over with the newest one.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from levada.runtime import checkpoint
from levada.runtime.checkpoint import SavedProgress
from levada.runtime.framework import Framework
from levada.runtime.generation_file import World
from levada.runtime.group import Abandoned, Group
from levada.runtime.state import TrainingState
from levada.runtime.worker_env import WorkerEnv

_POLL_S = 0.005
#: A worker that waits longer than this prints one line to stderr.
_WARN_S = 60.0


class Excluded(Exception):
    """A newer generation does not include this worker."""


class AskedToStop(Exception):
    """This worker was asked to stop while it waited."""


class _MemberStatus(NamedTuple):
    """What members exchange when they meet."""

    progress: SavedProgress
    #: It has not trained yet: its state is that of a checkpoint or the initial one.
    is_new: bool
    #: Under torchrun, members of several generations may meet; the newest one counts.
    generation: int


class Membership:
    """The generation of a worker, and how it enters the next one."""

    def __init__(
        self,
        place: WorkerEnv,
        state: TrainingState,
        framework: Framework,
        latest: Callable[[], World | None],
        is_asked: Callable[[], bool],
    ) -> None:
        self.place = place
        #: From the environment until the first generation is entered.
        self.world = place.world
        self.rank = place.rank
        self.group = Group.alone()
        self.is_in = False
        self._state = state
        self._framework = framework
        self._latest = latest
        self._is_asked = is_asked
        self._is_new = True
        #: A generation in which a peer was lost.
        self._failed_world: World | None = None

    @property
    def generation(self) -> int:
        """The generation in which it trains; 0 before the first."""
        return self.world.generation if self.is_in else 0

    @property
    def newest(self) -> int:
        """The newest known generation."""
        world = self._latest()
        return self.generation if world is None else max(world.generation, self.generation)

    @property
    def is_excluded(self) -> bool:
        """Whether a newer generation does not include this worker."""
        world = self._latest()
        return world is not None and world.generation > self._last_generation and world.rank(self.place.worker) is None

    def leave(self) -> None:
        """Leave the group of this generation."""
        self._framework.close()
        self.group.close()
        self.group = Group.alone()
        if self.is_in:
            self._failed_world = self.world

    def join(self, progress: SavedProgress) -> SavedProgress:
        """Enter the newest generation and return its progress; raises Excluded or AskedToStop."""
        while True:
            world = self._wait() if self._framework.is_elastic else self.place.world
            try:
                return self._enter(world, progress)
            except Abandoned:
                self._abort(None)
            except Exception as error:
                self._abort(world)
                if not self._framework.is_loss(error):
                    raise

    @property
    def _last_generation(self) -> int:
        return self.world.generation

    def _abort(self, failed: World | None) -> None:
        self._framework.close()
        self.group.close()
        self.group = Group.alone()
        self._failed_world = failed or self._failed_world

    def _wait(self) -> World:
        """Wait for a newest generation that includes this worker."""
        warn_at = time.monotonic() + _WARN_S
        while True:
            if time.monotonic() > warn_at:
                sys.stderr.write("levada: waiting for the supervisor to make this worker a member\n")
                warn_at = math.inf
            if self.is_excluded:
                raise Excluded
            if self._is_asked():
                raise AskedToStop
            world = self._latest()
            is_open = world is not None and world.generation >= self._last_generation and world != self._failed_world
            if is_open and world is not None and world.rank(self.place.worker) is not None:
                return world
            time.sleep(_POLL_S)

    def _enter(self, world: World, progress: SavedProgress) -> SavedProgress:
        rank = world.rank(self.place.worker) if self._framework.is_elastic else None
        rank = self.place.rank if rank is None else rank
        self.group = self._framework.form_group(
            world, rank, world.digest(self.place.job), lambda: self._is_asked() or self._latest() != world
        )
        agreed, generation = self._align(self.group.rank, world.generation, progress)
        self._framework.on_state_aligned(self.group)
        self.world, self.rank = world._replace(generation=generation), rank
        self.is_in, self._is_new = True, False
        return agreed

    def _align(self, rank: int, generation: int, progress: SavedProgress) -> tuple[SavedProgress, int]:
        """Give all members the state of the one furthest ahead, if any of them is behind or new."""
        folder = self.place.checkpoints
        saved = checkpoint.peek(folder) if folder and self._is_new and self._state else None
        mine = _MemberStatus(saved or progress, self._is_new, generation)
        statuses = [_read(part) for part in self.group.gather(json.dumps(mine).encode())]
        order = [(status.progress.step, not status.is_new, -other) for other, status in enumerate(statuses)]
        source = order.index(max(order))
        furthest = statuses[source].progress
        behind = [status.is_new or status.progress.step < furthest.step for status in statuses]
        if any(behind) and self._state:
            data = self._state_to_share(folder if saved else None) if rank == source else None
            if self.group.size > 1:
                data = self._framework.share(self.group, data, source)
            if behind[rank] and data is not None and (rank != source or saved):
                self._state.load(data)
        return furthest, max(status.generation for status in statuses)

    def _state_to_share(self, folder: Path | None) -> bytes:
        """The state for the other members: from the checkpoint in *folder*, or the current one."""
        return self._state.dump() if folder is None else checkpoint.load(folder)


def _read(data: bytes) -> _MemberStatus:
    progress, is_new, generation = json.loads(data)
    return _MemberStatus(SavedProgress(*progress), bool(is_new), int(generation))
