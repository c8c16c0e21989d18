"""A turn counts when it is written down: before that nothing has happened, and after it nothing is lost."""

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
from levada.live.store import Changes, Deed, Lease, LeaseLost, Store, StoreTrouble, Unconfirmed
from levada.live.store.keys import KeyStore
from tests.engine.inspect import state_of
from tests.live.house import House, document, house
from tests.live.rehearsal import Rehearsal, Stage


class Balky(Store):
    """A store that does not take the next turns with jobs, or keeps them waiting."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.refuses = 0
        #: The next turn is not taken, whatever it is.
        self.refuses_any = False
        #: No answer comes to a commit, which was done or not, nor to anything else, until it is back.
        self.breaks: str | None = None
        self.is_away = False
        self.is_full = False
        self.go = asyncio.Event()
        self.go.set()

    async def append(self, lease: Lease, changes: Changes) -> Lease:
        if self.is_away:
            raise StoreTrouble("the connection is refused")
        if self.breaks and changes.jobs:
            if self.breaks == "after":
                await super().append(lease, changes)
            self.breaks, self.is_away = None, True
            raise Unconfirmed("the connection broke")
        if self.refuses_any:
            self.refuses_any = False
            raise StoreTrouble("the disk is full; make room")
        if changes.jobs:
            await self.go.wait()
            if self.refuses:
                self.refuses -= 1
                raise StoreTrouble("the disk is full; make room")
        return await super().append(lease, changes)

    async def is_appended(self, lease: Lease, changes: Changes) -> bool:
        if self.is_away:
            raise StoreTrouble("the connection is refused")
        return await super().is_appended(lease, changes)

    async def renew(self, lease: Lease, now: float, lasts_s: float) -> None:
        if self.is_full:
            raise StoreTrouble("the disk is full; make room")
        await super().renew(lease, now, lasts_s)


def balky(up: House) -> Balky:
    up.live.loop.store = up.live.store = store = Balky(up.live.store)
    return store


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/levada.db"


def test_a_server_whose_store_takes_nothing_is_not_ready_even_while_nothing_happens(
    here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levada.live.live.LEASE_S", 0.3)

    async def story() -> None:
        async with house(here) as up:
            store = balky(up)
            assert up.service.ready() == ""
            store.is_full = True
            await up.until(lambda: up.service.ready() == "the disk is full; make room")
            store.is_full = False
            await up.until(lambda: up.service.ready() == "")

    asyncio.run(story())


def test_commands_leave_only_when_their_turn_is_written(here: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(here, stage) as up:
            store = balky(up)
            store.go.clear()
            first = asyncio.create_task(up.service.submit([document()], user="ann", key=None))
            await up.until(lambda: up.live.loop.records.by_id)
            second = asyncio.create_task(up.service.submit([document("later")], user="ann", key=None))
            for _ in range(20):
                await asyncio.sleep(0.005)
                assert not stage.taken, "an operation left before its turn was written"
            assert not first.done()
            store.go.set()
            await first
            await second
            await up.until(lambda: len(stage.runs) == 2)

    asyncio.run(story())


def test_a_submission_that_was_refused_leaves_nothing_behind(here: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(here, stage) as up:
            loop = up.live.loop
            balky(up).refuses = 2
            for key in ("k", None):
                with pytest.raises(Unavailable, match="nothing of it was done"):
                    await up.service.submit([document()], user="ann", key=key)
                assert not loop.records.by_id
                assert not state_of(loop.engine).world.numbers
                assert state_of(loop.engine).submitted == 0
            await up.until(lambda: not loop.trouble)
            (view,) = await up.service.submit([document()], user="ann", key="k")
            await up.until(lambda: up.phase(view["id"]) == "Running")
            assert list(loop.records.by_id) == [view["id"]] == list(stage.runs)
            lines = [line.text for line in await up.live.store.history() if line.type == "submitted"]
            assert len(lines) == 1
        async with house(here, stage) as again:
            assert list(again.live.loop.records.by_id) == [view["id"]] == list(stage.runs)

    asyncio.run(story())


def test_a_refused_cancel_changes_nothing_and_what_happened_with_it_is_kept(here: str) -> None:
    async def story() -> None:
        async with house(here) as up:
            names = [(await up.service.submit([document(each)], user="ann", key=None))[0]["id"] for each in "ab"]
            await up.until(lambda: all(up.phase(each) == "Running" for each in names))
            await up.settle()
            before = await up.live.store.last_history()
            number = np.array([up.backend.stage.runs.pop(names[1]).number])
            balky(up).refuses_any = True
            up.live.loop.hear(Report(events=(ev.JobsFinished(at=0.0, number=number),)))
            with pytest.raises(Unavailable, match="nothing of it was done"):
                await up.service.cancel(names[0])
            await up.until(lambda: up.phase(names[1]) == "Succeeded")
            assert up.phase(names[0]) == "Running"
            told = [(line.job, line.data.get("phase")) for line in await up.live.store.history(after=before)]
            assert told == [(names[1], "Succeeded")]
            await up.service.cancel(names[0])
            await up.until(lambda: up.phase(names[0]) == "Cancelled")

    asyncio.run(story())


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_what_a_lost_commit_did_is_known_when_the_store_is_back(here: str, breaks: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(here, stage) as up:
            store, loop = balky(up), up.live.loop
            store.breaks = breaks
            for _ in range(2):
                with pytest.raises(Unresolved, match="same key"):
                    await up.service.submit([document()], user="ann", key="k")
            with pytest.raises(Unavailable) as told:
                await up.service.submit([document("other")], user="ann", key="other")
            assert not isinstance(told.value, Unresolved), "this one was never sent"
            assert not loop.records.by_id, "nothing is shown that may not be there"
            store.is_away = False
            await up.until(lambda: not loop.trouble)
            assert len(loop.records.by_id) == (breaks == "after")
            (view,) = await up.service.submit([document()], user="ann", key="k")
            await up.until(lambda: up.phase(view["id"]) == "Running")
            assert list(loop.records.by_id) == [view["id"]] == list(stage.runs)
        async with house(here, stage) as again:
            assert list(again.live.loop.records.by_id) == [view["id"]] == list(stage.runs)

    asyncio.run(story())


def test_who_goes_away_while_they_wait_and_asks_again_gets_the_same_job(here: str) -> None:
    async def story() -> None:
        async with house(here) as up:
            store = balky(up)
            store.go.clear()
            asked = asyncio.create_task(up.service.submit([document()], user="ann", key="k"))
            await up.until(lambda: up.live.loop.records.by_id)
            asked.cancel()
            store.go.set()
            (view,) = await up.service.submit([document()], user="ann", key="k")
            assert list(up.live.loop.records.by_id) == [view["id"]]

    asyncio.run(story())


def test_who_has_lost_the_lease_keeps_nothing_and_tells_who_waits(url: str) -> None:
    async def story() -> None:
        stage, other = Stage(), await Store.open(url)

        async def loses() -> None:
            async with house(url, stage) as up:
                await up.service.submit([document("one")], user="ann", key=None)
                await up.settle()
                await other.acquire("another", 10**12, 15.0)
                async with asyncio.timeout(10):
                    with pytest.raises(LevadaError, match="had to stop"):
                        await up.service.submit([document("ghost")], user="ann", key=None)

        with pytest.raises(LeaseLost):
            await loses()
        kept = [snapshot.thaw(body) async for _, body in other.snapshots()]
        assert not [name for each in kept for name in state_of(each).world.numbers if name.startswith("ghost")]
        taken = await other.acquire("another", 10**12, 15.0)
        assert taken is not None
        await other.release(taken)
        await other.close()
        async with house(url, stage) as up:
            assert [each.about.workload for each in up.live.loop.records.by_id.values()] == ["one"]
            (view,) = await up.service.submit([document("two")], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            assert set(state_of(up.live.loop.engine).world.numbers) == set(up.live.loop.records.by_id)

    asyncio.run(story())


def test_a_server_that_cannot_hear_its_jobs_ends(here: str) -> None:
    def hear(_report: Any) -> None:
        raise RuntimeError("deaf")

    async def story() -> None:
        async with house(here) as up:
            up.live.loop.hear = hear  # type: ignore[method-assign]  # as a broken backend would
            await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: False)

    with pytest.raises(RuntimeError, match="deaf"):
        asyncio.run(story())


def tfjob(**policy: Any) -> dict[str, Any]:
    worker = {"containers": [{"name": "tensorflow", "image": "x", "command": ["python3", "train.py"]}]}
    spec = {"runPolicy": policy, "tfReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": worker}}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "named"}, "spec": spec}


def test_a_tfjob_may_be_submitted_again_after_it_was_cancelled(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            for number in range(3):
                (view,) = await up.service.submit([tfjob()], user="ann", key=f"k{number}")
                assert (view["id"], view["phase"]) == ("named", "Pending")
                await up.until(lambda: up.phase("named") == "Running")
                # Neither while it runs, nor in the place of somebody else's.
                for user in ("ann", "bob"):
                    with pytest.raises(Refused, match="keeps its name"):
                        await up.service.submit([tfjob()], user=user, key=None)
                await up.service.cancel("named")
                await up.until(lambda: up.phase("named") == "Cancelled")
                with pytest.raises(Refused, match="keeps its name"):
                    await up.service.submit([tfjob()], user="bob", key=None)
            both = [up.service.submit([tfjob()], user="ann", key=None) for _ in range(2)]
            got = await asyncio.gather(*both, return_exceptions=True)
            assert sorted(type(each).__name__ for each in got) == ["Refused", "list"]
            with pytest.raises(Refused, match="named of that submission was replaced by a newer job"):
                await up.service.submit([tfjob()], user="ann", key="k0")
            # What was used stays to be told of.
            (used,) = await up.service.usage(["user"], since=0.0)
            assert used["jobs"] == 4
            await up.until(lambda: up.phase("named") == "Running")
            up.backend.finish("named")
            await up.until(lambda: up.phase("named") == "Succeeded")
            with pytest.raises(
                Refused, match="has succeeded, and a TFJob keeps its name, output and checkpoints until"
            ):
                await up.service.submit([tfjob()], user="ann", key=None)
            await up.kill()
        async with house(url, up.backend.stage) as up:
            assert up.phase("named") == "Succeeded"

    asyncio.run(story())


@pytest.mark.parametrize("was_stored", [False, True])
def test_a_name_whose_commit_got_no_answer_is_not_given_out_meanwhile(here: str, was_stored: bool) -> None:
    class Slow(Balky):
        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.asked = asyncio.Event()

        async def is_appended(self, lease: Lease, changes: Changes) -> bool:
            self.is_away = False
            self.asked.set()
            await self.go.wait()
            return await super().is_appended(lease, changes)

    async def story() -> None:
        stage = Stage()
        async with house(here, stage) as up:
            up.live.loop.store = up.live.store = store = Slow(up.live.store)
            store.breaks = "after" if was_stored else "before"
            store.go.clear()
            first = asyncio.create_task(up.service.submit([tfjob()], user="ann", key="a"))
            await store.asked.wait()
            with pytest.raises(Refused, match="keeps its name"):
                await up.service.submit([tfjob()], user="ann", key="b")
            store.go.set()
            if was_stored:
                ((view,),) = await asyncio.gather(first)
            else:
                with pytest.raises(Unavailable, match="nothing of it was done"):
                    await first
                (view,) = await up.service.submit([tfjob()], user="ann", key="b")
            await up.until(lambda: up.phase("named") == "Running")
            assert (view["id"], list(up.live.loop.records.by_id), list(stage.runs)) == ("named", ["named"], ["named"])

    asyncio.run(story())


def test_an_ended_job_is_not_removed_for_one_that_is_refused(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []

    async def forget(_backend: Rehearsal, job: str) -> None:
        forgotten.append(job)

    monkeypatch.setattr(Rehearsal, "forget", forget)

    async def story() -> None:
        async with house(here) as up:
            store = balky(up)
            await up.service.submit([tfjob()], user="ann", key="k")
            await up.until(lambda: up.phase("named") == "Running")
            await up.service.cancel("named")
            await up.until(lambda: up.phase("named") == "Cancelled")
            store.is_full = True
            with pytest.raises(StoreTrouble, match="the disk is full"):
                await up.service.submit([tfjob()], user="ann", key=None)
            assert (forgotten, up.phase("named")) == ([], "Cancelled"), "the store was away before"
            store.is_full, store.refuses = False, 1
            with pytest.raises(Unavailable, match="ended jobs of the same name were removed: named"):
                await up.service.submit([tfjob()], user="ann", key=None)
            assert forgotten == ["named"]

    asyncio.run(story())


def test_a_name_is_free_again_when_its_job_is_out_of_all_lists(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.live.live._TIDY_S", 0.02)
    named = tfjob(ttlSecondsAfterFinished=0)

    async def story() -> None:
        async with house(url) as up:
            for number in range(2):
                await up.service.submit([named], user="ann", key=f"k{number}")
                await up.until(lambda: up.phase("named") == "Running")
                with pytest.raises(Refused, match="keeps its name"):
                    await up.service.submit([named], user="ann", key=None)
                up.backend.finish("named")
                await up.until(lambda: not up.live.loop.records.by_id)
            # Who asks once more hears how it ended.
            (view,) = await up.service.submit([named], user="ann", key="k0")
            assert (view["id"], view["phase"]) == ("named", "Succeeded")

    asyncio.run(story())


def test_jobs_that_come_while_a_turn_is_written_share_the_next_one(here: str) -> None:
    async def story() -> None:
        async with house(here) as up:
            store, loop = balky(up), up.live.loop
            store.go.clear()
            first = asyncio.create_task(up.service.submit([document()], user="ann", key=None))
            await up.until(lambda: loop.records.by_id)
            turns = loop.turns
            others = [
                asyncio.create_task(up.service.submit([document(name)], user="ann", key=name))
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

    asyncio.run(story())


def test_a_submission_is_in_the_audit_log_with_its_jobs_and_not_without_them(here: str) -> None:
    def deed() -> Deed:
        return Deed(user="ann", role="user", method="POST", path="/api/v1/jobs", status=201)

    async def story() -> None:
        async with house(here) as up:
            keys, store, first = KeyStore(up.live.store.database), balky(up), deed()
            store.go.clear()
            asked = asyncio.create_task(up.service.submit([document()], user="ann", key="k", deed=first))
            await up.until(lambda: up.live.loop.records.by_id)
            assert (first.written, await keys.audits(10)) == (False, [])
            store.go.set()
            (view,) = await asked
            assert first.written
            assert [note["detail"] for note in await keys.audits(10)] == [view["id"]]
            again = deed()
            await up.service.submit([document()], user="ann", key="k", deed=again)
            assert not again.written, "nothing was written, and whoever asked has to note it"
            with pytest.raises(BadInput):
                await up.service.submit([document("x", queue="no such")], user="ann", key=None, deed=again)
            assert not again.written
            assert len(await keys.audits(10)) == 1

    asyncio.run(story())


class Slow(Rehearsal):
    """A backend that takes its time for each operation, until it is let go."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.go = asyncio.Event()

    async def apply(self, op: Op, launch: Launch | None) -> None:
        await self.go.wait()
        await super().apply(op, launch)


def test_who_submits_does_not_wait_for_processes_to_start(here: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(here, stage) as up:
            up.live.loop.backend = slow = Slow(stage)
            views = [(await up.service.submit([document()], user="ann", key=None))[0] for _ in range(3)]
            await up.until(lambda: all(up.phase(view["id"]) == "Starting" for view in views))
            await up.service.submit([document("later", gpusPerWorker=4)], user="ann", key=None)
            await up.service.cancel(views[0]["id"])
            assert not stage.taken
            slow.go.set()
            await up.until(lambda: up.phase(views[0]["id"]) == "Cancelled")
            assert [op.job for op in stage.taken[:3]] == [view["id"] for view in views]
            assert [op.kind for op in stage.taken if op.job == views[0]["id"]] == [OpKind.START, OpKind.STOP]

    asyncio.run(story())


def test_a_server_that_stops_first_hands_on_what_is_written_down(here: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(here, stage) as up:
            up.live.loop.backend = slow = Slow(stage)
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Starting")
            up.live.stop()
            await asyncio.sleep(0)
            assert not up.task.done()
            slow.go.set()
        assert [op.job for op in stage.taken] == [view["id"]]

    asyncio.run(story())
