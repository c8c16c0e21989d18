"""Commands to the supervisor of a machine and the status updates it sends.

They pass within a process or over a connection. Both state what is wanted or observed, not a change, so repeating one
is harmless.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from levada.backends.local.processes import WorkerSpec
from levada.backends.local.worker_files import WorkerReading, WorldFile


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    job: str
    #: Epoch of the server; a supervisor refuses commands of an older epoch than it knows.
    epoch: int


class StartWorker(_Command, frozen=True, kw_only=True):
    """Start a worker, unless it was started before."""

    number: int
    generation: int
    name: str
    spec: WorkerSpec


class Publish(_Command, frozen=True, kw_only=True):
    """Publish a generation of workers to those on the machine."""

    number: int
    generation: int
    world: WorldFile
    #: For Horovod: `host:slots`.
    hosts: tuple[str, ...] = ()


class Leave(_Command, frozen=True, kw_only=True):
    """Send SIGTERM to workers, and SIGKILL after their grace period."""

    names: tuple[str, ...]


class Kill(_Command, frozen=True, kw_only=True):
    """Kill workers."""

    names: tuple[str, ...]


class PollFast(_Command, frozen=True, kw_only=True):
    """Poll a job fast while an operation waits for its reports; `on=False` ends it."""

    on: bool


class Forget(_Command, frozen=True, kw_only=True):
    """Delete the folder and the checkpoints of a job."""

    #: Job number, since another job may have the same name by now; 0 if unknown.
    number: int = 0


Command: TypeAlias = StartWorker | Publish | Leave | Kill | PollFast | Forget

#: States of a worker: being started; running; ended with an exit code; lost without one; on a machine that is
#: unreachable, so its real state is unknown.
STARTING, RUNS, ENDED, LOST, UNREACHABLE = "starting", "runs", "ended", "lost", "unreachable"


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of one worker as observed by its supervisor."""

    job: str
    name: str
    state: str
    pid: int | None = None
    code: int | None = None
    #: The worker had been asked to leave.
    asked: bool = False
    #: When its process was first seen running; set by the backend, by its clock.
    since: float = 0.0
    #: Why it was lost, if the supervisor knows.
    why: str = ""
    reading: WorkerReading | None = None

    @property
    def alive(self) -> bool:
        """Whether the worker runs or is being started."""
        return self.state in (STARTING, RUNS)


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a job without the runtime, read from its checkpoint directory."""

    job: str
    #: Newest modification time below its checkpoint directory, unix time in ns.
    saved_at: int = 0
    #: Completed epochs, as reported by scripts written for Voda.
    epochs: float | None = None


class LastCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The last command that a supervisor accepted for a job."""

    job: str
    number: int
    generation: int
    epoch: int


_ENCODED_NAMES = {"workers": "sightings", "checkpoints": "kept", "last_commands": "stood"}


class StatusUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_ENCODED_NAMES):
    """Status of workers, checkpoints and jobs: changes, or everything after a connect."""

    workers: tuple[WorkerStatus, ...] = ()
    checkpoints: tuple[CheckpointStatus, ...] = ()
    last_commands: tuple[LastCommand, ...] = ()
