"""The one seam between the live loop and whatever really runs jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import msgspec

from levada.core.cluster import Cluster
from levada.core.events import Event
from levada.core.plan import Op


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do."""

    #: Frameworks whose jobs it resizes in place; jobs of any other are stopped and started again with the new size.
    in_place: frozenset[str] = frozenset()
    #: Frameworks whose jobs it resizes in place once all their workers say that they use the runtime.
    in_place_with_runtime: frozenset[str] = frozenset()
    suspend: bool = True
    fractions: bool = False
    #: Workers run on exactly the devices they were granted.
    pins_devices: bool = True


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What to run for a job; the operation says how many of it and where."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    workdir: str = "."
    workload: str = ""
    user: str = ""
    #: Who brings the workers together: "plain" (one process per worker; the script may use the runtime), "torchrun"
    #: (one agent per node, the command is the training script), "tensorflow" (TF_CONFIG, parameter servers),
    #: "horovod" (one horovodrun with discover_hosts.sh), "mpi" (the command once, with discover_hosts.sh).
    framework: str = "plain"
    #: Of the parameter servers, where they run something else than the workers.
    server_command: tuple[str, ...] = ()
    grace_s: float = 60.0
    #: A start or resize that takes longer is rolled back.
    start_limit_s: float = 300.0
    min_workers: int = 1
    max_workers: int = 1
    gpus_milli: int = 1000
    gpu_memory: int = 0
    #: Per worker: cores in 1/1000ths and MiB; 0 = not limited.
    cpu: int = 0
    memory: int = 0
    steps: float | None = None
    array_index: int | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something for the history of a job that the engine need not know: a line for people, and data."""

    job: str
    type: str
    text: str
    #: `exit_code`, where a worker ended the job.
    data: Mapping[str, Any] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. `at` of the events is set by who takes it."""

    events: tuple[Event, ...] = ()
    notes: tuple[Note, ...] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of a job."""

    number: int
    generation: int
    running: int


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as its supervisor sees it."""

    #: For life, and no other's of this job.
    name: str
    index: int
    node: str
    devices: tuple[str, ...]
    #: Starting, Running, Stopping, Exited or Lost.
    phase: str
    pid: int | None = None
    exit_code: int | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of output."""

    worker: str
    #: Unix time at which it was kept; 0 where unknown.
    at: float
    text: str


class Backend(Protocol):
    """Whatever runs jobs. All of it may be asked again after a crash of either side."""

    capabilities: Capabilities

    async def open(self, epoch: int) -> Report:
        """Begins to watch, and tells what ended while nobody did; commands of a lower *epoch* are refused from now on.

        What it tells is not in `running` any more: who takes it for lost would start a job that is done.
        """
        ...

    async def close(self) -> None:
        """Stops watching; what runs goes on."""
        ...

    async def stop_all(self) -> None:
        """Returns when all workers have saved and left; their jobs start again when somebody says so."""
        ...

    async def cluster(self) -> Cluster:
        """The machines as they are now."""
        ...

    async def running(self) -> Mapping[str, Seen]:
        """All that runs, by job id."""
        ...

    async def apply(self, op: Op, launch: Launch | None) -> None:
        """Takes an operation down; idempotent on (job, generation). A stop needs no launch.

        A resize that stops all workers and starts them again is told as `JobsRestarted` before it is complete.
        """
        ...

    def reports(self) -> AsyncIterator[Report]:
        """What happens, at least once."""
        ...

    def workers(self, job: str) -> list[WorkerSeen]:
        """The workers of a job, the newest of each index."""
        ...

    def logs(
        self,
        job: str,
        *,
        worker: str | None = None,
        tail: int | None = None,
        follow: bool = False,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        """What its workers say."""
        ...

    async def forget(self, job: str) -> None:
        """A job is over and its time in lists, too: its folder may go."""
        ...
