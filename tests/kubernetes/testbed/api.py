"""Raw calls of the Kubernetes API: paths and JSON in, JSON out; one connection for each call."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from tests.timeouts import WAIT_S

Object = dict[str, Any]
Patch = Literal["merge", "json", "strategic-merge", "apply"]
T = TypeVar("T")

_POLL_S = 0.02


class ApiError(Exception):
    """The API server refused a call."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Api:
    """A client of one API server on loopback."""

    def __init__(self, port: int, ca: Path, token: str) -> None:
        self._port = port
        self._ca = ca
        self._token = token

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._ca))

    def get(self, path: str, **query: str) -> Object:
        """Read an object or a list."""
        return self._call("GET", _with(path, query))

    def items(self, path: str, selector: str = "") -> list[Object]:
        """The objects of a list, optionally only those with labels."""
        query = {"labelSelector": selector} if selector else {}
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def post(self, path: str, body: Object) -> Object:
        """Create an object."""
        return self._call("POST", path, body)

    def put(self, path: str, body: Object) -> Object:
        """Replace an object."""
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Object | list[Object], kind: Patch = "merge", **query: str) -> Object:
        """Change an object."""
        content = "application/apply-patch+yaml" if kind == "apply" else f"application/{kind}-patch+json"
        return self._call("PATCH", _with(path, query), body, content)

    def delete(self, path: str, **query: str) -> Object:
        """Delete an object or a collection; its dependents follow in the background."""
        return self._call("DELETE", _with(path, {"propagationPolicy": "Background"} | query))

    def exists(self, path: str) -> bool:
        """Whether an object exists."""
        try:
            self.get(path)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

    def serves(self, group: str, resource: str) -> bool:
        """Whether discovery lists a resource, e.g. `kubeflow.org` and `mpijobs`, in any version."""
        try:
            versions = [version["groupVersion"] for version in self.get(f"/apis/{group}")["versions"]]
            found = [entry["name"] for version in versions for entry in self.get(f"/apis/{version}")["resources"]]
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return resource in found

    def is_ready(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            self._request("GET", "/readyz")
        except ApiError:
            return False
        return True

    def _call(self, method: str, path: str, body: object = None, content: str = "application/json") -> Object:
        answer: Object = json.loads(self._request(method, path, None if body is None else json.dumps(body), content))
        return answer

    def _request(self, method: str, path: str, body: str | None = None, content: str = "application/json") -> bytes:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=WAIT_S, context=self._tls)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        try:
            connection.request(method, path, None if body is None else body.encode(), headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise ApiError(response.status, _message(data))
        return data


def wait_for(look: Callable[[], T | None], what: str = "", timeout_s: float = WAIT_S) -> T:
    """Call `look` until it returns something true, and return that."""
    end = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what or look}; last: {found!r}")
        time.sleep(_POLL_S)
    return found


def answers(port: int, path: str) -> bool:
    """Whether a server on loopback answers an HTTP GET with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except http.client.HTTPException:
        return False
    finally:
        connection.close()


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace")
