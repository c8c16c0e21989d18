"""Engine faults in a server: reported, stored for a bug report, survived."""

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
from levada.live.store import StoreError
from levada.server.gauges import fault_metrics
from levada.tables.invariants import check_state
from tests.engine.engine_state import state_of
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, damage_snapshots, document, live_server
from tests.live.test_loop import balky

Plant = Callable[..., None]


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/levada.db"


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Make a handler fail at its end for events that are *guilty*."""
    sane = dict(engine_module._HANDLERS)

    def planted(kind: type, guilty: Callable[[Any], bool] = lambda _: True) -> None:
        def handler(engine: Engine, event: Any) -> None:
            sane[kind](engine, event)
            if guilty(event):
                raise ZeroDivisionError(f"a bug in {kind.__name__}")

        monkeypatch.setitem(engine_module._HANDLERS, kind, handler)

    return planted


def sound(up: LiveServer) -> None:
    state = state_of(up.live.loop.engine)
    assert check_state(state.world, submitted=state.submitted, ended=state.ended) == []


async def test_an_engine_fault_is_logged_counted_and_stored_with_its_event(
    here: str, plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with live_server(here) as up:
            (one,) = await up.service.submissions.submit([document("one")], user="ann", key=None)
            (two,) = await up.service.submissions.submit([document("two")], user="ann", key=None)
            job, other = one["id"], two["id"]
            await up.until(lambda: up.phase(job) == up.phase(other) == "Running")
            number = up.backend.machines.runs[job].number
            plant(ev.CheckpointSaved)
            saved = ev.CheckpointSaved(at=0.0, number=np.array([number]), generation=np.array([1]))
            up.backend.report(saved)
            await up.until(up.service.history.faults)
            (fault,) = up.service.history.faults()
            assert (fault["kind"], fault["jobs"], fault["times"]) == ("CheckpointSaved", (job,), 1)
            assert fault["error"] == "ZeroDivisionError: a bug in CheckpointSaved"
            assert "in handler" in fault["traceback"]
            stored = codec.decode(base64.b64decode(fault["event"]))
            assert isinstance(stored, ev.CheckpointSaved)
            assert stored.number.tolist() == [number]
            assert up.service.history.fault_tally() == {"CheckpointSaved": 1}
            samples = {
                s.labels["event"]: s.value for m in fault_metrics(up.service.history.fault_tally()) for s in m.samples
            }
            assert (samples["CheckpointSaved"], samples["JobsFinished"]) == (1, 0)
            lines = [
                line for line in await up.service.history.events(job=job, after=0, limit=100) if line["type"] == "fault"
            ]
            assert "CheckpointSaved was not applied" in lines[0]["text"]
            sound(up)
            up.backend.report(saved)
            await up.until(lambda: up.service.history.faults()[0]["times"] == 2)
            up.backend.finish(job)
            up.backend.finish(other)
            await up.until(lambda: up.phase(job) == up.phase(other) == "Succeeded")
            assert not up.task.done()
    record = next(record for record in caplog.records if "engine fault in CheckpointSaved" in record.message)
    assert record.levelno == logging.ERROR
    assert "Traceback (most recent call last)" in record.message
    assert "ZeroDivisionError" in record.message


async def test_a_faulting_submission_is_rejected_whole_and_others_apply(here: str, plant: Plant) -> None:
    async with live_server(here) as up:
        plant(ev.JobsSubmitted, lambda event: any(name.startswith("bad") for name in event.jobs.id))
        asked = [
            up.service.submissions.submit([document("good-a")], user="ann", key=None),
            up.service.submissions.submit([document("fine"), document("bad")], user="ann", key=None),
            up.service.submissions.submit([document("good-b")], user="ann", key=None),
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
        (again,) = await up.service.submissions.submit([document("fine")], user="ann", key=None)
        await up.until(lambda: up.phase(again["id"]) == "Running")


async def test_a_faulting_request_gets_an_error(here: str, plant: Plant) -> None:
    async with live_server(here) as up:
        (one,) = await up.service.submissions.submit([document("one")], user="ann", key=None)
        await up.until(lambda: up.phase(one["id"]) == "Running")
        plant(ev.JobsCancelled)
        plant(ev.QueuesChanged)
        with pytest.raises(LevadaError, match="internal error, undone"):
            await up.service.jobs.cancel(one["id"])
        assert up.phase(one["id"]) == "Running"
        queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}
        with pytest.raises(LevadaError, match="internal error, undone"):
            await up.service.cluster.put_queue(queue)
        assert [queue["name"] for queue in up.service.cluster.queues()] == ["default"]
        plant(ev.JobsCancelled, lambda _: False)
        await up.service.jobs.cancel(one["id"])
        await up.until(lambda: up.phase(one["id"]) == "Cancelled")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("mended", [False, True])
async def test_faults_survive_a_restart_and_replay_gives_the_same_state(
    here: str, plant: Plant, killed: bool, mended: bool
) -> None:
    machines = FakeMachines()
    async with live_server(here, machines) as up:
        plant(ev.JobsSubmitted, lambda event: any(name.startswith("bad") for name in event.jobs.id))
        plant(ev.JobsSuspended)
        (one,) = await up.service.submissions.submit([document("one")], user="ann", key=None)
        with pytest.raises(LevadaError):
            await up.service.submissions.submit([document("bad")], user="ann", key=None)
        (two,) = await up.service.submissions.submit([document("two")], user="ann", key=None)
        await up.until(lambda: up.phase(one["id"]) == up.phase(two["id"]) == "Running")
        with pytest.raises(LevadaError):
            await up.service.jobs.suspend(one["id"], force=True)
        await up.settle()
        if killed:
            await up.kill()
    if not killed:
        await damage_snapshots(here)
    if mended:
        plant(ev.JobsSubmitted, lambda _: False)
        plant(ev.JobsSuspended, lambda _: False)
    async with live_server(here, machines) as up:
        assert [fault["kind"] for fault in up.service.history.faults()] == ["JobsSubmitted", "JobsSuspended"]
        assert up.service.history.fault_tally() == {}, "replayed faults are not new ones"
        assert up.phase(one["id"]) == up.phase(two["id"]) == "Running"
        await up.until(lambda: set(state_of(up.live.loop.engine).world.numbers) == {one["id"], two["id"]})
        sound(up)
        up.backend.finish(one["id"])
        await up.until(lambda: up.phase(one["id"]) == "Succeeded")
        (three,) = await up.service.submissions.submit([document("three")], user="ann", key=None)
        await up.until(lambda: up.phase(three["id"]) == "Running")


async def test_a_fault_in_a_failed_append_is_reverted(here: str, plant: Plant) -> None:
    async with live_server(here) as up:
        store = balky(up)
        (one,) = await up.service.submissions.submit([document("one")], user="ann", key=None)
        await up.until(lambda: up.phase(one["id"]) == "Running")
        plant(ev.JobsCancelled)
        store.refuses_any = True
        with pytest.raises(LevadaError):
            await up.service.jobs.cancel(one["id"])
        await up.settle()
        assert up.phase(one["id"]) == "Running"
        sound(up)
        assert up.service.history.fault_tally()["JobsCancelled"] == 1
    assert issubclass(StoreError, LevadaError)


async def test_a_limited_number_of_distinct_faults_is_stored(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sane, count = engine_module._HANDLERS[ev.ReservationExpired], [0]

    def handler(engine: Engine, event: Any) -> None:
        sane(engine, event)
        count[0] += 1
        raise ValueError(f"bug {(count[0] + 1) // 2}")  # each call is tried twice

    async with live_server(here) as up:
        monkeypatch.setitem(engine_module._HANDLERS, ev.ReservationExpired, handler)
        for _ in range(30):
            with pytest.raises(LevadaError):
                await up.live.loop.apply(ev.ReservationExpired(at=0.0, ids=("x",)))
        await up.settle()
        assert [fault["error"] for fault in up.service.history.faults()] == [
            f"ValueError: bug {n}" for n in range(11, 31)
        ]
