"""A server that is another version than the one before it: what was commanded stays, and it is told where that differs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import Connection, delete, select, update

from levada.core import codec
from levada.core import events as ev
from levada.errors import Refused
from levada.live.recover import recover
from levada.live.store import Store, tables
from levada.live.turn import Turn
from tests.engine.inspect import state_of
from tests.live.house import House, document, house
from tests.live.rehearsal import Stage


async def read_otherwise(url: str, other: Callable[[ev.Event], ev.Event]) -> None:
    """From now on the log is read as by a version that makes something *other* of its events."""
    store = await Store.open(url)

    def change(connection: Connection) -> None:
        row = tables.log.c
        for sequence, body in connection.execute(select(row.sequence, row.body)).all():
            told = msgspec.msgpack.decode(body, type=Turn)
            events = tuple(codec.encode(other(codec.decode(event))) for event in told.events)
            fresh = msgspec.msgpack.encode(msgspec.structs.replace(told, events=events))
            connection.execute(update(tables.log).where(row.sequence == sequence).values(body=fresh))
        connection.execute(delete(tables.snapshots))

    await store.database.write(change)
    await store.close()


def refuses(event: ev.Event) -> ev.Event:
    """No decision counts."""
    return ev.DecideFailed(at=event.at, revision=event.revision, why="no") if isinstance(event, ev.Decided) else event


def elsewhere(event: ev.Event) -> ev.Event:
    """Jobs go to GPUs of the other type."""
    if not isinstance(event, ev.Decided):
        return event
    kinds = np.where(event.decision.count > 0, 3 - event.decision.type, -1)
    return msgspec.structs.replace(event, decision=msgspec.structs.replace(event.decision, type=kinds))


def gives_up(event: ev.Event) -> ev.Event:
    """Whoever runs has failed for good."""
    return ev.JobsCancelled(at=event.at, number=event.number) if isinstance(event, ev.Running) else event


def never_ends(event: ev.Event) -> ev.Event:
    """That a job is done says nothing."""
    return ev.Tick(at=event.at) if isinstance(event, ev.JobsFinished) else event


def devices(up: House, job: str) -> set[tuple[str, str]]:
    world = state_of(up.live.loop.engine).world
    grant = world.grant(world.held, world.slot(job))
    return {(place.node, device) for place in grant.places for device in place.devices}


@pytest.mark.parametrize("other", [refuses, elsewhere, gives_up, never_ends])
def test_a_version_that_decides_otherwise_loses_and_doubles_nothing(
    url: str, other: Callable[[ev.Event], ev.Event], caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        stage, had = Stage(), {}
        async with house(url, stage) as up:
            views = await up.service.submit([document(f"job{at}") for at in range(4)], user="ann", key=None)
            jobs = [view["id"] for view in views]
            await up.until(lambda: all(up.phase(job) == "Running" for job in jobs))
            up.backend.finish(jobs[0])
            await up.until(lambda: up.phase(jobs[0]) == "Succeeded")
            await up.settle()
            had = {job: devices(up, job) for job in jobs[1:]}
            await up.kill()
        taken, ran = list(stage.taken), dict(stage.runs)
        await read_otherwise(url, other)
        async with house(url, stage) as up:
            await up.settle()
            assert stage.taken == taken, "nothing is started, resized or stopped because of it"
            assert stage.runs == ran
            assert {job: devices(up, job) for job in jobs[1:]} == had
            assert [up.phase(job) for job in jobs] == ["Succeeded", *3 * ["Running"]]
            about = {line["job"] for line in await told(up) if line["type"] == "recovered"}
            # Of one that is over there is nothing more to tell its user.
            assert about == (set() if other is never_ends else set(jobs[1:]))
            assert (jobs[0] if other is never_ends else jobs[1]) in caplog.text
            assert "what was commanded counts" in caplog.text
            # Others get what is free, and nothing else.
            (late,) = await up.service.submit([document("late")], user="ann", key=None)
            await up.until(lambda: up.phase(late["id"]) == "Running")
            assert not devices(up, late["id"]) & set().union(*had.values())
            for job in jobs[1:]:
                up.backend.finish(job)
            await up.until(lambda: all(up.phase(job) == "Succeeded" for job in jobs))
            await up.kill()
        # What was put right is kept: the next start has nothing to put right.
        async with house(url, stage) as up:
            assert len([line for line in await told(up) if line["type"] == "recovered"]) == len(about)

    asyncio.run(story())


async def told(up: House) -> list[dict[str, Any]]:
    return await up.service.history(job=None, after=0, limit=1000)


def test_who_stops_gracefully_leaves_nothing_to_replay(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            await up.service.submit([document()], user="ann", key=None)
            await up.settle()
        store = await Store.open(url)
        found = await recover(store, await store.first_entry())
        assert (found.turns, len(state_of(found.engine).world.numbers)) == (0, 1)
        await store.close()

    asyncio.run(story())


def test_turns_that_do_not_say_how_jobs_stood_are_replayed_as_ever(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()
            await up.kill()
        store = await Store.open(url)

        def as_before(connection: Connection) -> None:
            row = tables.log.c
            for sequence, body in connection.execute(select(row.sequence, row.body)).all():
                short = msgspec.msgpack.encode(msgspec.msgpack.decode(body)[:4])
                connection.execute(update(tables.log).where(row.sequence == sequence).values(body=short))

        await store.database.write(as_before)
        await store.close()
        async with house(url, stage) as up:
            assert up.phase(view["id"]) == "Running"
            assert len(stage.taken) == 1

    asyncio.run(story())


def test_what_an_older_version_took_for_a_resize_in_place_is_asked_of_the_backend_again(url: str) -> None:
    def in_place(event: ev.Event) -> ev.Event:
        """As it was written before backends said what they restart."""
        if not isinstance(event, ev.JobsSubmitted):
            return event
        columns = {**event.jobs.columns, "resizes_in_place": np.ones(len(event.jobs), np.int64)}
        return msgspec.structs.replace(event, jobs=msgspec.structs.replace(event.jobs, columns=columns))

    async def story() -> None:
        stage = Stage()
        run = {"command": ["python", "train.py"], "framework": "torchrun"}
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document(run=run)], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()
            await up.kill()
        await read_otherwise(url, in_place)
        for _ in range(2):  # and it stays so
            async with house(url, stage) as up:
                world = state_of(up.live.loop.engine).world
                assert world.table.resizes_in_place[world.slot(view["id"])] == 0
                with pytest.raises(Refused, match="has saved no checkpoint") as refused:
                    await up.service.suspend(view["id"])
                assert refused.value.code == "unsaved"

    asyncio.run(story())
