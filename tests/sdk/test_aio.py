"""The asynchronous client."""

import asyncio
import inspect
import time

import pytest

from levada.errors import NotFound
from levada.sdk import AsyncClient, Client
from tests.server.http_server import Served, document
from tests.timeouts import WAIT_S


def test_all_methods_exist() -> None:
    methods = {name for name, value in vars(Client).items() if inspect.isfunction(value) and name[0] != "_"}
    assert methods <= {name for name in vars(AsyncClient) if name[0] != "_"}
    assert inspect.iscoroutinefunction(AsyncClient.submit)


async def test_concurrent_requests(up: Served) -> None:
    async with asyncio.timeout(30):
        async with AsyncClient(up.url, up.tokens["operator"]) as client:
            jobs = [job for [job] in await asyncio.gather(*(client.submit(document(f"job{i}")) for i in range(20)))]
            assert len({job["id"] for job in jobs}) == 20
            with pytest.raises(NotFound):
                await client.get("nothing")
            waiting = [asyncio.create_task(client.wait(job["id"])) for job in jobs]
            async with client.watch(jobs[0]["id"]) as events:
                await asyncio.gather(*(client.cancel(job["id"]) for job in jobs))
                assert (await anext(events))["text"] == "is Cancelled now"
            assert {job["phase"] for job in await asyncio.gather(*waiting)} == {"Cancelled"}


async def test_streams_end_and_are_cancelled(up: Served) -> None:
    async with asyncio.timeout(30):
        async with AsyncClient(up.url, up.tokens["operator"]) as client:
            [job] = await client.submit(document())
            up.run(lambda: up.service.add_output(job["id"], "hello"))
            assert [line["text"] async for line in client.logs(job["id"])] == ["hello"]
            assert [event async for event in client.watch(timeout_s=0.2)] == []
            events = client.watch(after=0)
            assert (await anext(events))["type"] == "submitted"
            assert (await anext(events))["type"] == "phase"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.2)
    end = time.monotonic() + WAIT_S
    while up.service.open_watches and time.monotonic() < end:
        time.sleep(0.01)
    assert up.service.open_watches == 0


async def test_closing_the_client_ends_its_streams(up: Served) -> None:
    async with asyncio.timeout(30):
        client = AsyncClient(up.url, up.tokens["operator"])
        events = client.watch()
        await events.__aenter__()
        waiting = asyncio.ensure_future(anext(events))
        await client.me()
        await client.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
