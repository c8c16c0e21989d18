"""An HTTP server on loopback, in its own thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from levada.server.context import Context, ServerTuning
from levada.server.interfaces import Role
from levada.server.run import Listen, serve
from tests.server.memory_service import MemoryKeys, MemoryService
from tests.timeouts import WAIT_S

KEY = b"k" * 32
_TUNING = ServerTuning()
JOB = {
    "apiVersion": "levada.dev/v1",
    "kind": "Job",
    "metadata": {"name": "resnet50"},
    "spec": {"workers": {"min": 1, "max": 4}, "run": {"command": ["python", "train.py"]}},
}


def document(name: str = "resnet50", **spec: Any) -> dict[str, Any]:
    """A job file."""
    return {**JOB, "metadata": {"name": name}, "spec": {**JOB["spec"], **spec}}  # type: ignore[dict-item]


class Answer:
    """An HTTP response."""

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
        """Remove all jobs; keep the tokens of the roles."""
        self.service.__init__()
        tokens = {token_id: token for token_id, token in self.keys.tokens.items() if token["user"] in USERS.values()}
        self.keys.tokens, self.keys.entries = tokens, []

    async def settle(self) -> None:
        """Wait until the server's own watch is open, and do not count it."""
        if isinstance(self.service, MemoryService):
            while not self.service.watches:
                await asyncio.sleep(0.001)
            self.service.watches = set()

    def stop(self) -> None:
        """Request a stop."""
        self.loop.call_soon_threadsafe(self.stopping.set)

    def wait(self) -> None:
        """Wait until the server has stopped."""
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the server did not stop"

    def run(self, call: Callable[[], Any]) -> Any:
        """Run *call* on the event loop of the server and return its result; awaits a coroutine."""

        async def run() -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

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
        """Send one request over a new connection."""
        all_headers = dict(headers or {})
        if token or role:
            all_headers["Authorization"] = f"Bearer {token or self.tokens[role or '']}"
        content = raw
        if content is None and body is not None:
            content = json.dumps(body).encode()
            all_headers.setdefault("Content-Type", "application/json")
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
        try:
            connection.request(method, path, content, all_headers)
            response = connection.getresponse()
            response_headers = {key.lower(): value for key, value in response.getheaders()}
            return Answer(response.status, response_headers, response.read())
        finally:
            connection.close()


@asynccontextmanager
async def _in_memory() -> AsyncIterator[tuple[Any, Any]]:
    yield MemoryService(), MemoryKeys()


#: Owners of the tokens, by role.
USERS = {"viewer": "vera", "user": "uma", "operator": "otto", "admin": "ada"}


@contextmanager
def served(backing: Any = _in_memory, tuning: ServerTuning = _TUNING, **listen: Any) -> Iterator[Served]:
    """Serve the service and keys of the async context *backing* until the block ends; *listen*: fields of `Listen`."""
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

            context = Context(service, keys, worker_key=KEY, tuning=tuning)
            await serve(context, Listen(**listen), started=started, stop=up.stopping)

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
