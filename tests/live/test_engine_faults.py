"""A server whose engine fails on an event: it says so, keeps the event for a report, and goes on."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.core import codec
from levada.core import events as ev
from levada.engine import Engine
from levada.engine import engine as engine_module
from levada.errors import LevadaError
from levada.live.store import StoreTrouble
from levada.server.gauges import of_faults
from levada.tables.invariants import check_state
from tests.engine.inspect import state_of
from tests.live.house import House, damage_snapshots, document, house
from tests.live.rehearsal import Stage
from tests.live.test_turns import balky

Plant = Callable[..., None]


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/levada.db"


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Lets a handler do its work and then fail on events that are *guilty*."""
    sane = dict(engine_module._HANDLERS)

    def planted(kind: type, guilty: Callable[[Any], bool] = lambda _: True) -> None:
        def handler(engine: Engine, event: Any) -> None:
            sane[kind](engine, event)
            if guilty(event):
                raise ZeroDivisionError(f"a bug in {kind.__name__}")

        monkeypatch.setitem(engine_module._HANDLERS, kind, handler)

    return planted


def sound(up: House) -> None:
    state = state_of(up.live.loop.engine)
    assert check_state(state.world, submitted=state.submitted, ended=state.ended) == []


def test_a_fault_is_logged_counted_and_kept_with_its_event(
    here: str, plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with house(here) as up:
            (one,) = await up.service.submit([document("one")], user="ann", key=None)
            (two,) = await up.service.submit([document("two")], user="ann", key=None)
            job, other = one["id"], two["id"]
            await up.until(lambda: up.phase(job) == up.phase(other) == "Running")
            number = up.backend.stage.runs[job].number
            plant(ev.CheckpointSaved)
            saved = ev.CheckpointSaved(at=0.0, number=np.array([number]), generation=np.array([1]))
            up.backend.report(saved)
            await up.until(up.service.faults)
            (fault,) = up.service.faults()
            assert (fault["kind"], fault["jobs"], fault["times"]) == ("CheckpointSaved", (job,), 1)
            assert fault["error"] == "ZeroDivisionError: a bug in CheckpointSaved"
            assert "in handler" in fault["traceback"]
            kept = codec.decode(base64.b64decode(fault["event"]))
            assert isinstance(kept, ev.CheckpointSaved)
            assert kept.number.tolist() == [number]
            assert up.service.fault_tally() == {"CheckpointSaved": 1}
            samples = {s.labels["event"]: s.value for m in of_faults(up.service.fault_tally()) for s in m.samples}
            assert (samples["CheckpointSaved"], samples["JobsFinished"]) == (1, 0)
            lines = [line for line in await up.service.history(job=job, after=0, limit=100) if line["type"] == "fault"]
            assert "CheckpointSaved was not applied" in lines[0]["text"]
            sound(up)
            up.backend.report(saved)
            await up.until(lambda: up.service.faults()[0]["times"] == 2)
            up.backend.finish(job)
            up.backend.finish(other)
            await up.until(lambda: up.phase(job) == up.phase(other) == "Succeeded")
            assert not up.task.done()

    with caplog.at_level(logging.ERROR):
        asyncio.run(play())
    record = next(each for each in caplog.records if "engine fault in CheckpointSaved" in each.message)
    assert record.levelno == logging.ERROR
    assert "Traceback (most recent call last)" in record.message
    assert "ZeroDivisionError" in record.message


def test_a_submission_that_faults_is_refused_as_a_whole_and_others_count(here: str, plant: Plant) -> None:
    async def play() -> None:
        async with house(here) as up:
            plant(ev.JobsSubmitted, lambda event: any(name.startswith("bad") for name in event.jobs.id))
            asked = [
                up.service.submit([document("good-a")], user="ann", key=None),
                up.service.submit([document("fine"), document("bad")], user="ann", key=None),
                up.service.submit([document("good-b")], user="ann", key=None),
            ]
            first, refused, last = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(refused, LevadaError)
            assert "internal error" in str(refused)
            assert isinstance(first, list)
            assert isinstance(last, list)
            ids = {first[0]["id"], last[0]["id"]}
            await up.until(lambda: all(up.phase(job) == "Running" for job in ids))
            await up.until(lambda: set(state_of(up.live.loop.engine).world.numbers) == ids)
            assert set(up.live.loop.records.by_id) == ids
            sound(up)
            (again,) = await up.service.submit([document("fine")], user="ann", key=None)
            await up.until(lambda: up.phase(again["id"]) == "Running")

    asyncio.run(play())


def test_a_request_that_faults_is_answered_as_failed(here: str, plant: Plant) -> None:
    async def play() -> None:
        async with house(here) as up:
            (one,) = await up.service.submit([document("one")], user="ann", key=None)
            await up.until(lambda: up.phase(one["id"]) == "Running")
            plant(ev.JobsCancelled)
            plant(ev.QueuesChanged)
            with pytest.raises(LevadaError, match="internal error, undone"):
                await up.service.cancel(one["id"])
            assert up.phase(one["id"]) == "Running"
            queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}
            with pytest.raises(LevadaError, match="internal error, undone"):
                await up.service.put_queue(queue)
            assert [each["name"] for each in up.service.queues()] == ["default"]
            plant(ev.JobsCancelled, lambda _: False)
            await up.service.cancel(one["id"])
            await up.until(lambda: up.phase(one["id"]) == "Cancelled")

    asyncio.run(play())


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("mended", [False, True])
def test_after_a_restart_faults_are_still_known_and_replay_gives_the_same_state(
    here: str, plant: Plant, killed: bool, mended: bool
) -> None:
    stage = Stage()

    async def first() -> tuple[str, str]:
        async with house(here, stage) as up:
            plant(ev.JobsSubmitted, lambda event: any(name.startswith("bad") for name in event.jobs.id))
            plant(ev.JobsSuspended)
            (one,) = await up.service.submit([document("one")], user="ann", key=None)
            with pytest.raises(LevadaError):
                await up.service.submit([document("bad")], user="ann", key=None)
            (two,) = await up.service.submit([document("two")], user="ann", key=None)
            await up.until(lambda: up.phase(one["id"]) == up.phase(two["id"]) == "Running")
            with pytest.raises(LevadaError):
                await up.service.suspend(one["id"], force=True)
            await up.settle()
            if killed:
                await up.kill()
        return one["id"], two["id"]

    one, two = asyncio.run(first())
    if not killed:
        asyncio.run(damage_snapshots(here))
    if mended:
        plant(ev.JobsSubmitted, lambda _: False)
        plant(ev.JobsSuspended, lambda _: False)

    async def second() -> None:
        async with house(here, stage) as up:
            assert [fault["kind"] for fault in up.service.faults()] == ["JobsSubmitted", "JobsSuspended"]
            assert up.service.fault_tally() == {}, "replayed faults are not new ones"
            assert up.phase(one) == up.phase(two) == "Running"
            await up.until(lambda: set(state_of(up.live.loop.engine).world.numbers) == {one, two})
            sound(up)
            up.backend.finish(one)
            await up.until(lambda: up.phase(one) == "Succeeded")
            (three,) = await up.service.submit([document("three")], user="ann", key=None)
            await up.until(lambda: up.phase(three["id"]) == "Running")

    asyncio.run(second())


