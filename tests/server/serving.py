"""A server on loopback in a thread of its own, so that tests talk to it as anybody would."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from levada.server.ports import Role
from levada.server.run import serve
from tests.patience import WAIT_S
from tests.server.memory import MemoryKeys, MemoryService

KEY = b"k" * 32
JOB = {
    "apiVersion": "levada.dev/v1",
    "kind": "Job",
    "metadata": {"name": "resnet50"},
    "spec": {"workers": {"min": 1, "max": 4}, "run": {"command": ["python", "train.py"]}},
}


def document(name: str = "resnet50", **spec: Any) -> dict[str, Any]:
    """A job as a user writes it."""
    return {**JOB, "metadata": {"name": name}, "spec": {**JOB["spec"], **spec}}  # type: ignore[dict-item]


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class Served:
    """A running server, its service and one token per role."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Any, keys: Any, tokens: dict[str, str]) -> None:
        self.loop, self.service, self.keys, self.tokens = loop, service, keys, tokens
        self.url = ""
        self.stopping = asyncio.Event()
        self.thread: threading.Thread | None = None

    def reset(self) -> None:
        """Forgets all jobs; the tokens of the roles stay."""
        self.service.__init__()
        keep = {token_id: token for token_id, token in self.keys.tokens.items() if token["user"] in USERS.values()}
        self.keys.tokens, self.keys.notes = keep, []

    async def settle(self) -> None:
        """Waits until the server itself watches, which is not counted among those who do."""
        if isinstance(self.service, MemoryService):
            while not self.service.watches:
                await asyncio.sleep(0.001)
            self.service.watches = set()

    def stop(self) -> None:
        """Asks the server to stop."""
        self.loop.call_soon_threadsafe(self.stopping.set)

    def wait(self) -> None:
        """Until it has stopped."""
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the server did not stop"

    def run(self, call: Callable[[], Any]) -> Any:
        """The result of *call*, made on the server's own loop; a coroutine is awaited there."""

        async def made() -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(made(), self.loop).result(WAIT_S)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        role: str | None = "admin",
        token: str | None = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        """One request over a connection of its own."""
        sent = dict(headers or {})
        if token or role:
            sent["Authorization"] = f"Bearer {token or self.tokens[role or '']}"
        content = raw
        if content is None and body is not None:
            content = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
        try:
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            got = {key.lower(): value for key, value in response.getheaders()}
            return Answer(response.status, got, response.read())
        finally:
            connection.close()


@asynccontextmanager
async def _in_memory() -> AsyncIterator[tuple[Any, Any]]:
    yield MemoryService(), MemoryKeys()


#: Who the tokens of the roles belong to.
USERS = {"viewer": "vera", "user": "uma", "operator": "otto", "admin": "ada"}


@contextmanager
def served(backing: Any = _in_memory, **options: Any) -> Iterator[Served]:
    """Serves what *backing* (an async context of service and keys) gives, until the block is left."""
    ready: threading.Event = threading.Event()
    box: dict[str, Any] = {}

    async def main() -> None:
        async with backing() as (service, keys):
            tokens = {word: (await keys.create(user, Role.of(word), None))[1] for word, user in USERS.items()}
            up = Served(asyncio.get_running_loop(), service, keys, tokens)
            box["up"] = up

            def started(url: str) -> None:
                up.url = url
                ready.set()

            await serve(service, keys, worker_key=KEY, started=started, stop=up.stopping, **options)

    def target() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=target)
    thread.start()
    try:
        assert ready.wait(WAIT_S), "the server did not start"
        if "error" in box:
            raise box["error"]
        box["up"].thread = thread
        box["up"].run(box["up"].settle)
        yield box["up"]
    finally:
        if "up" in box and thread.is_alive():
            box["up"].stop()
        thread.join(WAIT_S)
        assert not thread.is_alive(), "the server did not stop"
    if "error" in box:
        raise box["error"]
