"""Turns of the loop: nothing happens before the commit, nothing is lost after it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.backends.protocol import Launch, Report
from levada.core import events as ev
from levada.core.plan import Op, OpKind
from levada.errors import BadInput, LevadaError, Refused, Unavailable, Unresolved
from levada.live import snapshot
from levada.live.store import AuditEntry, Changes, LeaseLost, Store, StoreError, StoreLease, Unconfirmed
from levada.live.store.audit import AuditLog
from tests.engine.engine_state import state_of
from tests.live.fake_backend import FakeBackend, FakeMachines
from tests.live.live_server import LiveServer, document, live_server


class FailingStore(Store):
    """A store that rejects or delays appends."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.refuses = 0
        #: Reject the next append, whatever it has.
        self.refuses_any = False
        #: Disconnected: a commit gets no response, whether it was executed or not, nor does any other call.
        self.breaks: str | None = None
        self.is_away = False
        self.is_full = False
        self.go = asyncio.Event()
        self.go.set()

    async def append(self, lease: StoreLease, changes: Changes) -> StoreLease:
        if self.is_away:
            raise StoreError("the connection is refused")
        if self.breaks and changes.jobs:
            if self.breaks == "after":
                await super().append(lease, changes)
            self.breaks, self.is_away = None, True
            raise Unconfirmed("the connection broke")
        if self.refuses_any:
            self.refuses_any = False
            raise StoreError("the disk is full; make room")
        if changes.jobs:
            await self.go.wait()
            if self.refuses:
                self.refuses -= 1
                raise StoreError("the disk is full; make room")
        return await super().append(lease, changes)

    async def is_appended(self, lease: StoreLease, changes: Changes) -> bool:
        if self.is_away:
            raise StoreError("the connection is refused")
        return await super().is_appended(lease, changes)

    async def renew(self, lease: StoreLease, now: float, lasts_s: float) -> None:
        if self.is_full:
            raise StoreError("the disk is full; make room")
        await super().renew(lease, now, lasts_s)


def balky(up: LiveServer) -> FailingStore:
    up.live.loop.store = up.live.store = store = FailingStore(up.live.store)
    return store


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/levada.db"


