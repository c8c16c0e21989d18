"""How the server comes up, where it may listen, and how it goes."""

from __future__ import annotations

import asyncio
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
from levada.server.context import Tuning
from levada.server.hosts import is_loopback
from levada.server.run import serve
from tests.patience import WAIT_S
from tests.server.memory import MemoryKeys, MemoryService
from tests.server.serving import Served, document, served


def test_port_0_becomes_a_free_one_on_loopback(up: Served) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", up.url)
    with served(host="::1") as other:
        assert other.url.startswith("http://[::1]:")
        assert Client(other.url, other.tokens["user"]).me()["user"] == "uma"


def test_others_are_reached_only_encrypted_or_on_purpose() -> None:
    async def tried(host: str) -> None:
        await serve(MemoryService(), MemoryKeys(), host=host)

    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(Refused, match="--certfile"):
            asyncio.run(tried(host))
    with served(host="0.0.0.0", insecure=True) as up:
        # Metrics name users and jobs: elsewhere than on loopback they need a token.
        assert up.ask("GET", "/metrics", role=None).status == 401
        assert up.ask("GET", "/metrics", role="viewer").status == 200
        assert up.ask("GET", "/healthz", role=None).status == 200


def test_a_port_that_is_taken_is_told_in_one_line(up: Served) -> None:
    port = int(up.url.rsplit(":", 1)[1])
    with pytest.raises(LevadaError, match="choose another with --port"):
        asyncio.run(serve(MemoryService(), MemoryKeys(), port=port))


def test_loopback_is_told_apart() -> None:
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


def test_a_certificate_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    for cert in (tmp_path / "cert.pem", tmp_path / "missing.pem"):
        with pytest.raises(LevadaError, match=r"cert\.pem|missing\.pem"):
            asyncio.run(serve(MemoryService(), MemoryKeys(), certfile=str(cert), keyfile=str(cert)))


def test_a_server_that_stopped_is_gone() -> None:
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
def test_a_website_whose_name_leads_here_is_told_nothing(up: Served, host: str) -> None:
    for path in ("/metrics", "/healthz", "/api/openapi.json", "/api/v1/jobs"):
        got = up.ask("GET", path, headers={"Host": host})
        assert (got.status, got.json()["code"]) == (421, "wrong_host")
    url = up.url.replace("http", "ws", 1) + "/api/v1/agents/connect"
    head = {"Authorization": f"Bearer {up.tokens['operator']}"}
    with pytest.raises(InvalidStatus, match="403"):
        connect(url.replace("127.0.0.1", "evil.example"), sock=_wire(up), additional_headers=head, proxy=None)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:80", "127.0.0.1:1", "127.8.9.1", "[::1]:7373", "Gate.example"]
)
def test_a_server_goes_by_the_names_of_its_machine_and_those_it_is_given(host: str) -> None:
    with served(names=["gate.example"]) as up:
        assert up.ask("GET", "/metrics", headers={"Host": host}).status == 200


def _wire(up: Served) -> socket.socket:
    parts = urlsplit(up.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S)


def test_who_joins_is_in_the_audit_log_and_leaves_with_the_token() -> None:
    with served(tuning=Tuning(beat_s=0.05)) as up:
        url = up.url.replace("http", "ws", 1) + "/api/v1/agents/connect"
        made = up.ask("POST", "/api/v1/tokens", {"user": "zoe", "role": "operator"}).json()
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, additional_headers={"Authorization": f"Bearer {up.tokens['user']}"}, proxy=None)
        with connect(url, additional_headers={"Authorization": f"Bearer {made['token']}"}, proxy=None) as socket:
            socket.send("hello")
            assert socket.recv(WAIT_S) == "HELLO"
            notes = up.ask("GET", "/api/v1/audit").json()["items"][-2:]
            assert [(note["user"], note["path"], note["status"], note["detail"]) for note in notes] == [
                ("uma", "/api/v1/agents/connect", 403, "from 127.0.0.1"),
                ("zoe", "/api/v1/agents/connect", 101, "from 127.0.0.1"),
            ]
            up.ask("DELETE", f"/api/v1/tokens/{made['id']}")
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(WAIT_S)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, "token has ended" in closed.value.rcvd.reason) == (1008, True)


def test_files_of_a_ui_are_served_without_a_token(tmp_path: Path) -> None:
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
