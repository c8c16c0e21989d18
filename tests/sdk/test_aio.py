"""The same verbs, awaited."""

import asyncio
import inspect
import time

import pytest

from levada.errors import NotFound
from levada.sdk import AsyncClient, Client
from tests.patience import WAIT_S
from tests.server.serving import Served, document


def test_all_verbs_are_there() -> None:
    verbs = {name for name, value in vars(Client).items() if inspect.isfunction(value) and name[0] != "_"}
    assert verbs <= {name for name in vars(AsyncClient) if name[0] != "_"}
    assert inspect.iscoroutinefunction(AsyncClient.submit)


def test_many_things_at_once(up: Served) -> None:
    async def run() -> None:
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

    asyncio.run(asyncio.wait_for(run(), 30))


def test_streams_end_and_are_cancelled(up: Served) -> None:
    async def run() -> None:
        async with AsyncClient(up.url, up.tokens["operator"]) as client:
            [job] = await client.submit(document())
            up.run(lambda: up.service.say(job["id"], "hello"))
            assert [line["text"] async for line in client.logs(job["id"])] == ["hello"]
            assert [event async for event in client.watch(timeout_s=0.2)] == []
            events = client.watch(after=0)
            assert (await anext(events))["type"] == "submitted"
            assert (await anext(events))["type"] == "phase"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.2)

    asyncio.run(asyncio.wait_for(run(), 30))
    end = time.monotonic() + WAIT_S
    while up.service.open_watches and time.monotonic() < end:
        time.sleep(0.01)
    assert up.service.open_watches == 0


def test_closing_the_client_ends_what_waits(up: Served) -> None:
    async def run() -> None:
        client = AsyncClient(up.url, up.tokens["operator"])
        events = client.watch()
        await events.__aenter__()
        waiting = asyncio.ensure_future(anext(events))
        await client.me()
        await client.close()
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(asyncio.wait_for(run(), 30))