async def test_an_idle_server_with_a_failing_store_is_not_ready(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.live.live.LEASE_S", 0.3)

    async with live_server(here) as up:
        store = balky(up)
        assert up.service.ready() == ""
        store.is_full = True
        await up.until(lambda: up.service.ready() == "the disk is full; make room")
        store.is_full = False
        await up.until(lambda: up.service.ready() == "")


async def test_commands_are_dispatched_only_after_the_commit(here: str) -> None:
    machines = FakeMachines()
    async with live_server(here, machines) as up:
        store = balky(up)
        store.go.clear()
        first = asyncio.create_task(up.service.submissions.submit([document()], user="ann", key=None))
        await up.until(lambda: up.live.loop.records.by_id)
        second = asyncio.create_task(up.service.submissions.submit([document("later")], user="ann", key=None))
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert not machines.taken, "an operation left before its turn was written"
        assert not first.done()
        store.go.set()
        await first
        await second
        await up.until(lambda: len(machines.runs) == 2)


async def test_a_rejected_submission_leaves_nothing(here: str) -> None:
    machines = FakeMachines()
    async with live_server(here, machines) as up:
        loop = up.live.loop
        balky(up).refuses = 2
        for key in ("k", None):
            with pytest.raises(Unavailable, match="the request had no effect"):
                await up.service.submissions.submit([document()], user="ann", key=key)
            assert not loop.records.by_id
            assert not state_of(loop.engine).world.numbers
            assert state_of(loop.engine).submitted == 0
        await up.until(lambda: not loop.trouble)
        (view,) = await up.service.submissions.submit([document()], user="ann", key="k")
        await up.until(lambda: up.phase(view["id"]) == "Running")
        assert list(loop.records.by_id) == [view["id"]] == list(machines.runs)
        lines = [line.text for line in await up.live.store.history() if line.type == "submitted"]
        assert len(lines) == 1
    async with live_server(here, machines) as again:
        assert list(again.live.loop.records.by_id) == [view["id"]] == list(machines.runs)


async def test_a_rejected_cancel_changes_nothing_and_concurrent_events_are_kept(here: str) -> None:
    async with live_server(here) as up:
        names = [
            (await up.service.submissions.submit([document(name)], user="ann", key=None))[0]["id"] for name in "ab"
        ]
        await up.until(lambda: all(up.phase(name) == "Running" for name in names))
        await up.settle()
        before = await up.live.store.last_history()
        number = np.array([up.backend.machines.runs.pop(names[1]).number])
        balky(up).refuses_any = True
        up.live.loop.observe(Report(events=(ev.JobsFinished(at=0.0, number=number),)))
        with pytest.raises(Unavailable, match="the request had no effect"):
            await up.service.jobs.cancel(names[0])
        await up.until(lambda: up.phase(names[1]) == "Succeeded")
        assert up.phase(names[0]) == "Running"
        phases = [(line.job, line.data.get("phase")) for line in await up.live.store.history(after=before)]
        assert phases == [(names[1], "Succeeded")]
        await up.service.jobs.cancel(names[0])
        await up.until(lambda: up.phase(names[0]) == "Cancelled")


@pytest.mark.parametrize("breaks", ["before", "after"])
async def test_the_outcome_of_a_lost_commit_is_read_when_the_store_returns(here: str, breaks: str) -> None:
    machines = FakeMachines()
    async with live_server(here, machines) as up:
        store, loop = balky(up), up.live.loop
        store.breaks = breaks
        for _ in range(2):
            with pytest.raises(Unresolved, match="same key"):
                await up.service.submissions.submit([document()], user="ann", key="k")
        with pytest.raises(Unavailable) as caught:
            await up.service.submissions.submit([document("other")], user="ann", key="other")
        assert not isinstance(caught.value, Unresolved), "the request was never sent to the store"
        assert not loop.records.by_id, "nothing is shown that may not be there"
        store.is_away = False
        await up.until(lambda: not loop.trouble)
        assert len(loop.records.by_id) == (breaks == "after")
        (view,) = await up.service.submissions.submit([document()], user="ann", key="k")
        await up.until(lambda: up.phase(view["id"]) == "Running")
        assert list(loop.records.by_id) == [view["id"]] == list(machines.runs)
    async with live_server(here, machines) as again:
        assert list(again.live.loop.records.by_id) == [view["id"]] == list(machines.runs)


async def test_a_repeated_submission_after_a_disconnect_gets_the_same_job(here: str) -> None:
    async with live_server(here) as up:
        store = balky(up)
        store.go.clear()
        asked = asyncio.create_task(up.service.submissions.submit([document()], user="ann", key="k"))
        await up.until(lambda: up.live.loop.records.by_id)
        asked.cancel()
        store.go.set()
        (view,) = await up.service.submissions.submit([document()], user="ann", key="k")
        assert list(up.live.loop.records.by_id) == [view["id"]]


async def test_a_lost_lease_discards_state_and_fails_waiters(url: str) -> None:
    machines, other = FakeMachines(), await Store.open(url)

    async def loses() -> None:
        async with live_server(url, machines) as up:
            await up.service.submissions.submit([document("one")], user="ann", key=None)
            await up.settle()
            await other.acquire("another", 10**12, 15.0)
            async with asyncio.timeout(10):
                with pytest.raises(LevadaError, match="had to stop"):
                    await up.service.submissions.submit([document("ghost")], user="ann", key=None)

    with pytest.raises(LeaseLost):
        await loses()
    engines = [snapshot.thaw(body) async for _, body in other.snapshots()]
    assert not [name for engine in engines for name in state_of(engine).world.numbers if name.startswith("ghost")]
    taken = await other.acquire("another", 10**12, 15.0)
    assert taken is not None
    await other.release(taken)
    await other.close()
    async with live_server(url, machines) as up:
        assert [record.about.workload for record in up.live.loop.records.by_id.values()] == ["one"]
        (view,) = await up.service.submissions.submit([document("two")], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        assert set(state_of(up.live.loop.engine).world.numbers) == set(up.live.loop.records.by_id)


async def test_a_server_without_backend_reports_exits(here: str) -> None:
    def observe(_report: Any) -> None:
        raise RuntimeError("deaf")

    with pytest.raises(RuntimeError, match="deaf"):  # noqa: PT012  # the exit of the server raises it
        async with live_server(here) as up:
            up.live.loop.observe = observe  # type: ignore[method-assign]  # like a broken backend
            await up.service.submissions.submit([document()], user="ann", key=None)
            await up.until(lambda: False)


def tfjob(**policy: Any) -> dict[str, Any]:
    worker = {"containers": [{"name": "tensorflow", "image": "x", "command": ["python3", "train.py"]}]}
    spec = {"runPolicy": policy, "tfReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": worker}}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "named"}, "spec": spec}


