"""Backend protocol: the interface between the live loop and what runs jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from levada.core.cluster import Cluster, Foreign

if TYPE_CHECKING:
    # Events bring numpy along, which an agent does without.
    from levada.core.events import Event
    from levada.core.plan import Op


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of a backend."""

    #: Frameworks whose jobs it resizes in place; jobs of others are restarted with the new size.
    in_place: frozenset[str] = frozenset()
    #: Frameworks whose jobs it resizes in place once all their workers report that they use the runtime.
    in_place_with_runtime: frozenset[str] = frozenset()
    suspend: bool = True
    fractions: bool = False
    #: Workers run on exactly the devices they were granted.
    pins_devices: bool = True
    #: A shrink is cheapest if it drops the workers with the highest indices.
    drops_highest_first: bool = False
    #: Jobs may be documents that only a cluster can run; `Launch.manifest` has them.
    runs_manifests: bool = False


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a job; the operation says how many workers and where."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    workdir: str = "."
    workload: str = ""
    user: str = ""
    #: What connects the workers: "plain" (one process per worker; the script may use the runtime), "torchrun"
    #: (one agent per node, the command is the training script), "tensorflow" (TF_CONFIG, parameter servers),
    #: "horovod" (one horovodrun with discover_hosts.sh), "mpi" (the command once, with discover_hosts.sh), "elastic"
    #: (an operator of the cluster adds and removes workers of a running job).
    framework: str = "plain"
    #: "plain" was requested explicitly: even a job that is always one worker gets rank variables.
    ranks: bool = False
    #: Command of the parameter servers if it differs from that of the workers.
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
    #: Steps (or epochs) of the whole job.
    steps: float | None = None
    counts_epochs: bool = False
    #: Rest of its time limit when the operation is issued.
    seconds: float | None = None
    array_index: int | None = None
    #: The user's document, for a backend that `runs_manifests`. With `metadata.uid`: the object that arrived.
    manifest: Mapping[str, Any] = {}

    @property
    def granted_steps(self) -> float | None:
        """The steps after which a leased job is complete; None if its user declared none."""
        return None if self.counts_epochs else self.steps


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a job's history that the engine does not need: a text for users, and data."""

    job: str
    type: str
    text: str
    #: `exit_code` if a worker ended the job.
    data: Mapping[str, Any] = {}


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a user created or edited in the cluster itself. It describes a state: repeating it is harmless."""

    #: Names the object; another object of the same name has another key.
    key: str
    #: The object without its status; `metadata` has name, namespace, uid, creationTimestamp, labels and annotations.
    document: Mapping[str, Any]
    user: str
    #: Unix time of its creation.
    created: float
    #: `Job.node_class` of the job; an event of the same or an earlier report opens nodes to it.
    node_class: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend observed. The receiver sets `at` of the events, and handles the events before the arrivals."""

    events: tuple[Event, ...] = ()
    notes: tuple[Note, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    #: Keys of arrivals that no longer exist, or that their users took back.
    departed: tuple[str, ...] = ()


class Face(msgspec.Struct, frozen=True, kw_only=True):
    """What users of the cluster see of a job."""

    #: A phase, e.g. Pending or Running.
    state: str
    reason: str = ""
    workers: int = 0
    generation: int = 0


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that a token belongs to."""

    job: str
    worker: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The running workers of a job."""

    number: int
    generation: int
    running: int


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """State that a backend observes at one moment when it opens; `reports` has what follows."""

    #: What ended while no server ran; those jobs are not in `running`.
    report: Report = Report()
    #: Running jobs by job id.
    running: Mapping[str, Seen] = {}
    cluster: Cluster = Cluster()


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a job, for users."""

    #: Unique within the job, and constant.
    name: str
    index: int
    node: str
    devices: tuple[str, ...]
    #: Starting, Running, Stopping, Exited or Lost.
    phase: str
    pid: int | None = None
    exit_code: int | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a worker's output."""

    worker: str
    #: Unix time at which it was written; 0 if unknown.
    at: float
    text: str


class Backend(Protocol):
    """Runs jobs. Every call may be repeated after a crash of either side."""

    capabilities: Capabilities

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        """Start to observe and return the current state; commands of a lower *epoch* are refused from now on.

        *foreign* is the foreign use that was reported before; changes of it are reported as they are observed.

        The observation is of one moment: a job that ends is either in its report, or in `running` with its end in
        `reports`. A job in neither would count as lost and be restarted.
        """
        ...

    async def close(self) -> None:
        """Stop observing; running jobs continue."""
        ...

    async def stop_all(self) -> None:
        """Stop all workers and wait until they have saved and left.

        An interrupted operation is carried out when it is applied again with the same generation.
        """
        ...

    async def cluster(self) -> Cluster:
        """The current nodes."""
        ...

    async def running(self) -> Mapping[str, Seen]:
        """Running jobs by job id."""
        ...

    async def apply(self, op: Op, launch: Launch | None) -> None:
        """Accept an operation; idempotent on (job, generation). A stop needs no launch.

        A finished job is never started again: the backend reports `JobsFinished` of this generation.
        A resize that restarts all workers is reported as `JobsRestarted` before it is complete.
        """
        ...

    def reports(self) -> AsyncIterator[Report]:
        """Yield what happens after `open`, each report at least once.

        A backend that loses contact with its cluster reports `BackendAway`, and `BackendBack` afterwards.
        """
        ...

    def workers(self, job: str) -> list[WorkerSeen]:
        """The workers of a job, the newest one per index."""
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
        """Stream the output of its workers."""
        ...

    async def forget(self, job: str) -> None:
        """Delete the folder of a job that has ended and left the job lists."""
        ...


class ClusterBackend(Backend, Protocol):
    """A backend of a cluster whose users also create jobs there. The defaults suit backends without such jobs.

    None of these calls waits for the cluster, except `who`. All may be repeated. A bare `return` makes a default.
    """

    async def accept(self, key: str, job: str) -> None:
        """Learn that the arrival *key* is *job*. The server repeats this for every arrival after `open`.

        Until then the backend knows no object for `show` and `ended` of that job.
        """
        return

    async def refuse(self, key: str, faults: Sequence[str]) -> None:
        """Tell the user of an arrival why it cannot become a job: one line per fault.

        The arrival is reported again when its object changes.
        """
        return

    async def ended(self, job: str, phase: str) -> None:
        """Learn that a job ended, after this was stored; *phase* is Succeeded, Failed or Cancelled.

        A cancelled job is deleted from the cluster; a failed one stays and never runs again.
        """
        return

    async def show(self, job: str, face: Face) -> None:
        """Show the state of a job to users of the cluster; only the latest one counts."""
        return

    async def bind(self, pods: Sequence[tuple[str, str]]) -> None:
        """Bind serving pods that wait for Levada: (id of the `Foreign`, name of the node)."""
        return

    def world(self, job: str) -> Mapping[str, Any] | None:
        """The current group of workers, as `levada.runtime` parses it; None if workers learn it otherwise."""
        return None

    def node_class(self, manifest: Mapping[str, Any]) -> str:
        """The class of nodes that this job may use; the next report opens nodes to it. Empty = all nodes."""
        return ""

    async def who(self, token: str) -> Identity | None:
        """The worker that this token was issued to by the cluster; None if it is not valid."""
        return None


class Socket(Protocol):
    """A connection opened by an agent; carries texts in both directions, in order."""

    async def receive(self) -> str | None:
        """The next text; None once the peer has closed the connection."""
        ...

    async def send(self, text: str) -> None:
        """Send a text; raises ConnectionError once the peer has closed the connection."""
        ...

    async def close(self, why: str = "") -> None:
        """Close the connection."""
        ...


@runtime_checkable
class AgentHost(Protocol):
    """A backend that agents of other machines can join; optional."""

    async def serve_agent(self, socket: Socket) -> None:
        """Exchange messages with an agent until either side closes the connection."""
        ...
