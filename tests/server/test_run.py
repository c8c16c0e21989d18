"""Start, listening address, TLS and stop of the server."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from levada.errors import LevadaError, NoServer, Refused
from levada.sdk import Client
from levada.server.allowed_hosts import is_loopback
from levada.server.context import Context, ServerTuning
from levada.server.run import Listen, serve
from tests.server.http_server import Served, document, served
from tests.server.memory_service import MemoryKeys, MemoryService
from tests.timeouts import WAIT_S


def test_port_0_is_a_free_port_on_loopback(up: Served) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", up.url)
    with served(host="::1") as other:
        assert other.url.startswith("http://[::1]:")
        assert Client(other.url, other.tokens["user"]).me()["user"] == "uma"


async def test_other_addresses_need_tls_or_insecure() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(Refused, match="--certfile"):
            await serve(Context(MemoryService(), MemoryKeys()), Listen(host=host), started=str)
    with served(host="0.0.0.0", insecure=True) as up:
        # Metrics contain users and jobs: they need a token except on loopback.
        assert up.ask("GET", "/metrics", role=None).status == 401
        assert up.ask("GET", "/metrics", role="viewer").status == 200
        assert up.ask("GET", "/healthz", role=None).status == 200


async def test_a_port_in_use_is_an_error(up: Served) -> None:
    port = int(up.url.rsplit(":", 1)[1])
    with pytest.raises(LevadaError, match="use another --port"):
        await serve(Context(MemoryService(), MemoryKeys()), Listen(port=port), started=str)


def test_loopback_addresses() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    return cert, key


def test_tls(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate
    with served(certfile=str(cert), keyfile=str(key)) as up:
        assert up.url.startswith("https://")
        with pytest.raises(LevadaError, match=r"CERTIFICATE|certificate"):
            Client(up.url, up.tokens["user"]).me()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with Client(up.url, up.tokens["user"]) as client:
            assert client.me()["user"] == "uma"
            [job] = client.submit(document())
            with client.watch(after=0) as events:
                assert next(events)["job"] == job["id"]
        host, port = "127.0.0.1", int(up.url.rsplit(":", 1)[1])
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((host, port), timeout=WAIT_S) as plain, old.wrap_socket(plain) as wire:
            assert wire.version() in ("TLSv1.2", "TLSv1.3")


async def test_an_invalid_certificate_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    for cert in (tmp_path / "cert.pem", tmp_path / "missing.pem"):
        with pytest.raises(LevadaError, match=r"cert\.pem|missing\.pem"):
            await serve(
                Context(MemoryService(), MemoryKeys()), Listen(certfile=str(cert), keyfile=str(cert)), started=str
            )


def test_a_stopped_server_does_not_answer() -> None:
    with served() as up:
        client = Client(up.url, up.tokens["operator"], patience_s=0.2)
        client.submit(document())
        up.stop()
        up.wait()
        with pytest.raises(NoServer):
            client.jobs()


def test_agents_connect_with_an_operators_token(up: Served) -> None:
    url = up.url.replace("http", "ws", 1) + "/api/v1/agents/connect"

    def agent(role: str | None) -> object:
        headers = {} if role is None else {"Authorization": f"Bearer {up.tokens[role]}"}
        return connect(url, additional_headers=headers, open_timeout=WAIT_S, proxy=None)

    for role in (None, "viewer", "user"):
        with pytest.raises(InvalidStatus, match="403"):
            agent(role)
    with agent("operator") as socket:  # type: ignore[attr-defined]
        socket.send("hello")
        assert socket.recv(WAIT_S) == "HELLO"
        socket.send("ü" * 100_000)
        assert socket.recv(WAIT_S) == "Ü" * 100_000


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7373", "127.0.0.1.evil.example", "192.0.2.1", "[2001:db8::1]:1"]
)
def test_requests_with_a_foreign_host_are_rejected(up: Served, host: str) -> None:
    for path in ("/metrics", "/healthz", "/api/openapi.json", "/api/v1/jobs"):
        response = up.ask("GET", path, headers={"Host": host})
        assert (response.status, response.json()["code"]) == (421, "wrong_host")
    url = up.url.replace("http", "ws", 1) + "/api/v1/agents/connect"
    head = {"Authorization": f"Bearer {up.tokens['operator']}"}
    with pytest.raises(InvalidStatus, match="403"):
        connect(url.replace("127.0.0.1", "evil.example"), sock=_wire(up), additional_headers=head, proxy=None)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:80", "127.0.0.1:1", "127.8.9.1", "[::1]:7373", "Gate.example"]
)
def test_loopback_and_configured_hosts_are_accepted(host: str) -> None:
    with served(names=["gate.example"]) as up:
        assert up.ask("GET", "/metrics", headers={"Host": host}).status == 200


def _wire(up: Served) -> socket.socket:
    parts = urlsplit(up.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S)


def test_an_agent_is_in_the_audit_log_and_disconnected_with_its_token() -> None:
    with served(tuning=ServerTuning(beat_s=0.05)) as up:
        url = up.url.replace("http", "ws", 1) + "/api/v1/agents/connect"
        created = up.ask("POST", "/api/v1/tokens", {"user": "zoe", "role": "operator"}).json()
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, additional_headers={"Authorization": f"Bearer {up.tokens['user']}"}, proxy=None)
        with connect(url, additional_headers={"Authorization": f"Bearer {created['token']}"}, proxy=None) as socket:
            socket.send("hello")
            assert socket.recv(WAIT_S) == "HELLO"
            notes = up.ask("GET", "/api/v1/audit").json()["items"][-2:]
            assert [(note["user"], note["path"], note["status"], note["detail"]) for note in notes] == [
                ("uma", "/api/v1/agents/connect", 403, "from 127.0.0.1"),
                ("zoe", "/api/v1/agents/connect", 101, "from 127.0.0.1"),
            ]
            up.ask("DELETE", f"/api/v1/tokens/{created['id']}")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(WAIT_S)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "token has expired" in closed.value.rcvd.reason) == (1008, True)


def test_ui_files_need_no_token(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<h1>Levada</h1>")
    (tmp_path / "app.js").write_text("1")
    with served(ui=tmp_path) as up:
        assert up.ask("GET", "/", role=None).text == "<h1>Levada</h1>"
        assert up.ask("GET", "/app.js", role=None).status == 200
        assert up.ask("GET", "/../../etc/passwd", role=None).status == 404
        assert up.ask("GET", "/nothing", role=None).headers["content-type"] == "application/problem+json"
        assert up.ask("POST", "/app.js", role=None).headers["allow"] == "GET, HEAD"
        assert up.ask("GET", "/api/v1/jobs", role=None).status == 401
        assert up.ask("GET", "/api/v1/jobs").status == 200
