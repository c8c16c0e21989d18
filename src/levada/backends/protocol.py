"""The one seam between the live loop and whatever really runs jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from levada.core.cluster import Cluster, Foreign
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
    #: "plain" was asked for: a lone worker that never gets company has rank variables, too.
    ranks: bool = False
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
    #: Of the whole job, or epochs.
    steps: float | None = None
    counts_epochs: bool = False
    #: What is left of its time limit when the operation goes out.
    seconds: float | None = None
    array_index: int | None = None

    @property
    def granted_steps(self) -> float | None:
        """The steps after which a job under a lease is done; None where its user named none."""
        return None if self.counts_epochs else self.steps


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


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend finds when it opens, all of one moment: what happens later is in `reports`."""

    #: What ended while nobody watched; it is not in `running`.
    report: Report = Report()
    #: What runs, by job id.
    running: Mapping[str, Seen] = {}
    cluster: Cluster = Cluster()


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

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        """Begins to watch, and tells how things are; commands of a lower *epoch* are refused from now on.

        *foreign* is what it told of others' use before. What is gone of it, or different, is told as it is seen.

        The observation is of one moment: a job that ends is in its report, or it is in `running` and its end comes
        in `reports`. A job that were in neither would be taken for lost and started again.
        """
        ...

    async def close(self) -> None:
        """Stops watching; what runs goes on."""
        ...

    async def stop_all(self) -> None:
        """Returns when all workers have saved and left.

        An operation that this interrupted is carried out when it is applied again, under the same generation.
        """
        ...

    async def cluster(self) -> Cluster:
        """The machines as they are now."""
        ...

    async def running(self) -> Mapping[str, Seen]:
        """All that runs, by job id."""
        ...

    async def apply(self, op: Op, launch: Launch | None) -> None:
        """Takes an operation down; idempotent on (job, generation). A stop needs no launch.

        A job whose workers have finished is never begun again: the answer is `JobsFinished` of this generation.
        A resize that stops all workers and starts them again is told as `JobsRestarted` before it is complete.
        """
        ...

    def reports(self) -> AsyncIterator[Report]:
        """What happens after `open`, at least once."""
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


class Socket(Protocol):
    """A connection that an agent opened: texts both ways, in their order."""

    async def receive(self) -> str | None:
        """The next text; None once the other side has gone."""
        ...

    async def send(self, text: str) -> None:
        """Sends a text; raises ConnectionError once the other side has gone."""
        ...

    async def close(self, why: str = "") -> None:
        """Ends the connection."""
        ...


@runtime_checkable
class AgentHost(Protocol):
    """A backend that agents of other machines join; optional."""

    async def serve_agent(self, socket: Socket) -> None:
        """Exchange messages with an agent until either side closes the connection."""
        ...
