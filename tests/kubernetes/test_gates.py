"""Gates, pins and conflicts: the rules of pods that Levada's backend relies on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.kubernetes.testbed.api import ApiError, Object, wait_for
from tests.kubernetes.testbed.manifests import GATE
from tests.kubernetes.workloads import (
    HOSTNAME,
    Namespace,
    is_gated,
    is_running,
    job,
    jobset,
    mpijob,
    placing,
    pod,
    pytorchjob,
    tfjob,
    trainjob,
    uids,
)

NODES = ["a100-0", "a100-1"]
#: Constructor of a job with two workers, and the number of its pods.
KINDS = pytest.mark.parametrize(
    ("make", "count"),
    [(job, 2), (mpijob, 3), (pytorchjob, 2), (tfjob, 3), (jobset, 2), (trainjob, 2)],
    ids=["Job", "MPIJob", "PyTorchJob", "TFJob", "JobSet", "TrainJob"],
)
Make = Callable[..., Object]


@KINDS
def test_gate_in_the_template_reaches_every_pod(namespace: Namespace, make: Make, count: int) -> None:
    namespace.create(make("train", 2))
    pods = namespace.place_all(count, NODES)
    assert {each["spec"]["nodeName"] for each in pods} == set(NODES)


@pytest.mark.parametrize(("make", "count"), [(mpijob, 3), (pytorchjob, 2), (tfjob, 3)])
def test_replacement_of_a_deleted_pod_is_gated(namespace: Namespace, make: Make, count: int) -> None:
    namespace.create(make("train", 2))
    before = namespace.place_all(count, NODES)
    namespace.delete("Pod", before[-1]["metadata"]["name"])
    wait_for(lambda: sum(map(is_gated, namespace.pods())) == 1, "a gated replacement")
    assert set(uids(before[:-1])) < set(uids(namespace.wait_for_pods(count)))


def test_job_replaces_a_deleted_pod_after_a_backoff_and_a_regrown_index_at_once(namespace: Namespace) -> None:
    namespace.create(job("train", 2))
    pods = namespace.place_all(2, NODES)
    for size in (1, 2):
        namespace.patch("Job", "train", {"spec": {"parallelism": size, "completions": size}})
        namespace.wait_for_pods(size)
    moved = next(each for each in namespace.place_all_gated(NODES) if uids([each]) != uids(pods[:1]))
    assert "failed" not in namespace.get("Job", "train")["status"]
    started = time.monotonic()
    namespace.delete("Pod", moved["metadata"]["name"])
    wait_for(lambda: any(map(is_gated, namespace.pods())), "a gated replacement")
    assert time.monotonic() - started > 5
    assert namespace.get("Job", "train")["status"]["failed"] == 1


def test_deleted_worker_is_replaced_when_it_has_terminated(namespace: Namespace) -> None:
    namespace.create(pytorchjob("train", 1))
    pod = namespace.place_all(1, NODES)[0]
    namespace.annotate(pod, termination="1s")
    started = time.monotonic()
    namespace.delete("Pod", pod["metadata"]["name"])
    namespace.wait_for_pods(1, is_gated)
    assert time.monotonic() - started > 0.9


@KINDS
def test_suspended_job_has_no_pods_and_resumes_with_gated_pods(namespace: Namespace, make: Make, count: int) -> None:
    body = make("train", 2, suspend=True)
    kind = body["kind"]
    namespace.create(body)
    wait_for(lambda: namespace.condition(kind, "train", "Suspended") == "True", "it is suspended")
    assert namespace.pods() == []
    namespace.patch(kind, "train", suspending(kind, False))
    first = namespace.place_all(count, NODES)
    namespace.patch(kind, "train", suspending(kind, True))
    namespace.wait_for_pods(0)
    namespace.patch(kind, "train", suspending(kind, False))
    second = namespace.place_all(count, NODES)
    assert not set(uids(first)) & set(uids(second))


def suspending(kind: str, suspend: bool) -> Object:
    """The merge patch that suspends or resumes a job of this kind."""
    in_policy = kind in {"MPIJob", "PyTorchJob", "TFJob"}
    return {"spec": {"runPolicy": {"suspend": suspend}} if in_policy else {"suspend": suspend}}


def test_launcher_may_wait_for_the_workers(namespace: Namespace) -> None:
    body = mpijob("train", 2)
    body["spec"]["launcherCreationPolicy"] = "WaitForWorkersReady"
    namespace.create(body)
    namespace.place_all(2, NODES, "training.kubeflow.org/job-role=worker")
    launcher = wait_for(lambda: list(filter(is_gated, namespace.pods())), "a gated launcher")
    assert [each["metadata"]["labels"]["training.kubeflow.org/job-role"] for each in launcher] == ["launcher"]


def test_admission_policy_adds_the_gate_to_labelled_pods(namespace: Namespace) -> None:
    admission = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
    gate = f'Object{{spec: Object.spec{{schedulingGates: [Object.spec.schedulingGates{{name: "{GATE}"}}]}}}}'
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
            "objectSelector": {"matchExpressions": [{"key": "levada.dev/queue", "operator": "Exists"}]},
        },
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": gate}}],
    }
    namespace.api.post(admission, {"metadata": {"name": namespace.name}, "spec": spec})
    binding = {"metadata": {"name": namespace.name}, "spec": {"policyName": namespace.name}}
    namespace.api.post(f"{admission.removesuffix('ies')}ybindings", binding)
    body = pod("queued", gated=False)
    body["metadata"]["labels"] = {"levada.dev/queue": "default"}

    def is_active() -> bool:
        answer = namespace.api.post(f"{namespace.path('Pod')}?dryRun=All", body)
        return answer["spec"].get("schedulingGates") == [{"name": GATE}]

    wait_for(is_active, "the policy is active")
    assert "schedulingGates" not in namespace.create(pod("foreign", gated=False))["spec"]


def test_failed_worker_is_replaced_by_a_gated_pod(namespace: Namespace) -> None:
    namespace.create(pytorchjob("train", 2))
    pods = namespace.place_all(2, NODES)
    namespace.annotate(pods[1], duration="0s", exit_code="1")
    wait_for(lambda: sum(map(is_gated, namespace.pods())) == 1, "a gated replacement")
    assert uids(namespace.wait_for_pods(2))[0] == uids(pods)[0]


def test_gates_are_only_removed_and_pins_only_added(namespace: Namespace) -> None:
    namespace.create(pod("gated", nodeSelector={"levada.dev/accelerator": "a100"}))
    refused = [
        {"schedulingGates": [{"name": GATE}, {"name": "example.org/other"}]},
        {"nodeSelector": {"levada.dev/accelerator": "v100"}},
        {"nodeSelector": {"levada.dev/accelerator": None}},
    ]
    for spec in refused:
        assert _refusal(namespace, "gated", {"spec": spec}) == 422
    namespace.patch("Pod", "gated", {"spec": {"nodeSelector": {HOSTNAME: "a100-3"}}})
    namespace.patch("Pod", "gated", {"spec": {"schedulingGates": None}})
    assert namespace.wait_for_pods(1, is_running)[0]["spec"]["nodeName"] == "a100-3"
    assert _refusal(namespace, "gated", {"spec": {"nodeSelector": {HOSTNAME: "a100-4"}}}) == 422
    assert _refusal(namespace, "gated", {"spec": {"schedulingGates": [{"name": GATE}]}}) == 422


def test_placing_is_refused_if_the_pod_is_another_or_is_placed(namespace: Namespace) -> None:
    created = namespace.create(pod("train-0"))
    other = {**created, "metadata": {**created["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
    for stale in (other, created):
        if stale is created:
            namespace.place(created, "a100-0")
        with pytest.raises(ApiError) as error:
            namespace.patch("Pod", "train-0", placing(stale, "a100-1"), "json")
        assert error.value.code == 422


@KINDS
def test_stale_resource_version_is_a_conflict(namespace: Namespace, make: Make, count: int) -> None:
    created = namespace.create(make("train", 2, suspend=True))
    kind = created["kind"]
    stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, **suspending(kind, False)}
    namespace.patch(kind, "train", {"metadata": {"annotations": {"example.org/changed": "yes"}}})
    with pytest.raises(ApiError) as error:
        namespace.patch(kind, "train", stale)
    assert error.value.code == 409


def test_pinned_pod_that_does_not_fit_stays_pending(namespace: Namespace) -> None:
    body = pod("big")
    body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "9"
    namespace.place(namespace.create(body), "a100-0")
    wait_for(lambda: _scheduling_reason(namespace.get("Pod", "big")) == "Unschedulable", "it is unschedulable")


def _refusal(namespace: Namespace, name: str, patch: Object) -> int:
    with pytest.raises(ApiError) as error:
        namespace.patch("Pod", name, patch)
    return error.value.code


def _scheduling_reason(found: Object) -> str | None:
    conditions = found["status"].get("conditions", ())
    return next((each.get("reason") for each in conditions if each["type"] == "PodScheduled"), None)
