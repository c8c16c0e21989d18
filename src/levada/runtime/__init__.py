"""Runtime for training scripts: progress, checkpoints, resizes in place.

    import levada.runtime

    job = levada.runtime.init()
    job.state(model=model, optimizer=optimizer)
    for step in job.steps(10_000):
        with job.guard():
            ...                      # job.group, job.rank, job.world_size
    job.complete()

It also works without a server. `levada.runtime.torch` and `levada.runtime.jax` do the same for these frameworks;
`levada.runtime.gavel` and `levada.runtime.voda` run scripts written for those schedulers. This package imports only the
standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import SupportsIndex, TypeVar, overload

from levada.runtime import worker_env
from levada.runtime.channel import connect
from levada.runtime.framework import Framework, OwnGroups
from levada.runtime.group import Group, PeerLost
from levada.runtime.job import Job

__all__ = ["Group", "Job", "PeerLost", "init", "steps"]

T = TypeVar("T")
_current: Job | None = None


def init(*, elastic: bool = True, save_every_s: float = 600.0) -> Job:
    """Return this worker's job; repeated calls return the same one.

    *elastic*: members may join and leave while it trains. Otherwise the script creates its own process groups, and a
    resize restarts it from the checkpoint. A checkpoint is saved every *save_every_s* seconds.
    """
    global _current
    if _current is None:
        here = worker_env.read()
        _current = Job(here, connect(here), Framework() if elastic else OwnGroups(), save_every_s)
    return _current


@overload
def steps(work: SupportsIndex) -> Iterator[int]: ...
@overload
def steps(work: Iterable[T]) -> Iterator[T]: ...
def steps(work: SupportsIndex | Iterable[T]) -> Iterator[int] | Iterator[T]:
    """Count the steps of this worker's job: `init().steps(work)`."""
    return init().steps(work)
