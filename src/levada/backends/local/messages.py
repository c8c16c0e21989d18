"""What passes between the backend and the supervisor of a machine, in this process or over a connection.

Commands say what shall be, and news how things are: either may be repeated without harm.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from levada.backends.local.files import Reading, World
from levada.backends.local.processes import Spec


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    job: str
    #: Of who commands; a supervisor refuses those of an older one than it knows.
    epoch: int


class StartWorker(_Command, frozen=True, kw_only=True):
    """Start this worker, unless it was started before."""

    number: int
    generation: int
    name: str
    spec: Spec


class Publish(_Command, frozen=True, kw_only=True):
    """This is the world of the job from now on."""

    number: int
    generation: int
    world: World
    #: For Horovod: `host:slots`.
    hosts: tuple[str, ...] = ()


class Leave(_Command, frozen=True, kw_only=True):
    """SIGTERM to these workers, SIGKILL after their grace period."""

    names: tuple[str, ...]


class Kill(_Command, frozen=True, kw_only=True):
    """End these workers on the spot."""

    names: tuple[str, ...]


class Hurry(_Command, frozen=True, kw_only=True):
    """An operation waits for the job's reports, or (on=False) not any more."""

    on: bool


class Forget(_Command, frozen=True, kw_only=True):
    """The job's folder may go, and what it saved."""

    #: Another job may have got its name meanwhile; 0 where nobody knows.
    number: int = 0


Command: TypeAlias = StartWorker | Publish | Leave | Kill | Hurry | Forget

#: States of a worker: being started; its process runs; it has ended with a code; it is gone without a word; its machine
#: is out of reach, and with it whatever it does.
STARTING, RUNS, ENDED, LOST, UNREACHABLE = "starting", "runs", "ended", "lost", "unreachable"


class Sighting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One worker as its supervisor sees it now."""

    job: str
    name: str
    state: str
    pid: int | None = None
    code: int | None = None
    #: It had been asked to leave.
    asked: bool = False
    #: Since when its process is seen to run, by the clock of the backend, which alone sets it.
    since: float = 0.0
    #: Why it is gone, where its supervisor knows.
    why: str = ""
    reading: Reading | None = None

    @property
    def alive(self) -> bool:
        """It runs, or may do so in a moment."""
        return self.state in (STARTING, RUNS)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a job without the runtime has left in its folder."""

    job: str
    #: When something was last written below its checkpoints, in ns.
    saved_at: int = 0
    #: As the scripts of Voda report them.
    epochs: float | None = None


class Stood(msgspec.Struct, frozen=True, kw_only=True):
    """The last command that a supervisor has taken for a job."""

    job: str
    number: int
    generation: int
    epoch: int


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How things are: only what has changed, or all of it after a connection was made."""

    sightings: tuple[Sighting, ...] = ()
    kept: tuple[Kept, ...] = ()
    stood: tuple[Stood, ...] = ()
