"""Jobs, JobSets, TrainJobs and pods of Kubernetes become Levada jobs; adopted objects are read leniently."""

from __future__ import annotations

from typing import Any

import pytest

from levada.jobfile.document import Document, Serving
from levada.jobfile.load import check, load
from levada.jobfile.model import Job
from tests.jobfile.manifests import MPI, POD, TORCH, changed
from tests.jobfile.test_kubeflow import lines, sizes, spec_of
from tests.jobfile.test_load import JOB
from tests.kubernetes.backend import jobs

QUEUE = "levada.dev/queue"
MAKERS = [jobs.batch_job, jobs.jobset, jobs.trainjob, jobs.single_pod]


def with_notes(manifest: dict[str, Any], **notes: Any) -> dict[str, Any]:
    """The manifest with annotations below `levada.dev/`."""

    def change(body: dict[str, Any]) -> None:
        body["metadata"]["annotations"] = {f"levada.dev/{name.replace('_', '-')}": text for name, text in notes.items()}

    return changed(manifest, change)


def pod_spec(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


def batch(**spec: Any) -> Document:
    """A batch/v1 Job whose pod has these fields."""
    return check(changed(jobs.batch_job(elastic=False), lambda body: pod_spec(body).update(spec)))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("adopted", [False, True])
def test_every_kind_is_read(make: Any, adopted: bool) -> None:
    document = check(make(), adopted=adopted)
    spec = spec_of(document)
    assert (document.name, document.kind, document.source) == ("train", make()["kind"], make())
    assert (spec.queue, spec.gpus_per_worker, spec.labels) == ("default", 1, {QUEUE: "default"})
    assert document.needs_cluster
    assert not document.is_own


def test_two_kinds_are_named_job() -> None:
    own, other = load(JOB)[0], check(jobs.batch_job())
    assert (own.kind, own.is_own, other.kind, other.is_own) == ("Job", True, "Job", False)
    assert lines({**jobs.batch_job(), "apiVersion": "batch/v2"})[0] == "apiVersion: must be 'levada.dev/v1'"


def test_the_range_is_in_annotations() -> None:
    two = jobs.batch_job(size=2, elastic=False)
    assert (sizes(spec_of(check(two))), check(two).elastic) == ((2, 2, None), False)
    assert sizes(spec_of(check(with_notes(two, min_workers="1", max_workers="8")))) == (1, 8, 2)
    assert sizes(spec_of(check(with_notes(two, min_workers="4")))) == (4, 4, 4)
    assert sizes(spec_of(check(with_notes(two, max_workers="1")))) == (1, 1, 1)
    assert check(with_notes(two, max_workers="8")).elastic
    assert lines(with_notes(two, min_workers="3", max_workers="2")) == [
        "metadata.annotations.levada.dev/max-workers: must be at least min (3)"
    ]
    assert lines(with_notes(two, min_workers="0", max_workers="many")) == [
        "metadata.annotations.levada.dev/min-workers: must be at least 1",
        "metadata.annotations.levada.dev/max-workers: must be a whole number",
    ]
    assert sizes(spec_of(check(with_notes(MPI, max_workers="16")))) == (1, 16, 2)
    assert sizes(spec_of(check(with_notes(TORCH, min_workers="2")))) == (2, 4, 2)


@pytest.mark.parametrize("manifest", [jobs.jobset(), jobs.trainjob(), jobs.single_pod()])
def test_kinds_of_a_fixed_size_have_no_range(manifest: dict[str, Any]) -> None:
    (line,) = lines(with_notes(manifest, max_workers="9"))
    assert line.startswith("metadata.annotations.levada.dev/max-workers: must be ")


def test_a_job_without_indices_has_a_fixed_size() -> None:
    manifest = jobs.batch_job(elastic=False, completionMode="NonIndexed", completions=10)
    assert sizes(spec_of(check(manifest))) == (2, 2, None)
    assert lines(with_notes(manifest, max_workers="3")) == [
        "metadata.annotations.levada.dev/max-workers: must be 2: only a Job with completionMode Indexed can change its size"
    ]
    assert lines(jobs.batch_job(completions=10)) == [
        "spec.completions: must be parallelism (2): all workers of a training job run at the same time"
    ]


def test_priority_and_preemptibility_are_annotations() -> None:
    spec = spec_of(check(with_notes(jobs.jobset(), priority="-3", preemptible="true")))
    assert (spec.priority, spec.preemptible) == (-3, True)
    assert spec_of(check(jobs.jobset())).preemptible == "auto"
    assert spec_of(check(jobs.single_pod())).preemptible is False, "a stopped pod is gone"
    assert spec_of(check(with_notes(jobs.single_pod(), preemptible="true"))).preemptible is True
    assert lines(with_notes(jobs.jobset(), priority="high", preemptible="often")) == [
        "metadata.annotations.levada.dev/priority: must be a whole number",
        "metadata.annotations.levada.dev/preemptible: must be 'auto', true or false",
    ]


def test_resources_are_those_that_kubernetes_reserves() -> None:
    def container(cpu: str, gpus: int = 0, **fields: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": gpus}}, **fields}

    spec = spec_of(
        batch(
            containers=[container("1", 1), container("500m")],
            initContainers=[
                container("250m", restartPolicy="Always"),
                container("8", 2),
                container("250m", restartPolicy="Always"),
            ],
            overhead={"cpu": "100m", "memory": "64Mi"},
        )
    )
    assert (spec.resources.cpu, spec.resources.memory, spec.gpus_per_worker) == (8350, 4096 + 64, 2)
    whole = spec_of(batch(resources={"requests": {"cpu": "3"}}))
    assert (whole.resources.cpu, whole.gpus_per_worker) == (3000, 1)


@pytest.mark.parametrize(
    "label",
    [
        "levada.dev/accelerator",
        "vodascheduler/accelerator",
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
    ],
)
def test_the_gpu_type_is_a_node_label(label: str) -> None:
    def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
        required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    one = [{"key": label, "operator": "In", "values": ["a100", "h100"]}]
    two = [{"key": "zone", "operator": "Exists"}, {"key": label, "operator": "In", "values": ["h100", "b200"]}]
    assert spec_of(batch(nodeSelector={label: "a100"})).gpu_types == ["a100"]
    assert spec_of(batch(affinity=affinity(one, two))).gpu_types == ["a100", "h100", "b200"]
    assert spec_of(batch(affinity=affinity(one, two[:1]))).gpu_types == [], "the second term allows any type"


def test_the_largest_pod_of_a_jobset_counts() -> None:
    def add_driver(body: dict[str, Any]) -> None:
        inner = {"template": {"spec": {"containers": [{"name": "d", "resources": {"requests": {"cpu": 4}}}]}}}
        body["spec"]["replicatedJobs"].insert(0, {"name": "driver", "template": {"spec": inner}})

    spec = spec_of(check(changed(jobs.jobset(size=3), add_driver)))
    assert (sizes(spec), spec.gpus_per_worker, spec.resources.cpu) == ((4, 4, None), 1, 4000)


def test_a_trainjob_says_what_its_nodes_need() -> None:
    def patch(body: dict[str, Any]) -> None:
        pod = {"template": {"spec": {"nodeSelector": {"levada.dev/accelerator": "h100"}}}}
        jobs_of = [{"name": "node", "template": {"spec": pod}}]
        body["spec"]["runtimePatches"] = [{"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs_of}}}}]

    assert spec_of(check(changed(jobs.trainjob(), patch))).gpu_types == ["h100"]
    bare = changed(jobs.trainjob(), lambda body: body["spec"].update(trainer={"numNodes": 2}, runtimeRef={}))
    assert lines(bare) == [
        "spec.runtimeRef.name: is required",
        "spec.trainer.resourcesPerNode: is required: Levada does not read the runtime, and must know the GPUs of a node",
    ]


def test_adopted_objects_may_have_unknown_fields_and_any_name() -> None:
    for manifest in (MPI, TORCH, jobs.batch_job(), jobs.jobset(), jobs.trainjob()):
        new = changed(manifest, lambda body: body["spec"].update(fieldOfTomorrow=1))
        new["metadata"]["name"] = name = "a.long-name" * 6
        assert any("fieldOfTomorrow: unknown field" in line for line in lines(new))
        document = check(new, adopted=True)
        assert (document.name, isinstance(document.content, Job)) == (name, True)
        assert document.source == new


def test_adopted_jobs_of_levada_have_a_queue_label_and_annotations() -> None:
    def change(body: dict[str, Any]) -> None:
        body["metadata"] |= {"name": "my.job", "labels": {QUEUE: "lab"}, "annotations": {"levada.dev/max-workers": "3"}}
        body["spec"] |= {"fieldOfTomorrow": 1, "workers": {"min": 2, "max": 8, "other": 1}, "labels": {"team": "x"}}

    document = check(changed(jobs.levada_job(), change), adopted=True)
    spec = spec_of(document)
    assert (document.name, document.is_own, spec.queue, sizes(spec)) == ("my.job", True, "lab", (2, 3, 2))
    assert spec.labels == {QUEUE: "lab", "team": "x"}


def test_a_pod_trains_or_serves() -> None:
    assert isinstance(check(POD).content, Serving)
    both = changed(POD, lambda body: body["metadata"].update(labels={QUEUE: "default"}))
    assert isinstance(check(both).content, Serving), "serving counts before the queue"
