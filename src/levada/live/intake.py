"""From a document that a user sent to the jobs it stands for: ids, units, and what to run.

Time and randomness are given in, so that the same document always becomes the same jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from levada.backends.protocol import Launch
from levada.core.job import Job, ParameterServers, Preemptible, Tags
from levada.core.queue import Queue
from levada.errors import MOST_FAULTS, BadInput, Refused
from levada.jobfile import model, torchrun, units
from levada.jobfile.document import JOB_NAME, Document
from levada.jobfile.load import check
from levada.jobfile.pods import expanded

#: The characters of the end of an id, in their order.
_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
SUFFIX_LENGTH = 4
ENDINGS = len(_CHARACTERS) ** SUFFIX_LENGTH
PREEMPTIBLE = {"auto": Preemptible.AUTO, True: Preemptible.AT_ONCE, False: Preemptible.NEVER}


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """One job, ready for the engine and for a backend."""

    id: str
    job: Job
    launch: Launch
    #: As its user wrote it.
    document: Mapping[str, Any]
    #: Job, MPIJob, PyTorchJob or TFJob.
    kind: str
    #: What is learned about its speed is kept under this name.
    workload: str
    #: How long it is kept in lists after its end; None means as long as the server likes.
    ttl_s: float | None = None
    labels: Mapping[str, str] = {}
    #: Addresses for a POST at its end and when it is stuck.
    notify: tuple[str, ...] = ()


def prepare(
    document: Mapping[str, Any],
    *,
    user: str,
    now: float,
    suffix: str,
    kubernetes: bool = False,
    in_place: frozenset[str] = frozenset(),
    describe: int = MOST_FAULTS,
) -> list[Prepared]:
    """The jobs of one job document: one, or one per index of its array.

    *suffix* are four characters a-z and 0-9 chosen at random; the jobs of an array have those that follow them.
    *in_place*: see `Capabilities`.
    Raises BadInput for a bad document, and Refused for one that only Kubernetes can run unless *kubernetes*.
    """
    checked = check(dict(document), describe)
    if isinstance(checked.content, model.Queue):
        raise BadInput.one("must be a job; a queue is applied", "kind")
    if checked.needs_cluster and not kubernetes:
        raise Refused(_for_clusters(checked))
    if not isinstance(checked.content, model.Job):
        raise BadInput.one("must be a job; what serves is found on the cluster itself", "kind")
    spec = checked.content.spec
    if spec.run is None and not kubernetes:
        raise Refused(f"{checked.name}: spec.run is not given, and without it a job runs on Kubernetes only")
    indices = model.array_indices(spec.array) if spec.array is not None else [None]
    return [
        _one(checked, checked.content, _id(checked, now, _moved(suffix, place)), user, now, index, in_place)
        for place, index in enumerate(indices)
    ]


def queue_of(document: Mapping[str, Any]) -> Queue:
    """The queue of one queue document; raises BadInput."""
    content = check(dict(document)).content
    if not isinstance(content, model.Queue):
        raise BadInput.one("must be Queue", "kind")
    spec = content.spec
    return Queue(
        name=content.metadata.name,
        parent=spec.parent,
        weight=spec.weight,
        guaranteed=spec.guaranteed,
        limit=spec.limit,
        per_user_limit={name: most for name, most in spec.per_user_limit.items() if name != model.ALL_TYPES},
        per_user_total=spec.per_user_limit.get(model.ALL_TYPES),
        borrow=spec.borrow,
    )


def _for_clusters(checked: Document) -> str:
    if checked.is_job:
        return f"{checked.kind} {checked.name} can run on Kubernetes only: {checked.needs_cluster}"
    return checked.needs_cluster


def _id(checked: Document, now: float, suffix: str) -> str:
    if checked.keeps_name:
        return checked.name
    return f"{checked.name}-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{suffix}"


def ending(number: int) -> str:
    """The end of an id, by its number; there are `ENDINGS`."""
    made = ""
    for _ in range(SUFFIX_LENGTH):
        number, digit = divmod(number, len(_CHARACTERS))
        made = _CHARACTERS[digit] + made
    return made


def _moved(suffix: str, by: int) -> str:
    """The *by*-th of the endings that follow *suffix*, all of them different."""
    if len(suffix) != SUFFIX_LENGTH or any(each not in _CHARACTERS for each in suffix):
        raise ValueError(f"the end of an id must be {SUFFIX_LENGTH} characters a-z and 0-9, not {suffix!r}")
    return suffix if by == 0 else ending((int(suffix, len(_CHARACTERS)) + by) % ENDINGS)


def _one(
    checked: Document,
    content: model.Job,
    identity: str,
    user: str,
    now: float,
    array_index: int | None,
    in_place: frozenset[str],
) -> Prepared:
    launch = _launch(checked, content.spec, identity, user, array_index)
    job = _job(checked, content.spec, identity, user, now, launch.framework in in_place)
    return Prepared(
        id=identity,
        job=job,
        launch=launch,
        document=checked.source,
        kind=checked.kind,
        workload=checked.name,
        ttl_s=content.spec.ttl,
        labels=content.spec.labels,
        notify=tuple(content.spec.notify),
    )


def _job(checked: Document, spec: model.JobSpec, identity: str, user: str, now: float, in_place: bool) -> Job:
    servers = spec.parameter_servers
    deadline = spec.deadline.timestamp() if isinstance(spec.deadline, datetime) else spec.deadline
    if isinstance(spec.deadline, float | int) and deadline is not None:
        deadline += now
    if deadline is not None and deadline <= now:
        raise BadInput.one("has passed already; give a later one, or leave it out", "spec.deadline")
    # Voda counts epochs, and so do we where a job gives nothing finer.
    steps = spec.steps if spec.steps is not None else spec.epochs
    return Job(
        id=identity,
        submitted=now,
        min=spec.workers.min,
        max=spec.workers.max,
        desired=spec.workers.desired,
        step=spec.workers.step,
        milli=units.gpu_milli(spec.gpus_per_worker),
        gpu_memory=spec.gpu_memory or 0,
        cpu=spec.resources.cpu,
        memory=spec.resources.memory,
        gpu_types=tuple(spec.gpu_types),
        servers=ParameterServers(replicas=servers.replicas, cpu=servers.cpu, memory=servers.memory)
        if servers is not None
        else None,
        tags=Tags(**checked.tags),
        workload=checked.name,
        user=user,
        queue=spec.queue,
        priority=spec.priority,
        weight=spec.weight,
        steps=None if steps is None else float(steps),
        deadline=deadline,
        time_limit_s=spec.time_limit,
        retries=spec.retries,
        after=tuple(spec.after),
        preemptible=PREEMPTIBLE[spec.preemptible],
        # A job may turn out to use the runtime; its workers say so when they run.
        resizes_in_place=in_place,
    )


def _launch(checked: Document, spec: model.JobSpec, identity: str, user: str, array_index: int | None) -> Launch:
    run, servers = spec.run, spec.parameter_servers
    env = dict(run.env) if run is not None else {}
    command = tuple(run.command) if run is not None else ()
    server_command = tuple(servers.command) if servers is not None else ()
    server_env = dict(servers.env) if servers is not None else {}
    if checked.kind != "Job":
        # As Voda does, and as Kubernetes then puts it into commands. A job of our own is run as it is written.
        env |= {JOB_NAME: identity} if checked.kind == "MPIJob" else {}
        command, server_command = expanded(command, env), expanded(server_command or command, server_env)
        if server_command == command or servers is None:
            server_command = ()
    if server_env:
        server_command = (
            "env",
            *(f"{name}={value}" for name, value in server_env.items()),
            *(server_command or command),
        )
    milli = units.gpu_milli(spec.gpus_per_worker)
    steps = spec.steps if spec.steps is not None else spec.epochs
    said = run.framework if run is not None else None
    framework = said or ("tensorflow" if servers is not None else "plain")
    if servers is None and torchrun.is_merged(command, said, spec.workers.max):
        framework = "torchrun"
    return Launch(
        command=command,
        env=env,
        workdir=run.workdir if run is not None else ".",
        workload=checked.name,
        user=user,
        framework=framework,
        ranks=said == "plain",
        server_command=server_command,
        grace_s=spec.checkpoint.grace_period,
        min_workers=spec.workers.min,
        max_workers=spec.workers.max,
        gpus_milli=milli,
        gpu_memory=spec.gpu_memory or 0,
        cpu=spec.resources.cpu,
        memory=spec.resources.memory,
        steps=None if steps is None else float(steps),
        counts_epochs=spec.steps is None,
        array_index=array_index,
    )
