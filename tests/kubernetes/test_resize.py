"""Resize and end of each kind of job, as Levada's backend does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes.testbed.api import ApiError, Object, wait_for
from tests.kubernetes.testbed.bed import Bed
from tests.kubernetes.workloads import (
    Namespace,
    index_of,
    is_gated,
    is_running,
    job,
    jobset,
    mpijob,
    pytorchjob,
    runtime_patch,
    tfjob,
    trainjob,
    uids,
)

NODES = ["v100-0", "v100-1"]
_WORKERS = "training.kubeflow.org/job-role=worker"
_REPLICAS = {"MPIJob": "mpiReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs"}


@pytest.mark.parametrize("make", [mpijob, pytorchjob, tfjob, job], ids=["MPIJob", "PyTorchJob", "TFJob", "Job"])
def test_resize_keeps_the_lowest_indices(namespace: Namespace, make: type) -> None:
    body = make("train", 2)
    namespace.create(body)
    selector = _selector(body["kind"])
    two = _place(namespace, body["kind"], 2)
    namespace.patch(body["kind"], "train", resizing(body["kind"], 4))
    four = namespace.wait_for_pods(4, selector=selector)
    assert [index_of(each) for each in four] == [0, 1, 2, 3]
    assert uids(four)[:2] == uids(two)
    wait_for(lambda: all(map(is_gated, namespace.pods(selector)[2:])), "new pods are gated")
    for new in four[2:]:
        namespace.place(new, NODES[0])
    namespace.wait_for_pods(4, is_running, selector)
    namespace.patch(body["kind"], "train", resizing(body["kind"], 1))
    assert uids(namespace.wait_for_pods(1, selector=selector)) == uids(two)[:1]


def resizing(kind: str, size: int, **spec: object) -> Object:
    """The merge patch that changes the number of workers."""
    if kind == "Job":
        return {"spec": {"parallelism": size, "completions": size, **spec}}
    return {"spec": {_REPLICAS[kind]: {"Worker": {"replicas": size}}, **spec}}


@pytest.mark.parametrize("make", [mpijob, pytorchjob], ids=["MPIJob", "PyTorchJob"])
def test_size_and_suspension_change_in_one_patch(namespace: Namespace, make: type) -> None:
    body = make("train", 2, suspend=True)
    namespace.create(body)
    namespace.patch(body["kind"], "train", resizing(body["kind"], 3, runPolicy={"suspend": False}))
    namespace.wait_for_pods(3, is_gated, _selector(body["kind"]))


def test_suspended_job_gets_its_size_and_selector_when_it_resumes(namespace: Namespace) -> None:
    namespace.create(job("train", 2, suspend=True))
    selector = {"levada.dev/accelerator": "v100"}
    patch = resizing("Job", 3, suspend=False, template={"spec": {"nodeSelector": selector}})
    namespace.patch("Job", "train", patch)
    assert [pod["spec"]["nodeSelector"] for pod in namespace.wait_for_pods(3, is_gated)] == [selector] * 3


def test_discover_hosts_lists_running_workers_only(namespace: Namespace) -> None:
    namespace.create(mpijob("train", 2))
    gated = namespace.wait_for_pods(2, is_gated, _WORKERS)
    assert _discovered(namespace) == []
    namespace.place(gated[1], NODES[0])
    wait_for(lambda: _discovered(namespace) == [f"train-worker-1.train.{namespace.name}.svc"], "worker 1 is listed")
    namespace.delete("Pod", "train-worker-1")
    wait_for(lambda: _discovered(namespace) == [], "worker 1 is not listed")


def test_mpijob_succeeds_with_its_launcher(namespace: Namespace) -> None:
    namespace.create(mpijob("train", 1))
    pods = namespace.place_all(2, NODES)
    launcher = next(each for each in pods if "launcher" in each["metadata"]["name"])
    namespace.annotate(launcher, duration="0s")
    namespace.wait_for_condition("MPIJob", "train", "Succeeded")
    namespace.wait_for_pods(0, selector=_WORKERS)


def test_pytorchjob_succeeds_with_worker_0(namespace: Namespace) -> None:
    namespace.create(pytorchjob("train", 2))
    pods = namespace.place_all(2, NODES)
    environment = {each["name"]: each.get("value") for each in pods[1]["spec"]["containers"][0]["env"]}
    assert environment["PET_NNODES"] == "1:8"
    assert environment["PET_RDZV_ENDPOINT"] == "train-worker-0:23456"
    namespace.annotate(pods[0], duration="0s")
    namespace.wait_for_condition("PyTorchJob", "train", "Succeeded")
    wait_for(lambda: not any(map(is_running, namespace.pods())), "worker 1 is removed: cleanPodPolicy is Running")


def test_job_succeeds_when_all_indices_do(namespace: Namespace) -> None:
    namespace.create(job("train", 2))
    for each in namespace.place_all(2, NODES):
        namespace.annotate(each, duration="0s")
    namespace.wait_for_condition("Job", "train", "Complete")


def test_webhook_of_jobset_sets_defaults(namespace: Namespace) -> None:
    spec = namespace.create(jobset("train", 2))["spec"]
    child = spec["replicatedJobs"][0]["template"]["spec"]
    assert (child["completionMode"], child["template"]["spec"]["restartPolicy"]) == ("Indexed", "OnFailure")


@pytest.mark.parametrize("make", [jobset, trainjob], ids=["JobSet", "TrainJob"])
def test_running_jobset_is_resized_through_its_job(namespace: Namespace, make: type) -> None:
    namespace.create(make("train", 2))
    two = namespace.place_all(2, NODES)
    with pytest.raises(ApiError, match="field is immutable"):
        namespace.patch("JobSet", "train", _jobset_resize(3), "json")
    namespace.patch("Job", "train-node-0", resizing("Job", 3))
    three = namespace.wait_for_pods(3)
    assert uids(three)[:2] == uids(two)
    namespace.place(three[2], NODES[0])
    namespace.wait_for_pods(3, is_running)
    namespace.patch("Job", "train-node-0", resizing("Job", 1))
    assert uids(namespace.wait_for_pods(1)) == uids(two)[:1]
    assert namespace.get("JobSet", "train")["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 2
    namespace.annotate(namespace.pods()[0], duration="0s")
    namespace.wait_for_condition("JobSet", "train", "Completed")


@pytest.mark.parametrize("make", [jobset, trainjob], ids=["JobSet", "TrainJob"])
def test_suspended_jobset_is_resized_through_its_job(namespace: Namespace, make: type) -> None:
    body = make("train", 2, suspend=True)
    namespace.create(body)
    wait_for(lambda: namespace.api.exists(namespace.path("Job", "train-node-0")), "the child Job")
    with pytest.raises(ApiError, match="field is immutable"):
        namespace.patch("JobSet", "train", _jobset_resize(3), "json")
    namespace.patch("Job", "train-node-0", resizing("Job", 3))
    namespace.patch(body["kind"], "train", {"spec": {"suspend": False}})
    namespace.wait_for_pods(3, is_gated)


@pytest.mark.slow
def test_elastic_jobset_of_a_running_trainjob_changes_its_size(built: Path) -> None:
    with Bed(built, elastic_jobsets=True) as elastic:
        elastic.nodes("v100=8x2")
        namespace = Namespace(elastic.api, elastic.namespace("elastic"))
        namespace.create(trainjob("train", 2))
        two = namespace.place_all(2, NODES)
        namespace.patch("JobSet", "train", _jobset_resize(4), "json")
        assert uids(namespace.wait_for_pods(4))[:2] == uids(two)
        namespace.patch("JobSet", "train", _jobset_resize(1), "json")
        assert uids(namespace.wait_for_pods(1)) == uids(two)[:1]


def _jobset_resize(size: int) -> list[Object]:
    path = "/spec/replicatedJobs/0/template/spec"
    return [{"op": "replace", "path": f"{path}/{field}", "value": size} for field in ("parallelism", "completions")]


def test_trainer_of_a_trainjob_is_immutable(namespace: Namespace) -> None:
    namespace.create(trainjob("train", 2, suspend=True))
    with pytest.raises(ApiError, match="field is immutable"):
        namespace.patch("TrainJob", "train", {"spec": {"trainer": {"numNodes": 3}}})


def test_runtime_patches_change_only_while_suspended(namespace: Namespace) -> None:
    namespace.create(trainjob("train", 1, suspend=True))
    on = [runtime_patch(schedulingGates=[{"name": "levada.dev/placement"}], nodeSelector={"zone": "a"})]
    namespace.patch("TrainJob", "train", {"spec": {"runtimePatches": on, "suspend": False}})
    assert namespace.wait_for_pods(1, is_gated)[0]["spec"]["nodeSelector"] == {"zone": "a"}
    with pytest.raises(ApiError, match="can only be modified when the TrainJob is suspended"):
        namespace.patch("TrainJob", "train", {"spec": {"runtimePatches": [runtime_patch(nodeSelector={"zone": "b"})]}})


def test_trainjob_completes_and_shows_progress(namespace: Namespace) -> None:
    namespace.create(trainjob("train", 2))
    pods = namespace.place_all(2, NODES)
    progress = {"progressPercentage": 40, "estimatedRemainingSeconds": 60, "lastUpdatedTime": "2026-01-01T00:00:00Z"}
    namespace.patch("TrainJob", "train/status", {"status": {"trainerStatus": progress}})
    for each in pods:
        namespace.annotate(each, duration="0s")
    namespace.wait_for_condition("TrainJob", "train", "Complete")
    status = namespace.get("TrainJob", "train")["status"]
    assert status["jobsStatus"][0]["succeeded"] == 1
    assert status["trainerStatus"] == progress


def _place(namespace: Namespace, kind: str, workers: int) -> list[Object]:
    extra = {"MPIJob": 1, "TFJob": 1}.get(kind, 0)
    namespace.place_all(workers + extra, NODES)
    return namespace.wait_for_pods(workers, is_running, _selector(kind))


def _selector(kind: str) -> str:
    return {"MPIJob": _WORKERS, "TFJob": "training.kubeflow.org/replica-type=worker"}.get(kind, "")


def _discovered(namespace: Namespace) -> list[str]:
    data = namespace.api.get(f"/api/v1/namespaces/{namespace.name}/configmaps/train-config")["data"]
    return [line.removeprefix("echo ") for line in data["discover_hosts.sh"].splitlines() if line.startswith("echo ")]
