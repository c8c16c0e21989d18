"""`levada kubernetes`: check a cluster before and after Levada is installed in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levada.cli.doctor import Finding, print_findings
from levada.cli.extras import require
from levada.cli.formatting import counted
from levada.cli.output import TextOrJson

if TYPE_CHECKING:
    from levada.backends.kubernetes.client import KubernetesApi, Resource

#: Supported minor versions of Kubernetes 1.
_OLDEST, _NEWEST = 35, 37
#: Operators by the group of their jobs: the Deployment, and what to install.
_OPERATORS = {
    "kubeflow.org/v2beta1": ("mpi-operator", "the MPI operator, 0.8 or later"),
    "kubeflow.org/v1": ("training-operator", "the Kubeflow training operator v1"),
    "trainer.kubeflow.org/v1alpha1": ("kubeflow-trainer-controller-manager", "Kubeflow Trainer 2"),
    "jobset.x-k8s.io/v1alpha2": ("jobset-controller-manager", "JobSet"),
}
#: What the server does: verbs, API group and resource. Rights on jobs follow from the installed kinds.
_RIGHTS = (
    (("list", "watch"), "", "nodes"),
    (("list", "watch", "patch", "create", "delete"), "", "pods"),
    (("create",), "", "pods/binding"),
    (("create",), "", "pods/eviction"),
    (("get",), "", "pods/log"),
    (("list", "watch"), "", "persistentvolumes"),
    (("list", "watch"), "", "persistentvolumeclaims"),
    (("create",), "", "events"),
    (("create",), "", "services"),
    (("get", "list", "watch", "create", "patch"), "coordination.k8s.io", "leases"),
    (("create",), "authentication.k8s.io", "tokenreviews"),
    (("list", "watch"), "resource.k8s.io", "resourceslices"),
)
_JOB_VERBS = ("list", "watch", "patch", "create", "delete")
_POLICIES = ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy")
_FORBIDDEN = 403
_MOST_NAMED = 5


def register(app: typer.Typer) -> None:
    """Add the group `kubernetes`."""
    group = typer.Typer(help="Check a Kubernetes cluster.", rich_markup_mode=None)
    # A callback keeps the name of the only command.
    group.callback()(lambda: None)
    group.command("doctor")(doctor)
    app.add_typer(group, name="kubernetes")


def doctor(
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubernetes configuration file.",
            show_default="the service account of this pod, $KUBECONFIG or ~/.kube/config",
        ),
    ] = None,
    output: Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")] = TextOrJson.TEXT,
) -> None:
    """Check whether a cluster is ready for Levada.

    It checks versions, CRDs, operators, rights, node labels and admission policies.

    Rights are those of the user in the configuration file; run it in the pod of the server to check the server's own.
    Exit code: 0 no faults, 1 at least one fault.
    """
    require("kubernetes", "levada kubernetes doctor")
    import asyncio

    from levada.backends.kubernetes.connection import Connection

    async def check() -> list[Finding]:
        api = Connection(kubeconfig)
        try:
            return [finding async for finding in examine(api)]
        finally:
            await api.close()

    print_findings(asyncio.run(check()), output)


async def examine(api: KubernetesApi) -> AsyncIterator[Finding]:
    """Yield the findings about a cluster; only one if it cannot be reached."""
    from levada.backends.kubernetes.client import ApiError

    try:
        yield await _version(api)
    except ApiError as error:
        yield Finding("cluster", "fault", f"{error}: check --kubeconfig and its current context")
        return
    async for finding in _kinds(api):
        yield finding
    async for finding in _rights(api):
        yield finding
    async for finding in _nodes(api):
        yield finding
    async for finding in _policies(api):
        yield finding


async def _version(api: KubernetesApi) -> Finding:
    from levada.backends.kubernetes.client import Resource

    class Version(Resource, frozen=True):
        """Not a collection: its path is the root's."""

        def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
            return "/version"

    info = _decoded(await api.get(Version(kind="Version", plural="version", version=""), "", ""))
    minor = "".join(filter(str.isdecimal, str(info.get("minor", ""))))
    is_supported = info.get("major") == "1" and minor.isdecimal() and _OLDEST <= int(minor) <= _NEWEST
    text = f"{info.get('gitVersion')}, namespace {api.namespace}"
    if is_supported:
        return Finding("cluster", "ok", text)
    return Finding("cluster", "note", f"{text}; Levada is tested with Kubernetes 1.{_OLDEST} to 1.{_NEWEST}")


