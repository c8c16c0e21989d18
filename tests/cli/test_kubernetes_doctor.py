"""`levada kubernetes doctor`: one line for each thing to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from levada.backends.kubernetes.client import ApiError, Resource
from levada.cli import main as cli
from levada.cli.doctor import Finding
from levada.cli.kubernetes import examine
from tests.kubernetes.backend.fake_api import FakeApi
from tests.kubernetes.backend.fake_cluster import FakeCluster

DEPLOYMENTS = Resource(kind="Deployment", plural="deployments", version="v1", group="apps")
POLICIES = Resource(
    kind="MutatingAdmissionPolicy",
    plural="mutatingadmissionpolicies",
    version="v1",
    group="admissionregistration.k8s.io",
    namespaced=False,
)
OPERATORS = ("mpi-operator", "training-operator", "kubeflow-trainer-controller-manager", "jobset-controller-manager")


class ReviewedApi(FakeApi):
    """An API server with a version and access reviews."""

    def __init__(self) -> None:
        super().__init__()
        self.minor, self.refused = "36", set[tuple[str, str]]()

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        if resource.path(namespace, name) == "/version":
            await self._arrive("get", resource)
            return msgspec.json.encode({"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor}.4"})
        return await super().get(resource, namespace, name)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], name: str = "") -> bytes:
        if resource.kind == "SelfSubjectAccessReview":
            asked = body["spec"]["resourceAttributes"]
            return msgspec.json.encode({"status": {"allowed": (asked["verb"], asked["resource"]) not in self.refused}})
        return await super().create(resource, namespace, body, name)


@pytest.fixture
def api() -> ReviewedApi:
    """A cluster on which everything is installed."""
    api = ReviewedApi()
    FakeCluster(api).add_node("n0")
    for name in OPERATORS:
        api.add(DEPLOYMENTS, "operators", {"metadata": {"name": name}, "status": {"readyReplicas": 1}})
    api.add(POLICIES, "", {"metadata": {"name": "levada-adopt"}})
    return api


def findings(api: FakeApi) -> list[Finding]:
    async def all_findings() -> list[Finding]:
        return [finding async for finding in examine(api)]

    return asyncio.run(all_findings())


def bad(api: FakeApi) -> list[str]:
    return [f"{finding.state}: {finding.text}" for finding in findings(api) if finding.state != "ok"]


def test_a_complete_cluster_has_no_faults(api: ReviewedApi) -> None:
    found = findings(api)
    assert {finding.state for finding in found} == {"ok"}
    texts = {finding.what: finding.text for finding in found}
    assert texts["cluster"] == "v1.36.4, namespace levada"
    assert (texts["nodes"], texts["admission"]) == ("1 node with GPUs: a100", "MutatingAdmissionPolicy levada-adopt")


def test_each_fault_says_what_to_do(api: ReviewedApi) -> None:
    api.minor = "31+"
    api.missing = {"jobsets"}
    api.remove(DEPLOYMENTS, "operators", "mpi-operator", 0)
    api.remove(POLICIES, "", "levada-adopt", 0)
    api.refused = {("patch", "pods"), ("watch", "nodes")}
    FakeCluster(api).add_node("n1", gpu_type="")
    assert bad(api) == [
        "note: v1.31+.4, namespace levada; Levada is tested with Kubernetes 1.35 to 1.37",
        "fault: mpijobs.kubeflow.org/v2beta1 has no ready Deployment mpi-operator, so that its jobs get no pods: install "
        "the MPI operator, 0.8 or later",
        "note: jobsets.jobset.x-k8s.io/v1alpha2 is not installed, so that it is ignored: install JobSet to use it",
        "fault: may not watch nodes: bind the ClusterRole of the chart deploy/helm/levada",
        "fault: may not patch pods: bind the ClusterRole of the chart deploy/helm/levada",
        "fault: the GPU type of n1 is unknown: run `kubectl label node NAME levada.dev/accelerator=TYPE`",
        "note: no admission policy of Levada is installed: create jobs with `suspend: true`, or install the chart "
        "deploy/helm/levada",
    ]


def test_a_cluster_that_does_not_answer_is_one_line(api: ReviewedApi) -> None:
    def away(_verb: str, _resource: Resource) -> None:
        raise ApiError(0, "the API server does not answer: timeout")

    api.fault = away
    assert bad(api) == ["fault: the API server does not answer: timeout: check --kubeconfig and its current context"]


def test_the_verb_connects_to_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}],"
        " users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    assert cli.main(["kubernetes", "doctor", "--kubeconfig", str(config)]) == 1
    assert "the API server does not answer" in capsys.readouterr().out
