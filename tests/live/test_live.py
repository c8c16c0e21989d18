"""A live server with a backend that obeys at once: what it promises its users, across restarts and kills."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from typing import Any

import numpy as np
import pytest

from levada.backends.protocol import Report
from levada.core import events as ev
from levada.core.cluster import Cluster
from levada.core.plan import OpKind
from levada.errors import BadInput, NotFound, Refused
from levada.live.store import LeaseLost, Store
from tests.engine.contents import changed, contents
from tests.engine.inspect import state_of
from tests.live.house import damage_snapshots, document, house
from tests.live.rehearsal import Stage
from tests.patience import WAIT_S


def test_a_job_starts_runs_and_ends_with_its_story(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            (view,) = await up.service.submit([document(workers={"min": 1, "max": 2})], user="ann", key=None)
            job = view["id"]
            assert view["phase"] == "Pending"
            await up.until(lambda: up.phase(job) == "Running")
            seen = up.service.job(job)
            assert (seen["gpus"], seen["gpu_type"], len(seen["workers"])) == (2, "v100", 2)
            up.backend.finish(job)
            await up.until(lambda: up.phase(job) == "Succeeded")
            ended = up.service.job(job)
            assert (ended["exit_code"], ended["gpus"], ended["workers"]) == (0, 0, [])
            told = await up.service.history(job=job, after=0, limit=100)
            phases = [line["phase"] for line in told if line["type"] == "phase"]
            assert phases == ["Starting", "Running", "Succeeded"]

    asyncio.run(story())


def test_a_job_whose_end_is_being_written_down_cannot_be_changed(sqlite_url: str) -> None:
    async def story() -> None:
        async with house(sqlite_url) as up:
            (view,) = await up.service.submit([document(workers={"min": 1, "max": 2})], user="ann", key=None)
            job = view["id"]
            await up.until(lambda: up.phase(job) == "Running")
            await up.settle()
            append, reached, go = up.live.store.append, asyncio.Event(), asyncio.Event()

            async def late(*words: Any) -> Any:
                reached.set()
                await go.wait()
                return await append(*words)

            up.live.store.append = late  # type: ignore[method-assign]
            up.backend.finish(job)
            await asyncio.wait_for(reached.wait(), WAIT_S)
            for change in (up.service.scale(job, 1), up.service.update(job, {"max": 1}), up.service.cancel(job)):
                with pytest.raises(Refused, match="has just ended"):
                    await change
            go.set()
            await up.until(lambda: up.phase(job) == "Succeeded")

    asyncio.run(story())


def test_after_a_kill_everything_is_where_it_was_and_nothing_starts_twice(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            ids = [
                view["id"]
                for view in await up.service.submit([document(f"j{n}") for n in range(10)], user="ann", key=None)
            ]
            await up.until(lambda: sum(up.phase(job) == "Running" for job in ids) == 8)
            await up.settle()
            before = {job: up.service.job(job) for job in ids}
            started = list(stage.taken)
            await up.kill()
        async with house(url, stage) as up:
            for job in ids:
                now = up.service.job(job)
                for field in ("phase", "generation", "gpus", "nodes", "submitted", "started"):
                    assert now[field] == before[job][field], (job, field)
            await up.service.cancel(ids[0])
            await up.until(lambda: sum(up.phase(job) == "Running" for job in ids) == 8)
            fresh = stage.taken[len(started) :]
            assert [op.kind for op in fresh] == [OpKind.STOP, OpKind.START]

    asyncio.run(story())


def test_what_was_issued_and_not_heard_of_is_issued_again(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage, answers=False) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Starting" and stage.taken)
            (first,) = stage.taken
            await up.kill()
        async with house(url, stage) as up:
            await up.until(lambda: up.phase(view["id"]) == "Running")
            assert [(op.kind, op.generation) for op in stage.taken[1:]] == [(first.kind, first.generation)]

    asyncio.run(story())


def test_a_job_that_is_gone_when_the_server_comes_back_starts_again(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()
            await up.kill()
        stage.runs.clear()
        async with house(url, stage) as up:
            await up.until(lambda: up.phase(view["id"]) == "Running" and stage.runs)
            assert [op.kind for op in stage.taken] == [OpKind.START, OpKind.START]
            assert stage.taken[1].generation > stage.taken[0].generation

    asyncio.run(story())


def test_a_job_that_was_done_while_no_server_watched_is_done(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()
            await up.kill()
        stage.ended.append(stage.runs.pop(view["id"]).number)
        async with house(url, stage) as up:
            assert up.phase(view["id"]) == "Succeeded"
            await up.settle()
            assert len(stage.taken) == 1

    asyncio.run(story())


def test_what_runs_and_is_over_is_stopped(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            seen = dict(stage.runs)
            up.backend.finish(view["id"])
            await up.until(lambda: up.phase(view["id"]) == "Succeeded")
        stage.runs.update(seen)
        async with house(url, stage) as up:
            await up.until(lambda: not stage.runs)

    asyncio.run(story())


def test_the_same_key_is_the_same_job_even_after_a_restart(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            twice = await asyncio.gather(
                *(up.service.submit([document()], user="ann", key="k") for _ in range(5)),
            )
            assert len({views[0]["id"] for views in twice}) == 1
            await up.kill()
        async with house(url) as up:
            (again,) = await up.service.submit([document()], user="ann", key="k")
            assert again["id"] == twice[0][0]["id"]
            (other,) = await up.service.submit([document()], user="bob", key="k")
            assert other["id"] != again["id"]
            with pytest.raises(Refused, match="used for other jobs"):
                await up.service.submit([document("other")], user="ann", key="k")

    asyncio.run(story())


def test_of_two_servers_on_one_store_one_acts(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            with pytest.raises(Refused, match="another server acts"):
                async with house(url, stage):
                    pass
            # Another one takes the lease although this one lives: it must notice before it does anything.
            thief = await Store.open(url)
            assert await thief.acquire("thief", 1e12, 15.0) is not None
            await thief.close()
            submission = asyncio.create_task(up.service.submit([document()], user="ann", key=None))
            await asyncio.wait([up.task], timeout=WAIT_S)
            assert isinstance(up.task.exception(), LeaseLost)
            submission.cancel()
            assert not stage.taken
            await up.kill()

    asyncio.run(story())


def test_a_damaged_snapshot_costs_nothing_but_time(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
        await damage_snapshots(url)
        async with house(url, stage) as up:
            assert up.phase(view["id"]) == "Running"
            assert len(stage.taken) == 1

    asyncio.run(story())


def test_a_snapshot_alone_brings_everything_back(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage, policy="elastic-tiresias") as up:
            ids = [v["id"] for v in await up.service.submit([document(f"j{n}") for n in range(12)], user="a", key=None)]
            await up.until(lambda: sum(up.phase(job) == "Running" for job in ids) == 8)
        async with house(url, stage) as up:
            assert up.service.policy()["name"] == "elastic-tiresias"
            assert sum(up.phase(job) == "Running" for job in ids) == 8
            for job in [job for job in ids if up.phase(job) == "Running"]:
                up.backend.finish(job)
            await up.until(lambda: all(up.phase(job) in ("Running", "Succeeded") for job in ids))

    asyncio.run(story())


def test_bad_jobs_get_a_line_per_fault_and_nothing_is_made(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            bad = [document(), document("b", queue="nope"), document("c", workers={"min": 3, "max": 1})]
            with pytest.raises(BadInput) as told:
                await up.service.submit(bad, user="ann", key=None)
            assert [fault.path for fault in told.value.faults] == [
                "document 2: spec.queue",
                "document 3: spec.workers.max",
            ]
            assert up.service.jobs(phases=None, user=None, queue=None, labels={}, after=None, limit=10) == ([], None)
            with pytest.raises(NotFound, match="no job nope"):
                up.service.job("nope")

    asyncio.run(story())


def test_names_dependencies_arrays_and_pages(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            first, second = await up.service.submit(
                [document("prep"), document("train", after=["prep"])], user="ann", key=None
            )
            await up.until(lambda: up.phase(first["id"]) == "Running")
            assert up.service.job("prep", user="ann")["id"] == first["id"]
            assert up.service.job(first["id"][-4:])["id"] == first["id"]
            assert up.service.job(second["id"][:-2])["id"] == second["id"]
            assert up.service.job(second["id"])["reason"]["code"] == "dependency"
            up.backend.finish(first["id"])
            await up.until(lambda: up.phase(second["id"]) == "Running")
            many = await up.service.submit([document("many", array="0-4")], user="ann", key=None)
            assert len({view["id"] for view in many}) == 5
            pages, cursor = [], None
            while True:
                items, cursor = up.service.jobs(phases=None, user=None, queue=None, labels={}, after=cursor, limit=3)
                pages += [view["id"] for view in items]
                if cursor is None:
                    break
            assert pages == [first["id"], second["id"], *(view["id"] for view in many)]

    asyncio.run(story())


def test_a_job_that_runs_is_not_scaled_to_what_can_never_be(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            (view,) = await up.service.submit([document(workers={"min": 1, "max": 4})], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            with pytest.raises(Refused, match=r"room for 4 workers of .* at most"):
                await up.service.scale(view["id"], 99)
            assert up.service.job(view["id"])["max"] == 4
            scaled = await up.service.scale(view["id"], 4)
            assert (scaled["fixed"], scaled["min"], scaled["max"]) == (4, 1, 4)

    asyncio.run(story())


def test_a_lease_that_would_last_for_ever_is_only_as_long_as_somebody_renews_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levada.live.live.LEASE_S", 0.5)

    async def story() -> None:
        store = await Store.open(sqlite_url)
        # Whoever had it had a clock that was a day ahead, and is gone with its machine.
        assert await store.acquire("another-machine:1:x", time.time() + 86_400, 15.0)
        await store.close()
        async with house(sqlite_url) as up:
            await up.service.submit([document()], user="ann", key=None)

    asyncio.run(story())


def test_a_server_that_was_killed_holds_its_lease_no_more_even_if_nobody_has_buried_it(sqlite_url: str) -> None:
    async def story(holder: str) -> None:
        store = await Store.open(sqlite_url)
        assert await store.acquire(holder, time.time(), 15.0)
        await store.close()
        async with house(sqlite_url) as up:
            await up.service.submit([document()], user="ann", key=None)

    with subprocess.Popen(["sleep", "1000"]) as dead:
        dead.kill()
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays in the list of processes
        asyncio.run(story(f"{socket.gethostname()}:{dead.pid}:x"))


def test_a_lease_is_renewed_while_its_server_lives(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.live.live.LEASE_S", 0.3)

    async def story() -> None:
        async with house(sqlite_url) as up:
            _, first = await up.live.store.holder()
            async with asyncio.timeout(10):
                while (await up.live.store.holder())[1] < first + 0.3:
                    await asyncio.sleep(0.01)

    asyncio.run(story())


def test_of_two_that_keep_the_same_name_and_come_at_once_one_is_taken(url: str) -> None:
    worker = {"containers": [{"name": "tensorflow", "image": "x", "command": ["python3", "train.py"]}]}
    twin = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "twin"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": worker}}}},
    }

    async def story() -> None:
        async with house(url) as up:
            told = await asyncio.gather(
                *(up.service.submit([twin], user="ann", key=None) for _ in range(4)), return_exceptions=True
            )
            assert [view["id"] for answer in told if isinstance(answer, list) for view in answer] == ["twin"]
            refused = [str(answer) for answer in told if isinstance(answer, Refused)]
            assert len(refused) == 3
            assert "keeps its name" in refused[0]
            await up.until(lambda: up.phase("twin") == "Running")

    asyncio.run(story())


def test_who_watches_misses_nothing_and_can_go_on_from_where_they_were(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            seen: list[int] = []

            async def watch(after: int | None, enough: int) -> None:
                async for line in up.service.watch(after=after, job=None):
                    seen.append(line["id"])
                    if len(seen) >= enough:
                        return

            watcher = asyncio.create_task(watch(0, 6))
            await up.service.submit([document(f"j{n}") for n in range(4)], user="ann", key=None)
            await asyncio.wait_for(watcher, WAIT_S)
            await asyncio.wait_for(watch(seen[-1], 12), WAIT_S)
            assert seen == list(range(1, 13))

    asyncio.run(story())


def test_no_question_changes_what_the_server_believes(url: str) -> None:
    async def story() -> None:
        async with house(url, Stage({"n0": {"v100": 2}})) as up:
            jobs = [document(name, steps=100, workers={"min": 1, "max": 2}) for name in ("one", "two", "three")]
            ids = [each["id"] for each in await up.service.submit(jobs, user="ann", key=None)]
            await up.until(lambda: [up.phase(each) for each in ids].count("Running") == 2)
            numbers = np.array([up.live.loop.records.by_id[ids[0]].number])
            for steps in (5.0, 10.0):
                up.live.loop.hear(Report(events=(ev.Progress(at=0.0, number=numbers, steps=np.array([steps])),)))
                await up.settle()
            state, service = state_of(up.live.loop.engine), up.service
            believed = {each: service.curve(each) for each in ids}
            before = contents(state)
            for each in ids:
                await service.explain(each)
                service.job(each)
            await service.whatif([document("four", steps=100)], user="ann", policy="max_min_fairness")
            await service.whatif([document("five", steps=100)], user="ann", policy=None)
            service.snapshot(), service.nodes(), service.queues(), service.policy(), service.policies()
            assert not changed(before, contents(state))
            assert {each: service.curve(each) for each in ids} == believed
            assert all(not told["points"] for job, told in believed.items() if job != ids[0]), "they report nothing"

    asyncio.run(story())


def test_a_node_that_is_lost_can_be_removed_and_joins_anew(url: str) -> None:
    async def story() -> None:
        stage = Stage()
        async with house(url, stage) as up:

            def nodes() -> dict[str, str]:
                return {node["name"]: node["phase"] for node in up.service.nodes()}

            with pytest.raises(NotFound, match="no node n9"):
                await up.service.remove_node("n9")
            with pytest.raises(Refused, match="n1 is there"):
                await up.service.remove_node("n1")
            await up.service.cordon("n1", cordoned=True)
            up.backend.report(ev.NodesLost(at=0.0, names=("n1",)))
            await up.until(lambda: nodes() == {"n0": "Ready", "n1": "Lost"})
            await up.service.remove_node("n1")
            assert nodes() == {"n0": "Ready"}
            with pytest.raises(NotFound, match="no node n1"):
                await up.service.remove_node("n1")
            with pytest.raises(NotFound, match="no node n1"):
                await up.service.cordon("n1", cordoned=True)
            n0, n1 = stage.cluster.nodes
            stage.cluster = Cluster(nodes=(n0,))
            await up.kill()
        async with house(url, stage) as up:
            assert nodes() == {"n0": "Ready"}
            up.backend.report(ev.NodesAdded(at=0.0, nodes=(n1,)))
            await up.until(lambda: nodes() == {"n0": "Ready", "n1": "Ready"})

    asyncio.run(story())


def test_a_lost_node_that_jobs_still_hold_is_not_removed(url: str) -> None:
    async def story() -> None:
        async with house(url, answers=False) as up:
            (view,) = await up.service.submit([document(workers=2, gpuTypes=["k80"])], user="ann", key=None)
            await up.until(lambda: up.backend.stage.taken)
            up.backend.report(ev.NodesLost(at=0.0, names=("n1",)))
            await up.until(lambda: up.service.nodes()[1]["phase"] == "Lost")
            with pytest.raises(Refused, match=view["id"]):
                await up.service.remove_node("n1")

    asyncio.run(story())


def test_one_job_and_a_list_of_jobs_say_the_same(url: str) -> None:
    async def story() -> None:
        async with house(url) as up:
            documents = [document(f"j{n}", priority=n % 3, gpusPerWorker=2) for n in range(12)]
            documents.append(document("later", after=["j0"]))
            await up.service.submit(documents, user="ann", key=None)
            await up.until(lambda: up.service.job("j2")["phase"] == "Running")
            await up.service.suspend("j9")
            await up.settle()

            def listed(**wanted: Any) -> list[dict[str, Any]]:
                asked = {"phases": None, "user": None, "queue": None, "labels": {}, "after": None, "limit": 100}
                return up.service.jobs(**{**asked, **wanted})[0]

            seen = listed()
            assert [view["position"] for view in seen] == [up.service.job(view["id"])["position"] for view in seen]
            places = sorted(view["position"] for view in seen if view["position"] is not None)
            assert places == list(range(1, len(places) + 1))
            assert len(places) > 3
            phases = {view["phase"] for view in seen}
            assert {"Pending", "Running", "Suspended"} <= phases
            for phase in phases:
                found = [view["id"] for view in listed(phases={phase})]
                assert found == [view["id"] for view in seen if view["phase"] == phase]
            assert len(listed(queue="default")) == len(seen)
            assert listed(queue="other") == listed(queue="") == []

    asyncio.run(story())


def test_a_backend_without_agents_refuses_them(sqlite_url: str) -> None:
    class Connection:
        async def receive(self) -> str | None:
            raise AssertionError("it was spoken with")

        async def send(self, text: str) -> None:
            raise AssertionError("it was spoken with")

        async def close(self, why: str = "") -> None:
            pass

    async def story() -> None:
        async with house(sqlite_url) as up:
            with pytest.raises(Refused, match="takes no agents"):
                await up.service.serve_agent(Connection())

    asyncio.run(story())