async def _kinds(api: KubernetesApi) -> AsyncIterator[Finding]:
    """CRDs and their operators; a kind without a CRD is switched off."""
    from levada.backends.kubernetes.client import Resource
    from levada.backends.kubernetes.kinds import KINDS

    deployments = Resource(kind="Deployment", plural="deployments", version="v1", group="apps")
    running = await _list(api, deployments)
    ready = {item["metadata"]["name"] for item in running or () if (item.get("status") or {}).get("readyReplicas")}
    for kind in KINDS:
        resource = kind.resource
        name = f"{resource.plural}.{resource.group}/{resource.version}"
        if resource.group in ("", "batch"):
            continue
        if await _list(api, resource, limit=1) is None:
            operator = _OPERATORS.get(resource.api_version)
            what = "the CRDs of the chart deploy/helm/levada" if operator is None else operator[1]
            yield Finding("kind", "note", f"{name} is not installed, so that it is ignored: install {what} to use it")
        elif (operator := _OPERATORS.get(resource.api_version)) is None or operator[0] in ready:
            yield Finding("kind", "ok", name)
        elif running is None:
            yield Finding("kind", "ok", f"{name}; its operator was not checked: Deployments may not be listed")
        else:
            text = f"{name} has no ready Deployment {operator[0]}, so that its jobs get no pods: install {operator[1]}"
            yield Finding("operator", "fault", text)


async def _rights(api: KubernetesApi) -> AsyncIterator[Finding]:
    from levada.backends.kubernetes.kinds import KINDS

    resources = [kind.resource for kind in KINDS if kind.resource.group]
    rights = [*_RIGHTS, *((_JOB_VERBS, resource.group, resource.plural) for resource in resources)]
    missing = []
    for verbs, group, name in rights:
        refused = [verb for verb in verbs if not await _may(api, verb, group, name)]
        if refused:
            missing.append(Finding("rights", "fault", f"may not {', '.join(refused)} {name}{group and f'.{group}'}"))
    for finding in missing:
        yield finding._replace(text=f"{finding.text}: bind the ClusterRole of the chart deploy/helm/levada")
    if not missing:
        yield Finding("rights", "ok", f"all {len(rights)} are granted")


async def _may(api: KubernetesApi, verb: str, group: str, name: str) -> bool:
    from levada.backends.kubernetes.client import Resource

    reviews = Resource(
        kind="SelfSubjectAccessReview",
        plural="selfsubjectaccessreviews",
        version="v1",
        group="authorization.k8s.io",
        namespaced=False,
    )
    resource, _, part = name.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part}
    if resource == "leases":
        attributes["namespace"] = api.namespace
    body = {"apiVersion": reviews.api_version, "kind": reviews.kind, "metadata": {}}
    answer = _decoded(await api.create(reviews, "", {**body, "spec": {"resourceAttributes": attributes}}))
    return bool((answer.get("status") or {}).get("allowed"))


async def _nodes(api: KubernetesApi) -> AsyncIterator[Finding]:
    from levada.backends.kubernetes import names
    from levada.backends.kubernetes.client import NODES

    nodes = await _list(api, NODES) or []
    gpus = [node for node in nodes if any(name in node["status"].get("allocatable", {}) for name in names.GPUS)]
    labels = [node["metadata"].get("labels") or {} for node in gpus]
    bare = [
        node["metadata"]["name"]
        for node, own in zip(gpus, labels, strict=True)
        if not any(own.get(label) for label in names.ACCELERATORS)
    ]
    if not gpus:
        text = f"none of {counted(len(nodes), 'node')} has GPUs: install the device plugin of your GPUs"
        yield Finding("nodes", "note", text)
    elif bare:
        some = ", ".join(bare[:_MOST_NAMED]) + (" …" if len(bare) > _MOST_NAMED else "")
        todo = f"run `kubectl label node NAME {names.ACCELERATORS[0]}=TYPE`"
        yield Finding("nodes", "fault", f"the GPU type of {some} is unknown: {todo}")
    else:
        types = {next(own[label] for label in names.ACCELERATORS if own.get(label)) for own in labels}
        yield Finding("nodes", "ok", f"{counted(len(gpus), 'node')} with GPUs: {', '.join(sorted(types))}")


async def _policies(api: KubernetesApi) -> AsyncIterator[Finding]:
    """One of the admission policies must be installed, else users must suspend their jobs themselves."""
    from levada.backends.kubernetes.client import Resource

    for kind in _POLICIES:
        group, plural = "admissionregistration.k8s.io", f"{kind.removesuffix('y').lower()}ies"
        resource = Resource(kind=kind, plural=plural, version="v1", group=group, namespaced=False)
        installed = [item["metadata"]["name"] for item in await _list(api, resource) or ()]
        own = [name for name in installed if "levada" in name]
        if own:
            yield Finding("admission", "ok", f"{kind} {', '.join(own)}")
            return
    text = (
        "no admission policy of Levada is installed: create jobs with `suspend: true`, or install the chart "
        "deploy/helm/levada"
    )
    yield Finding("admission", "note", text)


async def _list(api: KubernetesApi, resource: Resource, limit: int = 0) -> list[dict[str, Any]] | None:
    """Return the objects of a collection; None if it does not exist or may not be listed."""
    from levada.backends.kubernetes.client import ApiError

    try:
        page = _decoded(await api.list(resource, "", {"limit": str(limit)} if limit else {}))
    except ApiError as error:
        if error.is_missing or error.code == _FORBIDDEN:
            return None
        raise
    items: list[dict[str, Any]] = page.get("items") or []
    return items


def _decoded(content: bytes) -> dict[str, Any]:
    import msgspec

    return msgspec.json.decode(content, type=dict[str, Any])
