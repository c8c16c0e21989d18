"""The asynchronous client: runs the methods of `Client` in threads.

This needs no further package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from levada.sdk.client import Client
from levada.sdk.discovery import Address
from levada.sdk.streams import Stream

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from levada.api.types import EventView, LogLineView

P = ParamSpec("P")
T = TypeVar("T")
#: Each open stream uses one thread while it waits.
_THREADS = 64


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Convert a method of `Client` to a coroutine function."""

    async def awaited(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in_thread(partial(method, self._client, *args, **kwargs))

    awaited.__name__ = method.__name__
    awaited.__doc__ = method.__doc__
    return awaited


class AsyncClient:
    """Asynchronous client of one server; the parameters are those of `Client`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        state: str | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 10.0,
        insecure: bool = False,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._client = Client(url, token, state=state, timeout_s=timeout_s, patience_s=patience_s, insecure=insecure)
        self._streams: WeakSet[AsyncStream[Any]] = WeakSet()
        self._threads: ThreadPoolExecutor = ThreadPoolExecutor(_THREADS, thread_name_prefix="levada-sdk")

    @property
    def address(self) -> Address:
        """Return URL and token of the server."""
        return self._client.address

    async def close(self) -> None:
        """Close open streams and idle connections."""
        for stream in list(self._streams):
            await stream.close()
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # A stream connects when its first item is requested.
    def watch(
        self, job: str | None = None, *, after: int | None = None, timeout_s: float | None = None
    ) -> AsyncStream[EventView]:
        """Stream events from now or *after* an event id."""
        return AsyncStream(self, lambda: self._client.watch(job, after=after, timeout_s=timeout_s))

    def logs(
        self,
        name: str,
        *,
        worker: str | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        follow: bool = False,
        previous: bool = False,
    ) -> AsyncStream[LogLineView]:
        """Stream lines of output; *follow*: until the job has ended."""
        options: Mapping[str, Any] = {
            "worker": worker,
            "tail": tail,
            "since_s": since_s,
            "follow": follow,
            "previous": previous,
        }
        return AsyncStream(self, lambda: self._client.logs(name, **options))

    submit = _awaited(Client.submit)
    get = _awaited(Client.get)
    get_version = _awaited(Client.get_version)
    jobs = _awaited(Client.jobs)
    job_columns = _awaited(Client.job_columns)
    update = _awaited(Client.update)
    cancel = _awaited(Client.cancel)
    suspend = _awaited(Client.suspend)
    resume = _awaited(Client.resume)
    scale = _awaited(Client.scale)
    explain = _awaited(Client.explain)
    curve = _awaited(Client.curve)
    wait = _awaited(Client.wait)
    whatif = _awaited(Client.whatif)
    nodes = _awaited(Client.nodes)
    cordon = _awaited(Client.cordon)
    uncordon = _awaited(Client.uncordon)
    drain = _awaited(Client.drain)
    remove_node = _awaited(Client.remove_node)
    reserve = _awaited(Client.reserve)
    queues = _awaited(Client.queues)
    put_queue = _awaited(Client.put_queue)
    drop_queue = _awaited(Client.drop_queue)
    policy = _awaited(Client.policy)
    policies = _awaited(Client.policies)
    set_policy = _awaited(Client.set_policy)
    set_rate_limit = _awaited(Client.set_rate_limit)
    allocate = _awaited(Client.allocate)
    events = _awaited(Client.events)
    decisions = _awaited(Client.decisions)
    decision = _awaited(Client.decision)
    plans = _awaited(Client.plans)
    faults = _awaited(Client.faults)
    usage = _awaited(Client.usage)
    snapshot = _awaited(Client.snapshot)
    me = _awaited(Client.me)
    tokens = _awaited(Client.tokens)
    create_token = _awaited(Client.create_token)
    revoke_token = _awaited(Client.revoke_token)
    users = _awaited(Client.users)
    revoke_user = _awaited(Client.revoke_user)
    audit = _awaited(Client.audit)
    ready = _awaited(Client.ready)
    version = _awaited(Client.version)
    metrics = _awaited(Client.metrics)


class AsyncStream(Generic[T]):
    """An asynchronous stream of items; use it in `async with`, or close it."""

    def __init__(self, client: AsyncClient, connect: Callable[[], Stream[T]]) -> None:
        self._client = client
        self._connect = connect
        self._stream: Stream[T] | None = None
        client._streams.add(self)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        stream = await self._opened()
        end = object()
        try:
            item = await self._client._in_thread(lambda: next(stream, end))
        except asyncio.CancelledError:
            # Wakes the waiting thread, which then ends.
            stream.close()
            raise
        if item is end:
            raise StopAsyncIteration
        return item  # type: ignore[return-value]  # not `end`

    async def __aenter__(self) -> AsyncStream[T]:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the stream."""
        if self._stream is not None:
            self._stream.close()

    async def _opened(self) -> Stream[T]:
        if self._stream is None:
            self._stream = await self._client._in_thread(self._connect)
        return self._stream
