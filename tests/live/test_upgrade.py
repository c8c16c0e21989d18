"""Restart with another version: commands are kept, differences reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import Connection, delete, select, update

from levada.core import codec
from levada.core import events as ev
from levada.errors import Refused
from levada.live.log_entry import LogEntry
from levada.live.recover import recover
from levada.live.store import Store, tables
from tests.engine.engine_state import state_of
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, document, live_server


async def read_otherwise(url: str, other: Callable[[ev.Event], ev.Event]) -> None:
    """Replay the log like a version that replaces events by *other*."""
    store = await Store.open(url)

    def change(connection: Connection) -> None:
        row = tables.log.c
        for sequence, body in connection.execute(select(row.sequence, row.body)).all():
            entry = msgspec.msgpack.decode(body, type=LogEntry)
            events = tuple(codec.encode(other(codec.decode(event))) for event in entry.events)
            fresh = msgspec.msgpack.encode(msgspec.structs.replace(entry, events=events))
            connection.execute(update(tables.log).where(row.sequence == sequence).values(body=fresh))
        connection.execute(delete(tables.snapshots))

    await store.database.write(change)
    await store.close()


def refuses(event: ev.Event) -> ev.Event:
    """Ignore decisions."""
    return ev.DecideFailed(at=event.at, revision=event.revision, why="no") if isinstance(event, ev.Decided) else event


def elsewhere(event: ev.Event) -> ev.Event:
    """Place jobs on the other type."""
    if not isinstance(event, ev.Decided):
        return event
    kinds = np.where(event.decision.count > 0, 3 - event.decision.type, -1)
    return msgspec.structs.replace(event, decision=msgspec.structs.replace(event.decision, type=kinds))


def gives_up(event: ev.Event) -> ev.Event:
    """Let running jobs fail without a retry."""
    return ev.JobsCancelled(at=event.at, number=event.number) if isinstance(event, ev.Running) else event


def never_ends(event: ev.Event) -> ev.Event:
    """Ignore ends of jobs."""
    return ev.Tick(at=event.at) if isinstance(event, ev.JobsFinished) else event


def devices(up: LiveServer, job: str) -> set[tuple[str, str]]:
    world = state_of(up.live.loop.engine).world
    grant = world.grant(world.held, world.slot(job))
    return {(place.node, device) for place in grant.places for device in place.devices}


@pytest.mark.parametrize("other", [refuses, elsewhere, gives_up, never_ends])
async def test_an_upgrade_that_decides_differently_loses_and_duplicates_nothing(
    url: str, other: Callable[[ev.Event], ev.Event], caplog: pytest.LogCaptureFixture
) -> None:
    machines, had = FakeMachines(), {}
    async with live_server(url, machines) as up:
        views = await up.service.submissions.submit([document(f"job{at}") for at in range(4)], user="ann", key=None)
        jobs = [view["id"] for view in views]
        await up.until(lambda: all(up.phase(job) == "Running" for job in jobs))
        up.backend.finish(jobs[0])
        await up.until(lambda: up.phase(jobs[0]) == "Succeeded")
        await up.settle()
        had = {job: devices(up, job) for job in jobs[1:]}
        await up.kill()
    taken, ran = list(machines.taken), dict(machines.runs)
    await read_otherwise(url, other)
    async with live_server(url, machines) as up:
        await up.settle()
        assert machines.taken == taken, "nothing is started, resized or stopped because of it"
        assert machines.runs == ran
        assert {job: devices(up, job) for job in jobs[1:]} == had
        assert [up.phase(job) for job in jobs] == ["Succeeded", *3 * ["Running"]]
        about = {line["job"] for line in await history_of(up) if line["type"] == "recovered"}
        # An ended job gets no further event.
        assert about == (set() if other is never_ends else set(jobs[1:]))
        assert (jobs[0] if other is never_ends else jobs[1]) in caplog.text
        assert "kept the logged commands" in caplog.text
        # Other jobs get free devices only.
        (late,) = await up.service.submissions.submit([document("late")], user="ann", key=None)
        await up.until(lambda: up.phase(late["id"]) == "Running")
        assert not devices(up, late["id"]) & set().union(*had.values())
        for job in jobs[1:]:
            up.backend.finish(job)
        await up.until(lambda: all(up.phase(job) == "Succeeded" for job in jobs))
        await up.kill()
    # The reconciled state is stored: the next start reconciles nothing.
    async with live_server(url, machines) as up:
        assert len([line for line in await history_of(up) if line["type"] == "recovered"]) == len(about)


async def history_of(up: LiveServer) -> list[dict[str, Any]]:
    return await up.service.history.events(job=None, after=0, limit=1000)


async def test_a_graceful_stop_leaves_nothing_to_replay(url: str) -> None:
    async with live_server(url) as up:
        await up.service.submissions.submit([document()], user="ann", key=None)
        await up.settle()
    store = await Store.open(url)
    recovered = await recover(store, await store.first_entry())
    assert (recovered.turns, len(state_of(recovered.engine).world.numbers)) == (0, 1)
    await store.close()


async def test_log_entries_without_job_states_are_replayed(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
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
    async with live_server(url, machines) as up:
        assert up.phase(view["id"]) == "Running"
        assert len(machines.taken) == 1


async def test_resize_modes_of_an_older_version_are_queried_again(url: str) -> None:
    def in_place(event: ev.Event) -> ev.Event:
        """The entry of a version in which backends did not report restarts."""
        if not isinstance(event, ev.JobsSubmitted):
            return event
        columns = {**event.jobs.columns, "resizes_in_place": np.ones(len(event.jobs), np.int64)}
        return msgspec.structs.replace(event, jobs=msgspec.structs.replace(event.jobs, columns=columns))

    machines = FakeMachines()
    run = {"command": ["python", "train.py"], "framework": "torchrun"}
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document(run=run)], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await up.settle()
        await up.kill()
    await read_otherwise(url, in_place)
    for _ in range(2):  # also after the next start
        async with live_server(url, machines) as up:
            world = state_of(up.live.loop.engine).world
            assert world.table.resizes_in_place[world.slot(view["id"])] == 0
            with pytest.raises(Refused, match="has saved no checkpoint") as refused:
                await up.service.jobs.suspend(view["id"])
            assert refused.value.code == "unsaved"