async def test_a_cancelled_tfjob_can_be_submitted_again(url: str) -> None:
    async with live_server(url) as up:
        for number in range(3):
            (view,) = await up.service.submissions.submit([tfjob()], user="ann", key=f"k{number}")
            assert (view["id"], view["phase"]) == ("named", "Pending")
            await up.until(lambda: up.phase("named") == "Running")
            # Not while it runs, and not in place of another user's job.
            for user in ("ann", "bob"):
                with pytest.raises(Refused, match="keeps its name"):
                    await up.service.submissions.submit([tfjob()], user=user, key=None)
            await up.service.jobs.cancel("named")
            await up.until(lambda: up.phase("named") == "Cancelled")
            with pytest.raises(Refused, match="keeps its name"):
                await up.service.submissions.submit([tfjob()], user="bob", key=None)
        both = [up.service.submissions.submit([tfjob()], user="ann", key=None) for _ in range(2)]
        got = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(result).__name__ for result in got) == ["Refused", "list"]
        with pytest.raises(Refused, match="named of that submission was replaced by a newer job"):
            await up.service.submissions.submit([tfjob()], user="ann", key="k0")
        # Its usage stays in the history.
        (used,) = await up.service.history.usage(["user"], since=0.0)
        assert used["jobs"] == 4
        await up.until(lambda: up.phase("named") == "Running")
        up.backend.finish("named")
        await up.until(lambda: up.phase("named") == "Succeeded")
        with pytest.raises(Refused, match="has succeeded, and a TFJob keeps its name, output and checkpoints until"):
            await up.service.submissions.submit([tfjob()], user="ann", key=None)
        await up.kill()
    async with live_server(url, up.backend.machines) as up:
        assert up.phase("named") == "Succeeded"


@pytest.mark.parametrize("was_stored", [False, True])
async def test_a_name_in_an_unconfirmed_commit_is_not_reused(here: str, was_stored: bool) -> None:
    class SlowStore(FailingStore):
        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.asked = asyncio.Event()

        async def is_appended(self, lease: StoreLease, changes: Changes) -> bool:
            self.is_away = False
            self.asked.set()
            await self.go.wait()
            return await super().is_appended(lease, changes)

    machines = FakeMachines()
    async with live_server(here, machines) as up:
        up.live.loop.store = up.live.store = store = SlowStore(up.live.store)
        store.breaks = "after" if was_stored else "before"
        store.go.clear()
        first = asyncio.create_task(up.service.submissions.submit([tfjob()], user="ann", key="a"))
        await store.asked.wait()
        with pytest.raises(Refused, match="keeps its name"):
            await up.service.submissions.submit([tfjob()], user="ann", key="b")
        store.go.set()
        if was_stored:
            ((view,),) = await asyncio.gather(first)
        else:
            with pytest.raises(Unavailable, match="the request had no effect"):
                await first
            (view,) = await up.service.submissions.submit([tfjob()], user="ann", key="b")
        await up.until(lambda: up.phase("named") == "Running")
        assert (view["id"], list(up.live.loop.records.by_id), list(machines.runs)) == ("named", ["named"], ["named"])


