"""Conversion of documents to engine jobs and launch commands."""

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from levada.backends.protocol import Capabilities
from levada.core.job import ParameterServers, Preemptible, Tags, faults_of
from levada.core.queue import Queue
from levada.errors import BadInput, Refused
from levada.live.manifest import Submission, prepare, queue_of
from tests.jobfile.manifests import MPI, POD, TF, TORCH, changed, container
from tests.jobfile.test_fuzz import nearly_right
from tests.jobfile.test_kubeflow import shared
from tests.jobfile.test_load import JOB
from tests.kubernetes.backend import jobs

CLUSTER = Capabilities(runs_manifests=True)
NOW = datetime(2026, 11, 15, 15, 30, 48, tzinfo=UTC).timestamp()


def prepared(document: dict[str, Any], **kwargs: Any) -> list[Submission]:
    return prepare(document, user="ada", now=NOW, suffix="k3x9", **kwargs)


def one(spec: str = "", **kwargs: Any) -> Submission:
    text = f"{{apiVersion: levada.dev/v1, kind: Job, metadata: {{name: j}}, spec: {{run: {{command: [x]}}, {spec}}}}}"
    (submission,) = prepared(yaml.safe_load(text), **kwargs)
    return submission


def test_the_documented_job_is_converted() -> None:
    document = yaml.safe_load(JOB)
    jobs = prepared(document)
    assert [job.id for job in jobs] == [f"resnet50-20261115-153048-k3x{end}" for end in "9abcdefghi"]
    assert [job.launch.array_index for job in jobs] == list(range(10))
    first = jobs[0]
    job = first.job
    assert (job.submitted, job.min, job.max, job.desired) == (NOW, 1, 8, 4)
    assert (job.milli, job.cpu, job.memory, job.gpu_types) == (1000, 4000, 8192, ("a100", "v100"))
    assert (job.deadline, job.time_limit_s, job.retries, job.steps) == (NOW + 7200, 43200, 3, 200000)
    assert (job.user, job.workload, job.after) == ("ada", "resnet50", ("prepare-data-20261115-101500-a1b2",))
    assert job.servers is not None
    assert (job.servers.replicas, job.servers.cpu, job.servers.memory) == (1, 4000, 8192)
    assert (first.ttl_s, first.labels, first.notify) == (604800, {"team": "vision"}, ("https://example.org/hook",))
    assert (first.kind, first.workload, first.document) == ("Job", "resnet50", document)
    launch = first.launch
    assert (launch.command, launch.env, launch.grace_s, launch.user) == (
        ("python", "train.py"),
        {"LR": "0.1"},
        60,
        "ada",
    )
    assert (launch.min_workers, launch.max_workers, launch.gpus_milli, launch.steps) == (1, 8, 1000, 200000)
    # Parameter servers imply TensorFlow.
    assert (launch.framework, job.resizes_in_place) == ("tensorflow", False)


@pytest.mark.parametrize(
    ("run", "workers", "framework", "ranks"),
    [
        ("command: [torchrun, train.py]", 2, "torchrun", False),
        ("command: [torchrun, train.py]", 1, "plain", False),
        ("command: [python, -m, torch.distributed.run, train.py], framework: torchrun", 1, "torchrun", False),
        ("command: [python, train.py]", 2, "plain", False),
        ("command: [python, train.py], framework: plain", 1, "plain", True),
    ],
)
def test_the_framework_determines_the_launcher(run: str, workers: int, framework: str, ranks: bool) -> None:
    text = (
        f"{{apiVersion: levada.dev/v1, kind: Job, metadata: {{name: j}}, spec: {{workers: {workers}, run: {{{run}}}}}}}"
    )
    (job,) = prepared(yaml.safe_load(text))
    assert (job.launch.framework, job.launch.ranks) == (framework, ranks)


def test_a_pytorchjob_of_one_pod_has_kubeflow_rank_variables() -> None:
    def change(manifest: dict[str, Any]) -> None:
        del manifest["spec"]["elasticPolicy"]
        manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
        container(manifest, "Worker")["command"] = ["python", "ddp.py"]

    (job,) = prepared(changed(TORCH, change))
    assert (job.launch.framework, job.launch.max_workers, job.launch.ranks) == ("plain", 1, True)


def test_a_plain_job_has_documented_defaults() -> None:
    job = one()
    assert (job.job.preemptible, job.job.resizes_in_place, job.launch.framework) == (Preemptible.AUTO, False, "plain")
    assert (job.launch.array_index, job.ttl_s, job.job.steps, job.job.deadline) == (None, None, None, None)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("auto", Preemptible.AUTO), ("true", Preemptible.AT_ONCE), ("false", Preemptible.NEVER)],
)
def test_preemptible_is_converted(word: str, meaning: int) -> None:
    assert one(f"preemptible: {word}").job.preemptible == meaning