def test_a_fault_in_a_turn_that_the_store_does_not_take_is_taken_back_with_it(here: str, plant: Plant) -> None:
    async def play() -> None:
        async with house(here) as up:
            store = balky(up)
            (one,) = await up.service.submit([document("one")], user="ann", key=None)
            await up.until(lambda: up.phase(one["id"]) == "Running")
            plant(ev.JobsCancelled)
            store.refuses_any = True
            with pytest.raises(LevadaError):
                await up.service.cancel(one["id"])
            await up.settle()
            assert up.phase(one["id"]) == "Running"
            sound(up)
            assert up.service.fault_tally()["JobsCancelled"] == 1

    asyncio.run(play())
    assert issubclass(StoreTrouble, LevadaError)


def test_different_faults_are_kept_up_to_a_bound(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sane, count = engine_module._HANDLERS[ev.ReservationExpired], [0]

    def handler(engine: Engine, event: Any) -> None:
        sane(engine, event)
        count[0] += 1
        raise ValueError(f"bug {(count[0] + 1) // 2}")  # each call is tried twice

    async def play() -> None:
        async with house(here) as up:
            monkeypatch.setitem(engine_module._HANDLERS, ev.ReservationExpired, handler)
            for _ in range(30):
                with pytest.raises(LevadaError):
                    await up.live.loop.tell(ev.ReservationExpired(at=0.0, ids=("x",)))
            await up.settle()
            assert [fault["error"] for fault in up.service.faults()] == [f"ValueError: bug {n}" for n in range(11, 31)]

    asyncio.run(play())
