"""Entering a generation: who waits, who joins, who leaves, and whose state everybody goes on with.

A worker that is not yet a member waits. Members meet at rank 0's address, tell each other how many steps they have,
and take the state of the one furthest ahead; somebody who lost a peer in the middle of a step is one behind. If a peer
is lost on the way, or a newer generation is published meanwhile, it all begins again with that one.
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
from levada.runtime.checkpoint import Progress
from levada.runtime.framework import Framework
from levada.runtime.group import Abandoned, Group
from levada.runtime.place import Place
from levada.runtime.state import State
from levada.runtime.world import World

_POLL_S = 0.005
#: Who waits longer than this says so, once.
_SILENCE_S = 60.0


class Excluded(Exception):
    """A newer generation does not have this worker."""


class Asked(Exception):
    """This worker was asked to stop while it waited."""


class _Standing(NamedTuple):
    """What a member tells the others when they meet."""

    progress: Progress
    #: It has trained nothing yet: its state is that of a checkpoint, or as the script made it.
    is_new: bool
    #: Under torchrun members of several may meet; the newest of them is theirs then.
    generation: int


class Membership:
    """The generation that a worker is in, and its way into the next one."""

    def __init__(
        self,
        place: Place,
        state: State,
        framework: Framework,
        latest: Callable[[], World | None],
        is_asked: Callable[[], bool],
    ) -> None:
        self.place = place
        #: As the environment tells it, until the first one was entered.
        self.world = place.world
        self.rank = place.rank
        self.group = Group.alone()
        self.is_in = False
        self._state = state
        self._framework = framework
        self._latest = latest
        self._is_asked = is_asked
        self._is_new = True
        #: Led nowhere: a peer was lost in it.
        self._spent: World | None = None

    @property
    def generation(self) -> int:
        """The one it trains in; 0 before the first."""
        return self.world.generation if self.is_in else 0

    @property
    def newest(self) -> int:
        """The newest generation that was heard of."""
        world = self._latest()
        return self.generation if world is None else max(world.generation, self.generation)

    @property
    def is_excluded(self) -> bool:
        """Whether a newer generation goes on without this worker."""
        world = self._latest()
        return world is not None and world.generation > self._since and world.rank(self.place.worker) is None

    def leave(self) -> None:
        """Leaves the group of this generation."""
        self._framework.close()
        self.group.close()
        self.group = Group.alone()
        if self.is_in:
            self._spent = self.world

    def join(self, progress: Progress) -> Progress:
        """Enters the newest generation and returns how far its members are; raises Excluded or Asked."""
        while True:
            world = self._wait() if self._framework.is_elastic else self.place.world
            try:
                return self._enter(world, progress)
            except Abandoned:
                self._fall_back(None)
            except Exception as error:
                self._fall_back(world)
                if not self._framework.is_loss(error):
                    raise

    @property
    def _since(self) -> int:
        return self.world.generation

    def _fall_back(self, spent: World | None) -> None:
        self._framework.close()
        self.group.close()
        self.group = Group.alone()
        self._spent = spent or self._spent

    def _wait(self) -> World:
        """The newest world, as soon as this worker is in it."""
        says_so_at = time.monotonic() + _SILENCE_S
        while True:
            if time.monotonic() > says_so_at:
                sys.stderr.write("levada: this worker waits until the supervisor makes it a member\n")
                says_so_at = math.inf
            if self.is_excluded:
                raise Excluded
            if self._is_asked():
                raise Asked
            world = self._latest()
            is_open = world is not None and world.generation >= self._since and world != self._spent
            if is_open and world is not None and world.rank(self.place.worker) is not None:
                return world
            time.sleep(_POLL_S)

    def _enter(self, world: World, progress: Progress) -> Progress:
        rank = world.rank(self.place.worker) if self._framework.is_elastic else None
        rank = self.place.rank if rank is None else rank
        self.group = self._framework.meet(
            world, rank, world.digest(self.place.job), lambda: self._is_asked() or self._latest() != world
        )
        agreed, generation = self._align(self.group.rank, world.generation, progress)
        self._framework.settle(self.group)
        self.world, self.rank = world._replace(generation=generation), rank
        self.is_in, self._is_new = True, False
        return agreed

    def _align(self, rank: int, generation: int, progress: Progress) -> tuple[Progress, int]:
        """Everybody takes over the state of the member furthest ahead, where anybody is behind or new."""
        folder = self.place.checkpoints
        found = checkpoint.peek(folder) if folder and self._is_new and self._state else None
        mine = _Standing(found or progress, self._is_new, generation)
        told = [_read(part) for part in self.group.gather(json.dumps(mine).encode())]
        source = max(range(len(told)), key=lambda other: (told[other].progress.step, not told[other].is_new, -other))
        furthest = told[source].progress
        behind = [standing.is_new or standing.progress.step < furthest.step for standing in told]
        if any(behind) and self._state:
            data = self._given(folder if found else None) if rank == source else None
            if self.group.size > 1:
                data = self._framework.share(self.group, data, source)
            if behind[rank] and data is not None and (rank != source or found):
                self._state.load(data)
        return furthest, max(standing.generation for standing in told)

    def _given(self, folder: Path | None) -> bytes:
        """The state that the others get: of the checkpoint in *folder*, or as it is now."""
        return self._state.dump() if folder is None else checkpoint.load(folder)


def _read(data: bytes) -> _Standing:
    progress, is_new, generation = json.loads(data)
    return _Standing(Progress(*progress), bool(is_new), int(generation))
