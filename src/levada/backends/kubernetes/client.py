"""The narrow API of a cluster that the backend needs.

Tests implement it in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from levada.errors import LevadaError


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of object and the place of its collection in the API."""

    kind: str
    plural: str
    version: str
    group: str = ""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """The path of the collection (of all namespaces if *namespace* is empty), an object or a part of it."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/" + "/".join([*parts, self.plural, *filter(None, (name, part))])


PODS = Resource(kind="Pod", plural="pods", version="v1")
NODES = Resource(kind="Node", plural="nodes", version="v1", namespaced=False)
EVENTS = Resource(kind="Event", plural="events", version="v1")
SERVICES = Resource(kind="Service", plural="services", version="v1")
VOLUMES = Resource(kind="PersistentVolume", plural="persistentvolumes", version="v1", namespaced=False)
CLAIMS = Resource(kind="PersistentVolumeClaim", plural="persistentvolumeclaims", version="v1")
LEASES = Resource(kind="Lease", plural="leases", version="v1", group="coordination.k8s.io")
SLICES = Resource(
    kind="ResourceSlice", plural="resourceslices", version="v1", group="resource.k8s.io", namespaced=False
)
TOKEN_REVIEWS = Resource(
    kind="TokenReview", plural="tokenreviews", version="v1", group="authentication.k8s.io", namespaced=False
)


class ApiError(LevadaError):
    """A request failed; *code* is the HTTP status, 0 without an answer."""

    def __init__(self, code: int, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason

    @property
    def is_away(self) -> bool:
        """The API server does not answer or is overloaded; the request can be repeated."""
        return self.code in (0, 408, 429) or self.code >= 500

    @property
    def is_stale(self) -> bool:
        """The object has changed since it was read."""
        return self.code == 409 and self.reason != "AlreadyExists"

    @property
    def is_missing(self) -> bool:
        """The object, or its kind, does not exist."""
        return self.code == 404

    @property
    def is_expired(self) -> bool:
        """The requested resourceVersion is too old."""
        return self.code == 410


#: A merge patch is an object, a JSON patch a list of operations.
Patch = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class KubernetesApi(Protocol):
    """Requests to the API server. All raise `ApiError`; answers are JSON.

    Writes name the field manager `levada`.
    """

    #: Namespace of Levada's own objects, and of jobs that name none.
    namespace: str

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        """One object."""
        ...

    async def list(self, resource: Resource, namespace: str, params: Mapping[str, str]) -> bytes:
        """A page of the objects of a namespace, or of all if it is empty."""
        ...

    def watch(
        self, resource: Resource, namespace: str, params: Mapping[str, str], read_timeout_s: float
    ) -> AsyncIterator[bytes]:
        """The lines of a watch, after an empty one when the server has accepted it.

        It ends when the server ends it, and raises `ApiError` with code 0 when it falls silent.
        """
        ...

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], part: str = "") -> bytes:
        """Create an object, or a part (`binding`, `eviction`) of the one that the body names."""
        ...

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Patch) -> bytes:
        """Change an object; the type of the patch follows from its form."""
        ...

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete an object if it has this uid; None = its own grace period."""
        ...

    def logs(self, namespace: str, pod: str, *, tail: int | None, follow: bool, previous: bool) -> AsyncIterator[str]:
        """The lines of a pod's main container, each with its timestamp in front."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
