"""In-memory API server with the rules that Levada relies on, behind `KubernetesApi`.

Versions, watches with bookmarks, merge patches that conflict (409), JSON patches whose `test` fails (422), gates that can
only be removed, node selectors that can only be added to while a pod is gated, deletion with a grace period. Controllers
are in `fake_cluster`.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from levada.backends.kubernetes.client import ApiError, Patch, Resource
from tests.kubernetes.backend.api_rules import Object, apply_operation, check_pod, is_over, merge, selector_matches


class Watcher:
    """One open watch."""

    def __init__(self, resource: Resource, selector: str) -> None:
        self.resource, self.selector = resource, selector
        self.lines: asyncio.Queue[bytes | ApiError | None] = asyncio.Queue()

    def send(self, type: str, body: Object) -> None:
        """Queue a line."""
        self.lines.put_nowait(msgspec.json.encode({"type": type, "object": body}))


class FakeApi:
    """Objects by path. `hooks` run after each change; `faults` may raise an `ApiError` before a request."""

    def __init__(self, namespace: str = "levada") -> None:
        self.namespace = namespace
        self.objects: dict[str, Object] = {}
        self.hooks: list[Callable[[str, Object], None]] = []
        self.fault: Callable[[str, Resource], None] = lambda _verb, _resource: None
        #: Collections that do not exist (their CRD is missing), and whether lists can be streamed.
        self.missing: set[str] = set()
        self.streams = True
        #: Writes of Levada: (verb, path).
        self.writes: list[tuple[str, str]] = []
        self.gets = 0
        #: Pods that a PodDisruptionBudget protects.
        self.protected: set[str] = set()
        self.log: list[str] = ["worker started"]
        self._versions = itertools.count(1)
        self.version = 0
        self._uids = itertools.count(1)
        self._watchers: list[Watcher] = []
        #: All changes, by version; versions up to `expired` are forgotten: a watch from them gets 410.
        self._history: list[tuple[int, Resource, str, Object]] = []
        self.expired = 0

    # --- requests of Levada -----------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        self.gets += 1
        await self._arrive("get", resource)
        return msgspec.json.encode(self.read(resource, namespace, name))

    async def list(self, resource: Resource, namespace: str, params: Mapping[str, str]) -> bytes:
        await self._arrive("list", resource)
        items = self.all(resource, params.get("labelSelector", ""))
        start, size = int(params.get("continue", 0)), int(params.get("limit", 500))
        more = str(start + size) if start + size < len(items) else ""
        page = {
            "metadata": {"resourceVersion": str(self.version), "continue": more},
            "items": items[start : start + size],
        }
        return msgspec.json.encode(page)

    async def watch(
        self, resource: Resource, namespace: str, params: Mapping[str, str], read_timeout_s: float
    ) -> AsyncIterator[bytes]:
        await self._arrive("watch", resource)
        watcher = Watcher(resource, params.get("labelSelector", ""))
        if params.get("sendInitialEvents"):
            if not self.streams:
                raise ApiError(422, "sendInitialEvents is forbidden for watch")
            for body in self.all(resource, watcher.selector):
                watcher.send("ADDED", body)
            end = {"resourceVersion": str(self.version), "annotations": {"k8s.io/initial-events-end": "true"}}
            watcher.send("BOOKMARK", {"metadata": end})
        elif int(params["resourceVersion"]) <= self.expired:
            watcher.send("ERROR", {"code": 410, "message": "too old resource version"})
        else:
            for version, changed, kind, body in self._history:
                if (
                    version > int(params["resourceVersion"])
                    and changed == resource
                    and selector_matches(body, watcher.selector)
                ):
                    watcher.send(kind, body)
        self._watchers.append(watcher)
        try:
            yield b""
            while True:
                try:
                    async with asyncio.timeout(read_timeout_s):
                        line = await watcher.lines.get()
                except TimeoutError:
                    raise ApiError(0, "no line in time") from None
                if line is None:
                    return
                if isinstance(line, ApiError):
                    raise line
                yield line
        finally:
            self._watchers.remove(watcher)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], part: str = "") -> bytes:
        await self._arrive("create", resource)
        name = body["metadata"].get("name", "")
        self.writes.append((part or "create", resource.path(namespace, name)))
        if resource.kind == "TokenReview":
            return msgspec.json.encode({**body, "status": self.review(body["spec"]["token"])})
        if part == "eviction":
            if name in self.protected:
                raise ApiError(429, "Cannot evict pod as it would violate the pod's disruption budget.")
            self.remove(resource, namespace, name, None)
            return b"{}"
        if part == "binding":
            self.change(resource, namespace, name, lambda pod: pod["spec"].update(nodeName=body["target"]["name"]))
            return b"{}"
        return msgspec.json.encode(self.add(resource, namespace, dict(body)))

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Patch) -> bytes:
        await self._arrive("patch", resource)
        self.writes.append(("patch", resource.path(namespace, name)))
        before = self.read(resource, namespace, name)
        after = copy.deepcopy(before)
        if isinstance(patch, Mapping):
            version = patch.get("metadata", {}).get("resourceVersion")
            if version is not None and version != before["metadata"]["resourceVersion"]:
                raise ApiError(409, "the object has been modified", "Conflict")
            after = merge(after, msgspec.to_builtins(patch))
        else:
            for operation in patch:
                apply_operation(after, msgspec.to_builtins(operation))
        if resource.kind == "Pod":
            check_pod(before, after)
        return msgspec.json.encode(self.store(resource, after))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        await self._arrive("delete", resource)
        self.writes.append(("delete", resource.path(namespace, name)))
        if self.read(resource, namespace, name)["metadata"]["uid"] != uid:
            raise ApiError(409, "the uid in the precondition does not match", "Conflict")
        self.remove(resource, namespace, name, grace_s)

    async def logs(
        self, namespace: str, pod: str, *, tail: int | None, follow: bool, previous: bool
    ) -> AsyncIterator[str]:
        for line in self.log:
            yield f"2026-11-18T10:00:00.5Z {line}"

    async def close(self) -> None:
        pass

    async def _arrive(self, verb: str, resource: Resource) -> None:
        await asyncio.sleep(0)
        self.fault(verb, resource)
        if resource.plural in self.missing:
            raise ApiError(404, f"the server could not find {resource.plural}")

    def review(self, token: str) -> Object:
        """The answer to a TokenReview: a token is the name of a pod."""
        pods = [body for path, body in self.objects.items() if "/pods/" in path and body["metadata"]["name"] == token]
        prefix = "authentication.kubernetes.io/pod-"
        extra = {f"{prefix}name": [token], f"{prefix}uid": [pods[0]["metadata"]["uid"]]} if pods else {}
        return {"authenticated": bool(pods), "user": {"extra": extra}}

    # --- state, for controllers and tests ---------------------------------------------------------------------------

    def read(self, resource: Resource, namespace: str, name: str) -> Object:
        """One object; raises ApiError 404."""
        found = self.objects.get(resource.path(namespace, name))
        if found is None:
            raise ApiError(404, f'{resource.plural} "{name}" not found', "NotFound")
        return found

    def all(self, resource: Resource, selector: str = "") -> list[Object]:
        """All objects of a kind with a label."""
        tail = f"/{resource.plural}/"
        start = f"/apis/{resource.group}/{resource.version}/" if resource.group else f"/api/{resource.version}/"
        found = [body for path, body in sorted(self.objects.items()) if path.startswith(start) and tail in path]
        return [body for body in found if selector_matches(body, selector)]

    def add(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Create an object; raises ApiError 409."""
        body = copy.deepcopy(body)
        meta = body["metadata"] = dict(body["metadata"])
        if "name" not in meta:
            meta["name"] = f"{meta.get('generateName', '')}{next(self._uids)}"
        if resource.namespaced:
            meta["namespace"] = namespace
        if resource.path(namespace, meta["name"]) in self.objects:
            raise ApiError(409, f"{meta['name']} already exists", "AlreadyExists")
        meta["uid"] = f"uid-{next(self._uids)}"
        meta["creationTimestamp"] = "2026-11-18T10:00:00Z"
        body |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if resource.kind == "Pod":
            body.setdefault("status", {"phase": "Pending"})
        return self.store(resource, body)

    def store(self, resource: Resource, body: Object) -> Object:
        """Write an object as a new version and tell all watches."""
        meta = body["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"])
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self.version = next(self._versions)
        meta["resourceVersion"] = str(self.version)
        self.objects[path] = body
        self._tell(resource, kind, body)
        return body

    def change(self, resource: Resource, namespace: str, name: str, how: Callable[[Object], object]) -> Object:
        """Change an object in place, as a controller does."""
        body = copy.deepcopy(self.read(resource, namespace, name))
        how(body)
        return self.store(resource, body)

    def remove(self, resource: Resource, namespace: str, name: str, grace_s: int | None = 0) -> None:
        """Delete an object: a pod on a node gets a deletion timestamp first, unless there is no grace."""
        body = self.read(resource, namespace, name)
        bound = resource.kind == "Pod" and body["spec"].get("nodeName") and not is_over(body)
        if bound and grace_s != 0:
            if "deletionTimestamp" not in body["metadata"]:
                stamp = {"deletionTimestamp": "2026-11-18T10:00:01Z"}
                self.change(resource, namespace, name, lambda pod: pod["metadata"].update(stamp))
            return
        del self.objects[resource.path(namespace, name)]
        self.version = next(self._versions)
        gone = copy.deepcopy(body)
        gone["metadata"]["resourceVersion"] = str(self.version)
        gone["metadata"].setdefault("deletionTimestamp", "2026-11-18T10:00:01Z")
        self._tell(resource, "DELETED", gone)

    def _tell(self, resource: Resource, kind: str, body: Object) -> None:
        self._history.append((self.version, resource, kind, body))
        for watcher in self._watchers:
            if watcher.resource == resource and selector_matches(body, watcher.selector):
                watcher.send(kind, body)
        for hook in self.hooks:
            hook(kind, body)

    def break_watches(self, error: ApiError | None = None) -> None:
        """End all watches, as a restart of the server does."""
        for watcher in self._watchers:
            watcher.lines.put_nowait(error)