async def test_a_rejected_submission_does_not_remove_an_ended_job(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []

    async def forget(_backend: FakeBackend, job: str) -> None:
        forgotten.append(job)

    monkeypatch.setattr(FakeBackend, "forget", forget)

    async with live_server(here) as up:
        store = balky(up)
        await up.service.submissions.submit([tfjob()], user="ann", key="k")
        await up.until(lambda: up.phase("named") == "Running")
        await up.service.jobs.cancel("named")
        await up.until(lambda: up.phase("named") == "Cancelled")
        store.is_full = True
        with pytest.raises(StoreError, match="the disk is full"):
            await up.service.submissions.submit([tfjob()], user="ann", key=None)
        assert (forgotten, up.phase("named")) == ([], "Cancelled"), "the store was away before"
        store.is_full, store.refuses = False, 1
        with pytest.raises(Unavailable, match="ended jobs of the same name were removed: named"):
            await up.service.submissions.submit([tfjob()], user="ann", key=None)
        assert forgotten == ["named"]


async def test_a_name_is_free_after_its_job_is_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.live.live._CLEANUP_S", 0.02)
    named = tfjob(ttlSecondsAfterFinished=0)

    async with live_server(url) as up:
        for number in range(2):
            await up.service.submissions.submit([named], user="ann", key=f"k{number}")
            await up.until(lambda: up.phase("named") == "Running")
            with pytest.raises(Refused, match="keeps its name"):
                await up.service.submissions.submit([named], user="ann", key=None)
            up.backend.finish("named")
            await up.until(lambda: not up.live.loop.records.by_id)
        # A repeated request returns the outcome.
        (view,) = await up.service.submissions.submit([named], user="ann", key="k0")
        assert (view["id"], view["phase"]) == ("named", "Succeeded")


async def test_submissions_during_a_commit_share_the_next_one(here: str) -> None:
    async with live_server(here) as up:
        store, loop = balky(up), up.live.loop
        store.go.clear()
        first = asyncio.create_task(up.service.submissions.submit([document()], user="ann", key=None))
        await up.until(lambda: loop.records.by_id)
        turns = loop.turns
        others = [
            asyncio.create_task(up.service.submissions.submit([document(name)], user="ann", key=name))
            for name in ("b", "c", "d")
        ]
        await asyncio.sleep(0)
        store.go.set()
        (one,) = await first
        views = [view for views in await asyncio.gather(*others) for view in views]
        assert loop.turns <= turns + 2
        numbers = [loop.records.by_id[view["id"]].number for view in (one, *views)]
        assert numbers == sorted(numbers)
        assert [view["workload"] for view in views] == ["b", "c", "d"]
        assert {name: state_of(loop.engine).world.numbers[name] for name in loop.records.by_id} == {
            name: record.number for name, record in loop.records.by_id.items()
        }


async def test_a_submission_and_its_audit_entry_are_stored_atomically(here: str) -> None:
    def audit_entry() -> AuditEntry:
        return AuditEntry(user="ann", role="user", method="POST", path="/api/v1/jobs", status=201)

    async with live_server(here) as up:
        log, store, first = AuditLog(up.live.store.database), balky(up), audit_entry()
        store.go.clear()
        asked = asyncio.create_task(up.service.submissions.submit([document()], user="ann", key="k", audit_entry=first))
        await up.until(lambda: up.live.loop.records.by_id)
        assert (first.written, await log.last(10)) == (False, [])
        store.go.set()
        (view,) = await asked
        assert first.written
        assert [note["detail"] for note in await log.last(10)] == [view["id"]]
        again = audit_entry()
        await up.service.submissions.submit([document()], user="ann", key="k", audit_entry=again)
        assert not again.written, "nothing was stored, so the caller must write the audit entry"
        with pytest.raises(BadInput):
            await up.service.submissions.submit(
                [document("x", queue="no such")], user="ann", key=None, audit_entry=again
            )
        assert not again.written
        assert len(await log.last(10)) == 1


class SlowBackend(FakeBackend):
    """A backend that delays each operation until it is released."""

    def __init__(self, machines: FakeMachines) -> None:
        super().__init__(machines)
        self.go = asyncio.Event()

    async def apply(self, op: Op, launch: Launch | None) -> None:
        await self.go.wait()
        await super().apply(op, launch)


async def test_a_submission_does_not_wait_for_process_starts(here: str) -> None:
    machines = FakeMachines()
    async with live_server(here, machines) as up:
        up.live.loop.backend = up.live.loop.executor.backend = slow = SlowBackend(machines)
        views = [(await up.service.submissions.submit([document()], user="ann", key=None))[0] for _ in range(3)]
        await up.until(lambda: all(up.phase(view["id"]) == "Starting" for view in views))
        await up.service.submissions.submit([document("later", gpusPerWorker=4)], user="ann", key=None)
        await up.service.jobs.cancel(views[0]["id"])
        assert not machines.taken
        slow.go.set()
        await up.until(lambda: up.phase(views[0]["id"]) == "Cancelled")
        assert [op.job for op in machines.taken[:3]] == [view["id"] for view in views]
        assert [op.kind for op in machines.taken if op.job == views[0]["id"]] == [OpKind.START, OpKind.STOP]


async def test_a_stopping_server_first_dispatches_committed_commands(here: str) -> None:
    machines = FakeMachines()
    async with live_server(here, machines) as up:
        up.live.loop.backend = up.live.loop.executor.backend = slow = SlowBackend(machines)
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Starting")
        up.live.stop()
        await asyncio.sleep(0)
        assert not up.task.done()
        slow.go.set()
    assert [op.job for op in machines.taken] == [view["id"]]
