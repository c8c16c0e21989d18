"""Connection to a real API server, configured and authenticated by lightkube.

The backend sends its own requests through lightkube's HTTP client: lightkube's watch cannot ask for bookmarks or
initial events, and its models decode every field of a pod, where Levada reads a dozen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import msgspec
from lightkube import ConfigError, KubeConfig
from lightkube.config import client_adapter

from levada.backends.kubernetes.client import PODS, ApiError, Patch, Resource
from levada.backends.kubernetes.names import FIELD_MANAGER
from levada.errors import LevadaError

_TIMEOUT_S = 30.0
#: Requests at the same time, besides watches and logs: more connections cost more than they bring.
_PARALLEL = 24
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=2 * _PARALLEL, keepalive_expiry=60.0)
_MANAGER = {"fieldManager": FIELD_MANAGER}


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""


class Connection:
    """Implements `KubernetesApi` over HTTP."""

    def __init__(self, kubeconfig: str | None = None, namespace: str = "") -> None:
        """Use the file *kubeconfig*; None: the service account of this pod, `$KUBECONFIG` or `~/.kube/config`."""
        try:
            found = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(kubeconfig)
            config = found.get()
        except ConfigError as error:
            raise LevadaError(f"cannot read the Kubernetes configuration: {error}") from error
        if config is None:
            raise LevadaError("no Kubernetes context is set: pass --kubeconfig FILE with a current context")
        params = client_adapter.ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT_S))
        self._client = httpx2.AsyncClient(**params.httpx_params(config), limits=_LIMITS)
        self._slots = asyncio.Semaphore(_PARALLEL)
        self.namespace = namespace or config.namespace

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        """One object."""
        return await self._send("GET", resource.path(namespace, name))

    async def list(self, resource: Resource, namespace: str, params: Mapping[str, str]) -> bytes:
        """A page of the objects of a namespace, or of all."""
        return await self._send("GET", resource.path(namespace), params)

    async def watch(
        self, resource: Resource, namespace: str, params: Mapping[str, str], read_timeout_s: float
    ) -> AsyncIterator[bytes]:
        """The lines of a watch."""
        timeout = httpx2.Timeout(_TIMEOUT_S, read=read_timeout_s)
        async for line in self._lines(resource.path(namespace), {**params, "watch": "1"}, timeout, accepted=True):
            yield line

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], part: str = "") -> bytes:
        """Create an object, or a part of one."""
        path = resource.path(namespace, body["metadata"]["name"] if part else "", part)
        return await self._send("POST", path, _MANAGER, body, "application/json")

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Patch) -> bytes:
        """Change an object."""
        content = "application/merge-patch+json" if isinstance(patch, Mapping) else "application/json-patch+json"
        return await self._send("PATCH", resource.path(namespace, name), _MANAGER, patch, content)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete an object and, in the background, its dependents."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self._send("DELETE", resource.path(namespace, name), None, options, "application/json")

    async def logs(
        self, namespace: str, pod: str, *, tail: int | None, follow: bool, previous: bool
    ) -> AsyncIterator[str]:
        """The lines of a pod's main container."""
        params = {"timestamps": "true", "follow": str(follow).lower(), "previous": str(previous).lower()}
        if tail is not None:
            params["tailLines"] = str(tail)
        timeout = httpx2.Timeout(_TIMEOUT_S, read=None if follow else _TIMEOUT_S)
        async for line in self._lines(PODS.path(namespace, pod, "log"), params, timeout):
            yield line.decode(errors="replace")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None, content: str = ""
    ) -> bytes:
        headers = {"Content-Type": content} if content else None
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._slots:
                answer = await self._client.request(method, path, params=params, content=data, headers=headers)
        except httpx2.HTTPError as error:
            raise _no_answer(error) from error
        if answer.is_error:
            raise _error(answer.status_code, answer.content)
        return answer.content

    async def _lines(
        self, path: str, params: Mapping[str, str], timeout: httpx2.Timeout, accepted: bool = False
    ) -> AsyncIterator[bytes]:
        try:
            async with self._client.stream("GET", path, params=params, timeout=timeout) as answer:
                if answer.is_error:
                    raise _error(answer.status_code, await answer.aread())
                if accepted:
                    yield b""
                rest = b""
                async for chunk in answer.aiter_bytes():
                    # Splitting bytes at newlines is far cheaper than `aiter_lines`, which decodes text.
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line
                if rest:
                    yield rest
        except httpx2.HTTPError as error:
            raise _no_answer(error) from error


def _no_answer(error: httpx2.HTTPError) -> ApiError:
    return ApiError(0, f"the API server does not answer: {str(error) or type(error).__name__}")


def _error(code: int, content: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(content, type=_Status)
    except msgspec.DecodeError:
        status = _Status(message=content[:200].decode(errors="replace"))
    return ApiError(code, status.message or f"HTTP status {code}", status.reason)
