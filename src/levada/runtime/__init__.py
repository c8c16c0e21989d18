"""What a training script imports: progress, checkpoints, and a world that grows and shrinks while it trains.

    import levada.runtime

    job = levada.runtime.init()
    job.state(model=model, optimizer=optimizer)
    for step in job.steps(10_000):
        with job.guard():
            ...                      # job.group, job.rank, job.world_size
    job.complete()

It works without a server, too. `levada.runtime.torch` and `levada.runtime.jax` do the same for these frameworks,
`levada.runtime.gavel` and `levada.runtime.voda` run scripts written for those schedulers. Nothing beyond the standard
library is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import SupportsIndex, TypeVar, overload

from levada.runtime import place
from levada.runtime.channel import connect
from levada.runtime.framework import Framework, OwnGroups
from levada.runtime.group import Group, PeerLost
from levada.runtime.job import Job

__all__ = ["Group", "Job", "PeerLost", "init", "steps"]

T = TypeVar("T")
_current: Job | None = None


def init(*, elastic: bool = True, save_every_s: float = 600.0) -> Job:
    """This worker's job; the same one when called again.

    *elastic*: members may come and go while it trains. Without it, the script makes its own groups, and a job of
    another size is a new start from the checkpoint. Every *save_every_s* seconds there is a checkpoint.
    """
    global _current
    if _current is None:
        here = place.read()
        _current = Job(here, connect(here), Framework() if elastic else OwnGroups(), save_every_s)
    return _current


@overload
def steps(work: SupportsIndex) -> Iterator[int]: ...
@overload
def steps(work: Iterable[T]) -> Iterator[T]: ...
def steps(work: SupportsIndex | Iterable[T]) -> Iterator[int] | Iterator[T]:
    """Counts the steps of this worker's job: `init().steps(work)`."""
    return init().steps(work)