@pytest.mark.parametrize(
    ("workers", "sizes"),
    [
        ("{min: 1, max: 4, step: 2}", (2, 4, None)),
        ("{min: 3, max: 9, desired: 4, step: 3}", (3, 9, 6)),
        ("{min: 2, max: 5, desired: 5, step: 2}", (2, 5, 4)),
    ],
)
def test_with_a_step_sizes_are_multiples_of_it(workers: str, sizes: tuple[int, int, int | None]) -> None:
    submission = one(f"workers: {workers}")
    assert (submission.job.min, submission.job.max, submission.job.desired) == sizes
    assert (submission.launch.min_workers, submission.launch.max_workers) == sizes[:2]


@pytest.mark.parametrize("deadline", ["2026-11-15T15:30:47Z", "0s", "0"])
def test_a_past_deadline_is_an_error(deadline: str) -> None:
    with pytest.raises(BadInput, match=r"spec\.deadline: has already passed; give a later one, or remove it"):
        one(f"deadline: {deadline}")
    assert one("deadline: 2026-11-15T15:30:49Z").job.deadline == NOW + 1


def test_quantities_are_converted() -> None:
    job = one("gpusPerWorker: 0.25, gpuMemory: 3Gi, deadline: 2026-11-16T00:00:00+01:00, epochs: 90").job
    assert (job.milli, job.gpu_memory, job.steps) == (250, 3072, 90)
    assert job.deadline == datetime(2026, 11, 15, 23, tzinfo=UTC).timestamp()


def test_a_torchrun_job_is_converted() -> None:
    document = {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"run": {"command": ["python", "t.py"], "framework": "torchrun"}}}  # fmt: skip
    (job,) = prepared(document)
    assert (job.launch.framework, job.job.resizes_in_place) == ("torchrun", False)
    # The backend decides whether it is resized in place.
    (job,) = prepared(document, capabilities=Capabilities(in_place=frozenset({"torchrun"})))
    assert job.job.resizes_in_place


def test_the_ends_of_an_array_wrap_around() -> None:
    document = yaml.safe_load(JOB)
    document["spec"]["array"] = "0-1"
    ends = [submission.id[-4:] for submission in prepare(document, user="ada", now=NOW, suffix="zzzz")]
    assert ends == ["zzzz", "0000"]


def test_an_mpijob_is_converted() -> None:
    (job,) = prepared(MPI)
    assert (job.id, job.kind, job.workload) == ("mnist-20261115-153048-k3x9", "MPIJob", "mnist")
    # Voda counts epochs, and its lowest number is the highest priority.
    assert (job.job.steps, job.job.priority, job.job.resizes_in_place) == (150, -3, False)
    assert job.launch.env["JOB_NAME"] == job.id
    assert job.launch.command[2] == (
        f"horovodrun -np 1 --max-np 8 python train.py --out /outputs/{job.id} --at $(date)"
    )
    assert job.launch.framework == "horovod"


def test_an_unknown_launcher_does_not_resize_in_place() -> None:
    launcher = changed(MPI, lambda m: container(m, "Launcher").update(command=["./train"], args=[]))
    torch = changed(TORCH, lambda m: container(m, "Worker").update(command=["./train"]))
    for document, framework in ((launcher, "mpi"), (torch, "plain")):
        (job,) = prepared(document)
        assert (job.launch.framework, job.launch.command, job.job.resizes_in_place) == (framework, ("./train",), False)


def test_tfjob_keeps_its_name() -> None:
    (job,) = prepared(TF)
    assert (job.id, job.workload, job.job.queue) == ("job1", "job1", "lab")
    assert job.launch.server_command == ("env", "ROLE=server", "python3", "serve.py")
    assert (job.launch.framework, job.launch.command) == ("tensorflow", ("python3", "train.py"))


def test_a_gpu_fraction_with_tags_is_converted() -> None:
    def change(manifest: dict[str, Any]) -> None:
        shared(manifest, gpu_request="0.5", gpu_mem="3189243904", sched_affinity="a")

    (job,) = prepared(changed(TF, change))
    assert (job.job.milli, job.job.gpu_memory, job.job.tags) == (500, 3042, Tags(affinity="a"))


