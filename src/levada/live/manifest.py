"""Conversion of job and queue documents to engine jobs and launch commands.

Time and randomness are parameters, so that the same document always becomes the same jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from levada.backends.protocol import Capabilities, Launch
from levada.core.job import Job, ParameterServers, Preemptible, Tags, faults_of
from levada.core.queue import Queue
from levada.errors import MOST_FAULTS, BadInput, Refused, did_you_mean
from levada.jobfile import model, torchrun, units
from levada.jobfile.document import JOB_NAME, Document
from levada.jobfile.load import check
from levada.jobfile.pods import expanded
from levada.live.records import DEFAULT_TTL_S, JobDetails

#: Characters of an id suffix, in order.
_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
SUFFIX_LENGTH = 4
ENDINGS = len(_CHARACTERS) ** SUFFIX_LENGTH
#: Longest host name of a pod, and what operators append to the name of a job at least.
_LONGEST_HOST = 63
_HOST_SUFFIXES = {"MPIJob": "-worker-{last}", "PyTorchJob": "-worker-{last}", "TFJob": "-worker-{last}"}
PREEMPTIBLE = {"auto": Preemptible.AUTO, True: Preemptible.AT_ONCE, False: Preemptible.NEVER}


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One job, converted for the engine and the backend."""

    id: str
    job: Job
    launch: Launch
    #: The document of the user.
    document: Mapping[str, Any]
    #: Job, MPIJob, PyTorchJob or TFJob.
    kind: str
    #: Learned speeds are stored under this name.
    workload: str
    #: Time that it stays listed after its end; None for the server's default.
    ttl_s: float | None = None
    labels: Mapping[str, str] = {}
    #: Webhook addresses for its end and for warnings.
    notify: tuple[str, ...] = ()


def prepare(
    document: Mapping[str, Any],
    *,
    user: str,
    now: float,
    suffix: str = "",
    identity: str = "",
    capabilities: Capabilities = Capabilities(),  # noqa: B008 frozen default
    describe: int = MOST_FAULTS,
) -> list[Submission]:
    """Return the jobs of one job document: one, or one per index of its array.

    *suffix*: four random characters a-z and 0-9 for the id; jobs of an array get consecutive ones. *identity*: the id
    instead, for an object of a cluster, which may have any name. *describe*: limit of reported faults.
    Raises BadInput for an invalid document, and Refused for one that requires Kubernetes if the backend does not run
    manifests.
    """
    kubernetes = capabilities.runs_manifests
    checked = check(dict(document), describe, adopted=bool(identity))
    if not identity and "uid" in checked.source["metadata"]:
        # E.g. the output of `kubectl get -o yaml`: the job gets an object of its own.
        metadata = {name: value for name, value in checked.source["metadata"].items() if name != "uid"}
        checked = dataclasses.replace(checked, source={**checked.source, "metadata": metadata})
    if isinstance(checked.content, model.Queue):
        raise BadInput.one("must be a job; create queues with `levada apply -f`", "kind")
    if checked.needs_cluster and not kubernetes:
        raise Refused(_needs_kubernetes(checked))
    if not isinstance(checked.content, model.Job):
        raise BadInput.one("serving pods cannot be submitted; deploy them on Kubernetes", "kind")
    spec = checked.content.spec
    if spec.run is None and not kubernetes:
        raise Refused(f"{checked.name}: spec.run is missing: jobs without it need the Kubernetes backend")
    indices = model.array_indices(spec.array) if spec.array is not None else [None]
    if identity and spec.array is not None:
        raise BadInput.one("an object is one job; submit arrays with `levada submit`", "spec.array")
    ids = [identity or _id(checked, now, _next_suffix(suffix, offset)) for offset, _ in enumerate(indices)]
    if kubernetes and checked.kind != "Pod":
        _check_host_names(checked, checked.name if identity else ids[0], spec.workers.max)
    return [
        _submission(checked, checked.content, job_id, user, now, index, capabilities)
        for job_id, index in zip(ids, indices, strict=True)
    ]


def check_job(job: Job, queues: Sequence[str], queue_path: str = "spec.queue") -> None:
    """Raise BadInput for a job that the engine would not accept, or whose queue is not one of *queues*."""
    if job.queue not in queues:
        hint = did_you_mean(job.queue, queues, "`levada queues` lists them")
        raise BadInput.one(f"there is no queue {job.queue}{hint}", queue_path)
    for field, text in faults_of(job):
        raise BadInput.one(text, f"spec.{field}")


def details_of(submission: Submission) -> JobDetails:
    """Return the details that are stored with a job."""
    return JobDetails(
        workload=submission.workload,
        kind=submission.kind,
        launch=submission.launch,
        document=msgspec.Raw(msgspec.json.encode(submission.document)),
        labels=submission.labels,
        notify=submission.notify,
        ttl_s=DEFAULT_TTL_S if submission.ttl_s is None else submission.ttl_s,
    )


