"""What is kept of a job on disk, so that another backend can go on in the middle of an operation."""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum
from pathlib import Path

import msgspec

from levada.backends.local import files, folders
from levada.backends.local.roster import Member, started_in
from levada.backends.protocol import Launch
from levada.core.grant import WorkerPlace
from levada.core.plan import OpKind

_log = logging.getLogger(__name__)
GANG = "gang.json"
#: Worker names remembered per place and node: at least as many as a supervisor keeps the folders of.
_PLACED = 4


class Stage(StrEnum):
    """Where a job stands between two operations or in the middle of one."""

    IDLE = "idle"  #: nothing runs
    STARTING = "starting"  #: all members are on their way up
    RUNNING = "running"  #: nothing is to be done
    JOINING = "joining"  #: newcomers are on their way up while the members train on
    SWITCHING = "switching"  #: a world was published that not all have entered, or left, yet
    ADRIFT = "adrift"  #: workers were found of which no record tells: they stay until somebody says what shall be
    STOPPING = "stopping"  #: everybody leaves; what `then` says follows


class Then(StrEnum):
    """What follows when everybody has left."""

    RELEASED = "released"  #: that was all
    START = "start"  #: the places of the operation are filled anew
    FAILED = "failed"  #: the job broke
    LEFT = "left"  #: it saved and left by itself, soon after it had started
    ROLLED_BACK = "rolled back"  #: a start was not completed
    FINISHED = "finished"


class Record(msgspec.Struct, kw_only=True):
    """One job: its last operation and how far that is."""

    job: str
    number: int
    epoch: int = 0
    #: Of the engine: the last operation that was taken down.
    generation: int = 0
    kind: int = OpKind.NONE
    launch: Launch | None = None
    places: tuple[WorkerPlace, ...] = ()
    batch: int = 0
    #: The generation that workers know. It grows with every operation, and when survivors of a loss go on.
    world: int = 0
    #: The highest number that any of its worlds has had, or will have: of newcomers while they join.
    last_world: int = 0
    port: int = 0
    #: Of the world, and of nobody but its members.
    key: str = ""
    stage: Stage = Stage.IDLE
    #: When the stage began, by the backend's clock: unix time, unless somebody has set that.
    since: float = 0.0
    #: A resize came while survivors of a loss were finding together: it begins when they have.
    waits: bool = False
    then: Then = Then.RELEASED
    why: str = ""
    code: int | None = None
    members: tuple[Member, ...] = ()
    newcomers: tuple[Member, ...] = ()
    leavers: tuple[Member, ...] = ()
    #: The node of each worker started so far, by name (the newest per place): an agent may report on these alone.
    placed: dict[str, str] = {}
    #: What the engine was told of `generation`: nothing, Running, Released, OperationFailed, JobsFailed,
    #: JobsLeft, JobsFinished.
    told: str = ""
    #: What it is known to do: use the runtime, resize in process.
    runtime: bool = False
    in_process: bool = False
    #: The steps in its last checkpoint when it was asked to stop and left others unsaved, though it had said that it
    #: would save. Below 0 where it never did.
    broken_at: float = -1.0

    def note_placed(self) -> None:
        """Adds the current workers to `placed`, and drops the oldest of each place."""
        crew = (*self.members, *self.newcomers, *self.leavers)
        fresh = {member.name: member.node for member in crew if self.placed.get(member.name) != member.node}
        if not fresh:
            return
        kept: dict[str, str] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for name, node in sorted({**self.placed, **fresh}.items(), key=lambda item: -started_in(item[0])):
            place = name.partition("-")[2], node
            counts[place] += 1
            if counts[place] <= _PLACED:
                kept[name] = node
        self.placed = kept

    def save(self, folder: Path, *, durable: bool = False) -> None:
        """Keeps it; *durable* so that it outlives a loss of power."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_json(folder / GANG, self, durable=durable)


def load(folder: Path) -> Record | None:
    """What was kept of the job in *folder*; None where nothing whole is there."""
    try:
        record = msgspec.json.decode(folders.read_file(folder / GANG), type=Record)
    except OSError:
        return None
    except msgspec.DecodeError as damage:
        _log.warning("%s is damaged and not used: %s", folder / GANG, damage)
        return None
    record.note_placed()  # older versions kept no such map
    return record
