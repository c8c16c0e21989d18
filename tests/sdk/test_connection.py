"""Discovery of the server, and broken connections."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from levada.errors import BadInput, LevadaError, NoServer, Refused
from levada.sdk import Client, find
from tests.sdk.proxy import proxied
from tests.server.http_server import Served, document, served


@pytest.fixture(autouse=True)
def state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty state directory and no environment variables."""
    monkeypatch.delenv("LEVADA_SERVER", raising=False)
    monkeypatch.delenv("LEVADA_TOKEN", raising=False)
    monkeypatch.delenv("LEVADA_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "levada").mkdir()
    return tmp_path / "levada"


def write_server_file(folder: Path, url: str, token: str) -> None:
    (folder / "server.json").write_text(json.dumps({"url": url, "token": token, "pid": 1}))


def test_order_of_discovery(state_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="levada up"):
        find()
    write_server_file(state_folder, "http://127.0.0.1:1/", "here")
    assert find() == ("http://127.0.0.1:1", "here")
    monkeypatch.setenv("LEVADA_SERVER", "http://127.0.0.1:2")
    assert find() == ("http://127.0.0.1:2", "")
    monkeypatch.setenv("LEVADA_TOKEN", "mine")
    assert find() == ("http://127.0.0.1:2", "mine")
    assert find("http://127.0.0.1:3", "given") == ("http://127.0.0.1:3", "given")
    other = tmp_path / "other"
    other.mkdir()
    write_server_file(other, "http://127.0.0.1:4", "there")
    # The state directory provides the address; its owner's token only without another token.
    assert find(state=str(other)) == ("http://127.0.0.1:4", "mine")
    assert find(state=str(other), token="given") == ("http://127.0.0.1:4", "given")
    assert find(state=str(other), token="") == ("http://127.0.0.1:4", "")
    monkeypatch.delenv("LEVADA_TOKEN")
    assert find(state=str(other)) == ("http://127.0.0.1:4", "there")
    monkeypatch.setenv("LEVADA_STATE", str(other))
    assert find() == ("http://127.0.0.1:2", "")
    monkeypatch.delenv("LEVADA_SERVER")
    assert find() == ("http://127.0.0.1:4", "there")
    assert find(state=str(state_folder)) == ("http://127.0.0.1:1", "here")
    monkeypatch.delenv("LEVADA_STATE")
    # The local server needs no token, also by its URL.
    monkeypatch.setenv("LEVADA_SERVER", "http://127.0.0.1:1")
    assert find() == ("http://127.0.0.1:1", "here")
    with pytest.raises(BadInput, match="http://"):
        find("localhost:80", "t")


@pytest.mark.parametrize(
    "url", ["http://gpu.example.org", "http://127.evil.example:80", "http://192.0.2.1", "http://[::2]:1"]
)
def test_a_token_is_not_sent_in_the_clear_to_other_machines(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="in the clear; use https://"):
        find(url, "secret")
    with pytest.raises(Refused, match="in the clear"):
        Client(url, "secret")
    assert find(url, "") == (url, "")
    assert Client(url, "secret", insecure=True).address.token == "secret"
    assert find(url.replace("http:", "https:"), "secret").token == "secret"
    monkeypatch.setenv("LEVADA_INSECURE", "1")
    assert find(url, "secret").token == "secret"


@pytest.mark.parametrize("url", ["http://localhost:7", "http://127.0.0.9", "http://[::1]:7"])
def test_loopback_needs_no_encryption(url: str) -> None:
    assert find(url, "secret") == (url, "secret")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://x"}', "\0"])
def test_an_invalid_server_file_is_ignored(state_folder: Path, content: str) -> None:
    (state_folder / "server.json").write_text(content)
    with pytest.raises(NoServer):
        find()


def test_an_unreachable_server_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(NoServer, match=f"127.0.0.1:{port}.*levada up"):
        Client(f"http://127.0.0.1:{port}", "t").jobs()
    with pytest.raises(NoServer, match="levada up"):
        Client(f"http://127.0.0.1:{port}", "t").watch()
    assert time.monotonic() - began < 2


def test_a_response_that_is_not_http_is_an_error(up: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.close()

        thread = threading.Thread(target=talk)
        thread.start()
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t", patience_s=0)
        with pytest.raises(LevadaError):
            client.nodes()
        with pytest.raises(LevadaError):
            client.watch()
        thread.join(10)


def test_a_server_below_a_path() -> None:
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            heads.append(connection.recv(65536))
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{"user": "zoe"}')
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/gpu/levada/"
        assert Client(url, "t").me() == {"user": "zoe"}
        thread.join(10)
    assert heads[0].startswith(b"GET /gpu/levada/api/v1/me HTTP/1.1\r\n")


def test_a_submission_with_a_lost_response_is_made_once(up: Served) -> None:
    with proxied(up.url) as proxy, Client(proxy.url, up.tokens["user"]) as client:
        proxy.drop = 2
        [job] = client.submit(document())
        assert proxy.connections >= 3
        assert [listed["id"] for listed in client.jobs()] == [job["id"]]


def test_other_writes_are_not_repeated(up: Served) -> None:
    with proxied(up.url) as proxy, Client(proxy.url, up.tokens["user"]) as client:
        [job] = client.submit(document())
        proxy.drop = 1
        with pytest.raises(NoServer, match="check whether the request was executed"):
            client.update(job["id"], priority=1)
        assert [event["type"] for event in client.events()].count("updated") == 1


def test_a_closed_idle_connection_is_replaced(up: Served) -> None:
    with proxied(up.url) as proxy, Client(proxy.url, up.tokens["user"]) as client:
        [job] = client.submit(document())
        proxy.break_all()
        assert client.update(job["id"], priority=1)["priority"] == 1
        assert proxy.connections == 2
        client.get(job["id"])
        assert proxy.connections == 2


def test_a_watch_resumes_after_a_broken_connection(up: Served) -> None:
    with proxied(up.url) as proxy, Client(proxy.url, up.tokens["user"]) as client, client.watch() as events:
        proxy.break_all()
        # Before the first event, after some events, and while the client does not read.
        first = client.submit([document("a"), document("b")])
        assert [next(events)["id"] for _ in range(4)] == [1, 2, 3, 4]
        proxy.break_all()
        client.cancel(first[0]["id"])
        proxy.break_all()
        client.cancel(first[1]["id"])
        assert [next(events)["id"] for _ in range(2)] == [5, 6]


def test_a_watch_of_one_job_has_no_other_events(client: Client) -> None:
    one, other = client.submit([document("a"), document("b")])
    with client.watch(other["id"], after=0) as events:
        client.cancel(one["id"])
        client.cancel(other["id"])
        assert [next(events)["text"] for _ in range(3)] == ["was submitted", "is Running now", "is Cancelled now"]
    assert list(events) == []


def test_a_watch_follows_a_server_that_restarts_on_another_port(state_folder: Path) -> None:
    with served() as first:
        write_server_file(state_folder, first.url, first.tokens["operator"])
        client = Client()
        events = client.watch(after=0)
        client.submit(document("a"))
        assert next(events)["job"].startswith("a-")
        memory = first.service, first.keys

    @asynccontextmanager
    async def again() -> AsyncIterator[Any]:
        memory[0].news = asyncio.Event()  # the old one belongs to the closed loop
        yield memory

    with served(again) as second:
        write_server_file(state_folder, second.url, second.tokens["operator"])
        client.submit(document("b"))
        assert [next(events)["id"] for _ in range(3)] == [2, 3, 4]
        events.close()
    client.close()


def test_retries_end(up: Served) -> None:
    with proxied(up.url) as proxy:
        client = Client(proxy.url, up.tokens["user"], patience_s=0.3)
        events = client.watch()
    with pytest.raises(NoServer):
        next(events)
    with pytest.raises(NoServer):
        client.jobs()


def test_closing_a_watch_wakes_a_waiting_thread(client: Client) -> None:
    events = client.watch()
    received: list[list[object]] = []
    waiting = threading.Thread(target=lambda: received.append(list(events)))
    waiting.start()
    events.close()
    waiting.join(10)
    assert received == [[]]


def test_refusals_have_advice(up: Served) -> None:
    with pytest.raises(Refused, match="levada token create"):
        Client(up.url, "wrong").jobs()
    with pytest.raises(Refused, match="role operator"):
        Client(up.url, up.tokens["viewer"]).set_policy("fifo")
    up.service.trouble = "the store is unavailable"
    assert Client(up.url).ready() == "the store is unavailable"


def test_the_import_of_the_sdk_is_light() -> None:
    heavy = "asyncio, http.client, ssl, email, msgspec, pydantic, fastapi, yaml, numpy, rich, typer, typing_extensions"
    code = f"import sys, levada.sdk; print([name for name in '{heavy}'.split(', ') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_that_does_not_answer_is_an_error() -> None:
    """The kernel accepts connections, but no response arrives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        urls: list[str] = []

        @contextmanager
        def waiting(url: str) -> Iterator[None]:
            urls.append(url)
            yield

        client = Client(url, "t", timeout_s=0.1, patience_s=0.0, waiting=waiting)
        with pytest.raises(NoServer, match=rf"^the server at {url} has not answered for 0.1 s; try again.*restart it$"):
            client.jobs()
        # The outcome of a write is unknown.
        with pytest.raises(NoServer, match="check whether the request was executed"):
            client.cancel("a")
        assert urls == [url, url]