def _check_host_names(checked: Document, name: str, workers: int) -> None:
    """Raise BadInput if the host names of its pods, which begin with *name*, would be too long."""
    suffix = "" if checked.is_own else _HOST_SUFFIXES.get(checked.kind, "-{last}")
    longest = name + suffix.format(last=workers - 1)
    if len(longest) > _LONGEST_HOST:
        excess = len(longest) - _LONGEST_HOST
        raise BadInput.one(
            f"the pod {longest} would have more than {_LONGEST_HOST} characters; make it {excess} shorter",
            "metadata.name",
        )


def queue_of(document: Mapping[str, Any]) -> Queue:
    """Return the queue of a queue document; raises BadInput."""
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
        per_user_limit={name: limit for name, limit in spec.per_user_limit.items() if name != model.ALL_TYPES},
        per_user_total=spec.per_user_limit.get(model.ALL_TYPES),
        borrow=spec.borrow,
    )


def _needs_kubernetes(checked: Document) -> str:
    if checked.is_job:
        return f"{checked.kind} {checked.name} needs the Kubernetes backend: {checked.needs_cluster}"
    return checked.needs_cluster


def _id(checked: Document, now: float, suffix: str) -> str:
    if checked.keeps_name:
        return checked.name
    return f"{checked.name}-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{suffix}"


def ending(number: int) -> str:
    """Return the id suffix with this number, which is less than `ENDINGS`."""
    suffix = ""
    for _ in range(SUFFIX_LENGTH):
        number, digit = divmod(number, len(_CHARACTERS))
        suffix = _CHARACTERS[digit] + suffix
    return suffix


def _next_suffix(suffix: str, by: int) -> str:
    """Return the suffix at a distance of *by* after *suffix*, wrapping around."""
    if len(suffix) != SUFFIX_LENGTH or any(character not in _CHARACTERS for character in suffix):
        raise ValueError(f"the suffix of an id must be {SUFFIX_LENGTH} characters a-z and 0-9, not {suffix!r}")
    return suffix if by == 0 else ending((int(suffix, len(_CHARACTERS)) + by) % ENDINGS)


def _submission(
    checked: Document,
    content: model.Job,
    identity: str,
    user: str,
    now: float,
    array_index: int | None,
    capabilities: Capabilities,
) -> Submission:
    launch = _launch(checked, content.spec, identity, user, array_index)
    job = _job(checked, content.spec, identity, user, now)
    if capabilities.runs_manifests and not checked.is_own:
        job, launch = _operated(checked, job, launch)
    # Workers that use the runtime library report later that they resize in place, too.
    job = msgspec.structs.replace(job, resizes_in_place=launch.framework in capabilities.in_place)
    return Submission(
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


def _operated(checked: Document, job: Job, launch: Launch) -> tuple[Job, Launch]:
    """Adapt a job whose pods an operator makes: its launcher needs a place, and only the operator retries."""
    if checked.launcher is not None:
        cpu, memory = checked.launcher
        job = msgspec.structs.replace(job, servers=ParameterServers(replicas=1, cpu=cpu, memory=memory))
    framework = "elastic" if checked.elastic else "plain"
    return msgspec.structs.replace(job, retries=0), msgspec.structs.replace(launch, framework=framework)


def _job(checked: Document, spec: model.JobSpec, identity: str, user: str, now: float) -> Job:
    servers = spec.parameter_servers
    deadline = spec.deadline.timestamp() if isinstance(spec.deadline, datetime) else spec.deadline
    if isinstance(spec.deadline, float | int) and deadline is not None:
        deadline += now
    if deadline is not None and deadline <= now:
        raise BadInput.one("has already passed; give a later one, or remove it", "spec.deadline")
    # Like Voda, count epochs if the job declares no steps.
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
    )


def _launch(checked: Document, spec: model.JobSpec, identity: str, user: str, array_index: int | None) -> Launch:
    run, servers = spec.run, spec.parameter_servers
    env = dict(run.env) if run is not None else {}
    command = tuple(run.command) if run is not None else ()
    server_command = tuple(servers.command) if servers is not None else ()
    server_env = dict(servers.env) if servers is not None else {}
    if not checked.is_own:
        # Expand variables in the command like Voda and Kubernetes do; a Levada job runs as written.
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
    framework = run.framework if run is not None else None
    return Launch(
        command=command,
        env=env,
        workdir=run.workdir if run is not None else ".",
        workload=checked.name,
        user=user,
        framework=torchrun.framework_of(command, framework, servers is not None, spec.workers.max),
        ranks=framework == "plain",
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
