"""Connection: requests as the API server expects them, over a transport in memory."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from levada.backends.kubernetes.client import PODS, ApiError, Resource
from levada.backends.kubernetes.connection import Connection
from levada.errors import LevadaError

CONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "http://k.test"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: k, user: u, namespace: train}}]
"""


class Server:
    """Records requests and gives one answer."""

    def __init__(self, folder: Path, code: int = 200, content: bytes = b"{}") -> None:
        self.requests: list[httpx2.Request] = []
        self._answer = code, content
        (folder / "config").write_text(CONFIG)
        self.connection = Connection(str(folder / "config"))
        self.connection._client = httpx2.AsyncClient(
            base_url="http://k.test", transport=httpx2.MockTransport(self._handle)
        )

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        code, content = self._answer
        return httpx2.Response(code, content=content)

    @property
    def last(self) -> tuple[str, str, str]:
        request = self.requests[-1]
        return request.method, str(request.url), request.headers.get("Content-Type", "")


async def test_writes_name_the_field_manager_and_the_type_of_patch(tmp_path: Path) -> None:
    server = Server(tmp_path)
    api = server.connection
    assert api.namespace == "train"
    await api.patch(PODS, "ns", "p", {"metadata": {}})
    pod = "http://k.test/api/v1/namespaces/ns/pods/p"
    assert server.last == ("PATCH", f"{pod}?fieldManager=levada", "application/merge-patch+json")
    await api.patch(PODS, "ns", "p", [{"op": "remove", "path": "/x"}])
    assert server.last == ("PATCH", f"{pod}?fieldManager=levada", "application/json-patch+json")
    await api.create(PODS, "ns", {"metadata": {"name": "p"}}, "eviction")
    assert server.last[:2] == ("POST", f"{pod}/eviction?fieldManager=levada")
    await api.delete(PODS, "ns", "p", uid="u", grace_s=0)
    assert server.last[:2] == ("DELETE", pod)
    body = json.loads(server.requests[-1].content)
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u"}, 0)


async def test_watch_yields_lines_after_it_was_accepted(tmp_path: Path) -> None:
    server = Server(tmp_path, content=b'{"a":1}\n{"b":2}\n')
    resource = Resource(kind="Job", plural="jobs", version="v1", group="batch")
    lines = [line async for line in server.connection.watch(resource, "", {"labelSelector": "x"}, 5.0)]
    assert [line for line in lines if line] == [b'{"a":1}', b'{"b":2}']
    assert lines[0] == b""
    assert server.last[1] == "http://k.test/apis/batch/v1/jobs?labelSelector=x&watch=1"


@pytest.mark.parametrize(
    ("content", "text", "reason"),
    [(b'{"message": "conflict", "reason": "Conflict"}', "conflict", "Conflict"), (b"<html>", "<html>", ""), (b"", "HTTP status 409", "")],
)  # fmt: skip
async def test_errors_carry_code_message_and_reason(tmp_path: Path, content: bytes, text: str, reason: str) -> None:
    server = Server(tmp_path, 409, content)
    with pytest.raises(ApiError) as caught:
        await server.connection.get(PODS, "ns", "p")
    assert (caught.value.code, str(caught.value), caught.value.reason) == (409, text, reason)
    assert caught.value.is_stale


async def test_no_answer_has_code_0(tmp_path: Path) -> None:
    server = Server(tmp_path)

    def refuse(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    server.connection._client = httpx2.AsyncClient(base_url="http://k.test", transport=httpx2.MockTransport(refuse))
    with pytest.raises(ApiError, match="does not answer: refused") as caught:
        await server.connection.get(PODS, "ns", "p")
    assert caught.value.is_away


def test_missing_configuration_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LevadaError, match="cannot read the Kubernetes configuration"):
        Connection(str(tmp_path / "absent"))
