"""The record of a job controller on disk, from which a successor continues.

It is saved at every transition, so an operation that was under way continues after a crash of the server.
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum
from pathlib import Path

import msgspec

from levada.backends.local import safe_fs, worker_files
from levada.backends.local.members import Member, started_in
from levada.backends.protocol import Launch
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind

_log = logging.getLogger(__name__)
GANG = "gang.json"
#: Worker names kept per place and node: at least as many as a supervisor keeps folders of.
_PLACED = 4


class Stage(StrEnum):
    """Where a job is between two operations or within one."""

    IDLE = "idle"  #: no workers
    STARTING = "starting"  #: all members are being started
    RUNNING = "running"  #: the operation is complete
    JOINING = "joining"  #: newcomers are being started while the members train on
    SWITCHING = "switching"  #: a new generation is published; not all workers have entered or left yet
    ORPHANED = "adrift"  #: workers were found without a record: they run on until an operation names the job
    STOPPING = "stopping"  #: all workers are leaving; `then` says what follows


class AfterStop(StrEnum):
    """What follows when all workers have left."""

    RELEASED = "released"  #: nothing
    START = "start"  #: workers are started at the places of the operation
    FAILED = "failed"  #: the job failed
    LEFT = "left"  #: it saved and left voluntarily soon after its start
    ROLLED_BACK = "rolled back"  #: a start did not complete
    FINISHED = "finished"  #: the job is complete


class ControllerState(msgspec.Struct, kw_only=True):
    """The last operation of a job and its progress."""

    job: str
    number: int
    epoch: int = 0
    #: The engine's generation: that of the last accepted operation.
    generation: int = 0
    kind: int = OpKind.NONE
    launch: Launch | None = None
    places: tuple[WorkerPlace, ...] = ()
    batch: int = 0
    #: The workers' generation. It grows with every operation, and when survivors of a loss continue.
    world: int = 0
    #: The highest value that `world` ever had or, while newcomers join, will have.
    last_world: int = 0
    port: int = 0
    #: Secret of the workers' generation, known to its members only.
    key: str = ""
    stage: Stage = Stage.IDLE
    #: When the stage began: unix time by the backend's clock, which ignores changes of the system clock.
    since: float = 0.0
    #: A resize arrived while survivors of a loss formed a generation: it begins when they have.
    waits: bool = False
    then: AfterStop = AfterStop.RELEASED
    why: str = ""
    code: int | None = None
    members: tuple[Member, ...] = ()
    newcomers: tuple[Member, ...] = ()
    leavers: tuple[Member, ...] = ()
    #: The node of each worker started so far, by name (the newest per place): an agent may report only these.
    placed: dict[str, str] = {}
    #: The outcome reported to the engine for `generation`: empty, Running, Released, OperationFailed, JobsFailed,
    #: JobsLeft or JobsFinished.
    told: str = ""
    #: Observed abilities: the script uses the runtime; it resizes in place.
    runtime: bool = False
    in_process: bool = False
    #: Steps in the last checkpoint when the job was asked to stop and did not save, although it had promised to;
    #: -1 if that never happened.
    broken_at: float = -1.0

    @property
    def settings(self) -> Launch:
        """How to run the job; defaults before its first start."""
        return self.launch or Launch(command=())

    def note_placed(self) -> None:
        """Add the current workers to `placed` and drop the oldest of each place."""
        workers = (*self.members, *self.newcomers, *self.leavers)
        fresh = {member.name: member.node for member in workers if self.placed.get(member.name) != member.node}
        if not fresh:
            return
        newest: dict[str, str] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for name, node in sorted({**self.placed, **fresh}.items(), key=lambda item: -started_in(item[0])):
            place = name.partition("-")[2], node
            counts[place] += 1
            if counts[place] <= _PLACED:
                newest[name] = node
        self.placed = newest

    def save(self, folder: Path, *, durable: bool = False) -> None:
        """Write the record to *folder*; *durable* waits until it survives a power failure."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        worker_files.write_json(folder / GANG, self, durable=durable)


def load(folder: Path) -> ControllerState | None:
    """Read the record of the job in *folder*; None if it is missing or damaged."""
    try:
        record = msgspec.json.decode(safe_fs.read_file(folder / GANG), type=ControllerState)
    except OSError:
        return None
    except msgspec.DecodeError as error:
        _log.warning("ignoring damaged record %s: %s", folder / GANG, error)
        return None
    record.note_placed()  # older versions did not write this map
    return record
