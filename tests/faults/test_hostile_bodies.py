"""Hostile request bodies: quick small responses, bounded memory, and no delay of other requests."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.faults.real_server import RealServer, real_server
from tests.timeouts import WAIT_S

#: Size limit of a request body.
MAX_BYTES = 16 * 2**20
JOB: dict[str, Any] = {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": {"name": "a"}}
RUN = {"run": {"command": ["true"]}}


def repeated(head: bytes, part: bytes, tail: bytes, count: int | None = None) -> bytes:
    """A body of *count* parts, by default as many as fit."""
    return head + part * (count or (MAX_BYTES - len(head) - len(tail)) // len(part)) + tail


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def unknown(count: int) -> dict[str, int]:
    """Unknown fields, each similar to a known one."""
    return {f"worker{i}": 0 for i in range(count)}


def wrong_everywhere() -> bytes:
    """A job with 1,900 unknown fields in each of its mappings."""
    inner = {name: unknown(1_900) for name in ("workers", "resources", "parameterServers", "checkpoint", "run")}
    return as_json({**JOB, **unknown(1_900), "metadata": unknown(1_900), "spec": {**inner, **unknown(1_900)}})


def tfjob(env: int) -> dict[str, Any]:
    """A TFJob with invalid environment variables only."""
    pod = {"spec": {"containers": [{"name": "tensorflow", "env": [{"name": 1}] * env}]}}
    spec = {"tfReplicaSpecs": {"Worker": {"replicas": 0, "template": pod}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "t"}, "spec": spec}


def arrays(count: int) -> list[dict[str, Any]]:
    """Jobs of 10,000 indices each."""
    return [{**JOB, "metadata": {"name": f"a{i}"}, "spec": {**RUN, "array": "0-9999"}} for i in range(count)]


def dependent_arrays(count: int) -> list[dict[str, Any]]:
    """Two arrays; every job of the second depends on every job of the first."""
    first, second = arrays(2)
    first["spec"] |= {"array": f"1-{count}"}
    second["spec"] |= {"array": f"1-{count}", "after": ["a0"]}
    return [first, second]


def aliases(first: str, layer: str) -> bytes:
    """Nineteen lines of YAML, each with nine aliases of the line before."""
    rest = [f"a{i}: &a{i} {layer.replace('...', f'*a{i - 1},' * 9)}" for i in range(1, 20)]
    return "\n".join([f"a0: &a0 {first}", *rest]).encode()


#: Path and constructor of each body.
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty documents": ("jobs", lambda: repeated(b"[", b"{},", b"{}]")),
    "documents with one wrong field each": (
        "jobs",
        lambda: as_json([{**JOB, "metadata": {"name": f"a{i}"}, "spec": {"workrs": 1}} for i in range(10_000)]),
    ),
    "documents of unknown fields": ("jobs", lambda: as_json([{**JOB, "spec": unknown(8)} for i in range(9_999)])),
    "more documents than allowed": ("jobs", lambda: as_json([JOB] * 10_001)),
    "unknown fields in all mappings": ("jobs", wrong_everywhere),
    "a million keys": ("jobs", lambda: as_json({f"k{i}": 0 for i in range(1_000_000)})),
    "one key a million times": ("jobs", lambda: repeated(b"{", b'"a":0,', b'"a":0}')),
    "one key thousands of times": ("jobs", lambda: repeated(b"{", b'"a":0,', b'"a":0}', 1_900)),
    "a long key above unknown fields": (
        "jobs",
        lambda: as_json({**JOB, "spec": {**RUN, "kubernetes": {"k" * 8_000_000: unknown(1_900)}, **unknown(1_900)}}),
    ),
    "a long unknown key": ("jobs", lambda: as_json({**JOB, "spec": {"k" * 15_000_000: 1}})),
    "a long name": ("jobs", lambda: as_json({**JOB, "metadata": {"name": "n" * 15_000_000}, "spec": RUN})),
    "long unknown values": ("jobs", lambda: as_json({**JOB, "kind": "J" * 15_000_000})),
    "escapes": ("jobs", lambda: repeated(b'{"kind":"', b"\\u0041", b'"}')),
    "deep lists": ("jobs", lambda: b"[" * 100_000 + b"]" * 100_000),
    "deep mappings": ("jobs", lambda: b'{"a":' * 100_000),
    "an endless string": ("jobs", lambda: b'"' + b'\\"' * (MAX_BYTES // 2 - 1)),
    "a number of a million digits": ("jobs", lambda: b'{"a":' + b"1" * 1_000_000 + b"}"),
    "a fraction of 16 million digits": ("jobs", lambda: b'{"a":1.' + b"3" * (MAX_BYTES - 10) + b"}"),
    "a number beyond the range of floats": ("jobs", lambda: as_json({**JOB, "spec": RUN}).replace(b'"name":"a"', b'"name":1e400')),
    "a list of numbers": ("jobs", lambda: repeated(b"[", b"1,", b"1]")),
    "a manifest of wrong variables": ("jobs", lambda: as_json(tfjob(100_000))),
    "documents of wrong variables": ("jobs", lambda: as_json([tfjob(20) for _ in range(5_000)])),
    "what if of empty documents": ("sim/whatif", lambda: repeated(b'{"documents":[', b"{},", b"{}]}")),
    "a case of many jobs": ("sim/allocate", lambda: repeated(b'{"policy":"fifo","jobs":[', b"{},", b"{}]}")),
    "what if of arrays": ("sim/whatif", lambda: as_json({"documents": arrays(50)})),
    "arrays": ("jobs", lambda: as_json(arrays(50))),
    "an array after an array": ("jobs", lambda: as_json(dependent_arrays(5_000))),
    "many unknown dependencies": (
        "jobs",
        lambda: as_json({**JOB, "spec": {**RUN, "array": "0-9999", "after": [f"b{i}" for i in range(1_000)]}}),
    ),
    "long labels": (
        "jobs",
        lambda: as_json({**JOB, "spec": {**RUN, "array": "0-9999", "labels": {"a": "b" * 15_000_000}}}),
    ),
    "YAML of aliases": ("/training", lambda: aliases("[x, x]", "[...]")),
    "YAML of merged aliases": ("/training", lambda: aliases("{k: 1}", "{<<: [...]}")),
    "YAML of empty documents": ("/training", lambda: b"---\n{}\n" * 30_000),
    "deep YAML": ("/training", lambda: b"a: " + b"[" * 200_000),
    "deep YAML of blocks": ("/training", lambda: b"- " * 100_000),
    "much YAML": ("/training", lambda: repeated(b"", b"- a\n", b"")),
}  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("hostile") / "home", nodes=("a100=4",)) as server:
        yield server.up()


class HttpClient:
    """Sends each request on a new connection."""

    def __init__(self, real: RealServer) -> None:
        self._address, self._token = urlsplit(real.client.address.url), real.client.address.token

    def __call__(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=WAIT_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        kind = "application/yaml" if path == "/training" else "application/json"
        try:
            connection.request(method, path, body, headers | ({"Content-Type": kind} if body else {}))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def peak_mb(real: RealServer) -> float:
    """The peak memory of the server."""
    assert real.process is not None
    status = Path(f"/proc/{real.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def reset_peak(real: RealServer) -> None:
    assert real.process is not None
    Path(f"/proc/{real.process.pid}/clear_refs").write_text("5")


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_costs_little(real: RealServer, name: str) -> None:
    send = HttpClient(real)
    where, make = BODIES[name]
    body = make()
    assert len(body) <= MAX_BYTES
    slowest, done = 0.0, threading.Event()

    def others() -> None:
        nonlocal slowest
        while not done.is_set():
            began = time.monotonic()
            assert send("GET", "/api/v1/jobs?limit=10")[0] == 200
            slowest = max(slowest, time.monotonic() - began)

    other = threading.Thread(target=others)
    reset_peak(real)
    before = peak_mb(real)
    other.start()
    began = time.monotonic()
    try:
        status, response = send("POST", where if where.startswith("/") else f"/api/v1/{where}", body)
    finally:
        done.set()
        other.join()
    took, grew = time.monotonic() - began, peak_mb(real) - before
    summary = f"{status}, {len(response)} bytes after {took:.1f} s, {grew:.0f} MB more, others waited {slowest:.1f} s"
    assert status in (400, 413, 422), summary
    assert len(response) < 200_000, summary
    # Measured: 35 MB, 3 s and 1 s at most. Before there were limits: 4.5 GB, 83 s and 80 s.
    assert grew < 400, summary
    assert took < 30, summary
    assert slowest < 15, summary