def test_cluster_only_fields_are_rejected_by_the_local_backend() -> None:
    with pytest.raises(Refused, match=r"Pod answers: serving pods run only on Kubernetes"):
        prepared(POD)
    imageless = changed(TORCH, lambda m: container(m, "Worker").pop("command"))
    with pytest.raises(Refused, match=r"PyTorchJob resnet needs the Kubernetes backend: .*containers\[0\].command"):
        prepared(imageless)
    (job,) = prepared(imageless, capabilities=CLUSTER)
    assert job.launch.command == ()
    pods = {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"kubernetes": {"image": "i"}}}  # fmt: skip
    with pytest.raises(Refused, match=r"j: spec.run is missing"):
        prepared(pods)


def test_a_queue_document_is_converted() -> None:
    spec = {"parent": "all", "weight": 2.0, "guaranteed": {"a100": 8}, "limit": {"a100": 16}, "borrow": False, "perUserLimit": {"a100": 4}}  # fmt: skip
    document = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "vision"}, "spec": spec}
    assert queue_of(document) == Queue(
        name="vision", parent="all", weight=2.0, guaranteed={"a100": 8}, limit={"a100": 16}, borrow=False,
        per_user_limit={"a100": 4},
    )  # fmt: skip
    for_all = queue_of({**document, "spec": {"perUserLimit": 3}})
    assert (for_all.per_user_limit, for_all.per_user_total) == ({}, 3)
    with pytest.raises(BadInput, match="kind: must be a job"):
        prepared(document)
    with pytest.raises(BadInput, match="kind: must be Queue"):
        queue_of(MPI)


@settings(max_examples=200, deadline=None)
@given(nearly_right().filter(lambda value: isinstance(value, dict)))
def test_every_validated_document_is_accepted_by_the_engine(document: dict[str, Any]) -> None:
    try:
        jobs = prepared(document, capabilities=CLUSTER)
    except BadInput as error:
        assert error.faults
        return
    assert [fault for submission in jobs[:3] for fault in faults_of(submission.job)] == []
    assert len({submission.id for submission in jobs}) == len(jobs)


def test_kubernetes_kinds_need_kubernetes() -> None:
    with pytest.raises(Refused, match=r"^JobSet train needs the Kubernetes backend: its pods are made by the JobSet"):
        prepared(jobs.jobset())
    with pytest.raises(Refused, match=r"^Job train needs the Kubernetes backend: its pods are made by a controller"):
        prepared(jobs.batch_job())


def test_operators_retry_and_their_launchers_have_a_place() -> None:
    launcher = {"cpu": "2", "memory": "1Gi"}
    manifest = changed(MPI, lambda body: container(body, "Launcher").update(resources={"requests": launcher}))
    (local,), (clustered,) = prepared(manifest), prepared(manifest, capabilities=CLUSTER)
    assert (local.job.retries, local.job.servers, local.launch.framework) == (6, None, "horovod")
    assert (clustered.job.retries, clustered.launch.framework) == (0, "elastic")
    assert clustered.job.servers == ParameterServers(replicas=1, cpu=2000, memory=1024)
    capabilities = Capabilities(runs_manifests=True, in_place=frozenset({"elastic"}))
    for document, in_place in ((manifest, True), (jobs.batch_job(), True), (jobs.jobset(), False)):
        assert prepared(document, capabilities=capabilities)[0].job.resizes_in_place is in_place


def test_an_object_of_the_cluster_keeps_its_id_and_uid() -> None:
    document = changed(jobs.batch_job("a.b" * 20), lambda body: body["metadata"].update(uid="u1"))
    (adopted,) = prepare(document, user="ada", now=NOW, identity="the-id", capabilities=CLUSTER)
    assert (adopted.id, adopted.workload, adopted.document) == ("the-id", "a.b" * 20, document)
    document["metadata"]["name"] = "train"
    (submitted,) = prepared(document, capabilities=CLUSTER)
    assert "uid" not in submitted.document["metadata"], "a submission gets an object of its own"
    array = changed(jobs.levada_job(), lambda body: body["spec"].update(array="0-3"))
    with pytest.raises(BadInput, match="an object is one job"):
        prepare(array, user="ada", now=NOW, identity="the-id", capabilities=CLUSTER)


def test_host_names_of_pods_are_limited() -> None:
    long = changed(MPI, lambda body: body["metadata"].update(name="n" * 42))
    assert prepared(long)
    with pytest.raises(
        BadInput, match=r"metadata.name: the pod n+-2.*-worker-7 would have more than 63 characters; make it 9 shorter"
    ):
        prepared(long, capabilities=CLUSTER)
