"""A live server with a fake backend: guarantees across restarts and kills."""

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
from tests.engine.engine_state import state_of
from tests.engine.object_contents import contents, differences
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import damage_snapshots, document, live_server
from tests.timeouts import WAIT_S


async def test_a_job_starts_runs_and_ends_with_its_history(url: str) -> None:
    async with live_server(url) as up:
        (view,) = await up.service.submissions.submit([document(workers={"min": 1, "max": 2})], user="ann", key=None)
        job = view["id"]
        assert view["phase"] == "Pending"
        await up.until(lambda: up.phase(job) == "Running")
        seen = up.service.jobs.get(job)
        assert (seen["gpus"], seen["gpu_type"], len(seen["workers"])) == (2, "v100", 2)
        up.backend.finish(job)
        await up.until(lambda: up.phase(job) == "Succeeded")
        ended = up.service.jobs.get(job)
        assert (ended["exit_code"], ended["gpus"], ended["workers"]) == (0, 0, [])
        events = await up.service.history.events(job=job, after=0, limit=100)
        phases = [line["phase"] for line in events if line["type"] == "phase"]
        assert phases == ["Starting", "Running", "Succeeded"]


async def test_a_job_whose_end_is_being_committed_cannot_be_changed(sqlite_url: str) -> None:
    async with live_server(sqlite_url) as up:
        (view,) = await up.service.submissions.submit([document(workers={"min": 1, "max": 2})], user="ann", key=None)
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
        for change in (
            up.service.jobs.scale(job, 1),
            up.service.jobs.update(job, {"max": 1}),
            up.service.jobs.cancel(job),
        ):
            with pytest.raises(Refused, match="has just ended"):
                await change
        go.set()
        await up.until(lambda: up.phase(job) == "Succeeded")


async def test_after_a_kill_the_state_is_restored_and_nothing_starts_twice(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        ids = [
            view["id"]
            for view in await up.service.submissions.submit(
                [document(f"j{n}") for n in range(10)], user="ann", key=None
            )
        ]
        await up.until(lambda: sum(up.phase(job) == "Running" for job in ids) == 8)
        await up.settle()
        before = {job: up.service.jobs.get(job) for job in ids}
        started = list(machines.taken)
        await up.kill()
    async with live_server(url, machines) as up:
        for job in ids:
            now = up.service.jobs.get(job)
            for field in ("phase", "generation", "gpus", "nodes", "submitted", "started"):
                assert now[field] == before[job][field], (job, field)
        await up.service.jobs.cancel(ids[0])
        await up.until(lambda: sum(up.phase(job) == "Running" for job in ids) == 8)
        fresh = machines.taken[len(started) :]
        assert [op.kind for op in fresh] == [OpKind.STOP, OpKind.START]


async def test_operations_without_a_report_are_issued_again(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines, answers=False) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Starting" and machines.taken)
        (first,) = machines.taken
        await up.kill()
    async with live_server(url, machines) as up:
        await up.until(lambda: up.phase(view["id"]) == "Running")
        assert [(op.kind, op.generation) for op in machines.taken[1:]] == [(first.kind, first.generation)]


async def test_a_job_that_vanished_during_downtime_restarts(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await up.settle()
        await up.kill()
    machines.runs.clear()
    async with live_server(url, machines) as up:
        await up.until(lambda: up.phase(view["id"]) == "Running" and machines.runs)
        assert [op.kind for op in machines.taken] == [OpKind.START, OpKind.START]
        assert machines.taken[1].generation > machines.taken[0].generation


async def test_a_job_that_finished_during_downtime_is_finished(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await up.settle()
        await up.kill()
    machines.ended.append(machines.runs.pop(view["id"]).number)
    async with live_server(url, machines) as up:
        assert up.phase(view["id"]) == "Succeeded"
        await up.settle()
        assert len(machines.taken) == 1


async def test_a_running_job_that_is_ended_in_the_store_is_stopped(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        seen = dict(machines.runs)
        up.backend.finish(view["id"])
        await up.until(lambda: up.phase(view["id"]) == "Succeeded")
    machines.runs.update(seen)
    async with live_server(url, machines) as up:
        await up.until(lambda: not machines.runs)
        assert up.phase(view["id"]) == "Succeeded"


async def test_the_same_idempotency_key_returns_the_same_job_after_a_restart(url: str) -> None:
    async with live_server(url) as up:
        twice = await asyncio.gather(
            *(up.service.submissions.submit([document()], user="ann", key="k") for _ in range(5)),
        )
        assert len({views[0]["id"] for views in twice}) == 1
        await up.kill()
    async with live_server(url) as up:
        (again,) = await up.service.submissions.submit([document()], user="ann", key="k")
        assert again["id"] == twice[0][0]["id"]
        (other,) = await up.service.submissions.submit([document()], user="bob", key="k")
        assert other["id"] != again["id"]
        with pytest.raises(Refused, match="used for other jobs"):
            await up.service.submissions.submit([document("other")], user="ann", key="k")


async def test_only_one_of_two_servers_on_one_store_leads(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        with pytest.raises(Refused, match="another server uses this store"):
            async with live_server(url, machines):
                pass
        # Another server takes the lease: the old leader must notice before it acts.
        thief = await Store.open(url)
        assert await thief.acquire("thief", 1e12, 15.0) is not None
        await thief.close()
        submission = asyncio.create_task(up.service.submissions.submit([document()], user="ann", key=None))
        await asyncio.wait([up.task], timeout=WAIT_S)
        assert isinstance(up.task.exception(), LeaseLost)
        submission.cancel()
        assert not machines.taken
        await up.kill()


async def test_a_damaged_snapshot_costs_nothing_but_time(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
    await damage_snapshots(url)
    async with live_server(url, machines) as up:
        assert up.phase(view["id"]) == "Running"
        assert len(machines.taken) == 1


async def test_a_snapshot_alone_restores_everything(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines, policy="elastic-tiresias") as up:
        ids = [
            v["id"]
            for v in await up.service.submissions.submit([document(f"j{n}") for n in range(12)], user="a", key=None)
        ]
        await up.until(lambda: sum(up.phase(job) == "Running" for job in ids) == 8)
    async with live_server(url, machines) as up:
        assert up.service.cluster.policy()["name"] == "elastic-tiresias"
        assert sum(up.phase(job) == "Running" for job in ids) == 8
        for job in [job for job in ids if up.phase(job) == "Running"]:
            up.backend.finish(job)
        await up.until(lambda: all(up.phase(job) in ("Running", "Succeeded") for job in ids))


async def test_invalid_jobs_get_one_line_per_error_and_create_nothing(url: str) -> None:
    async with live_server(url) as up:
        bad = [document(), document("b", queue="nope"), document("c", workers={"min": 3, "max": 1})]
        with pytest.raises(BadInput) as caught:
            await up.service.submissions.submit(bad, user="ann", key=None)
        assert [fault.path for fault in caught.value.faults] == [
            "document 2: spec.queue",
            "document 3: spec.workers.max",
        ]
        assert up.service.jobs.page(phases=None, user=None, queue=None, labels={}, after=None, limit=10) == (
            [],
            None,
        )
        with pytest.raises(NotFound, match="no job nope"):
            up.service.jobs.get("nope")


async def test_names_dependencies_arrays_and_pages_of_lists(url: str) -> None:
    async with live_server(url) as up:
        first, second = await up.service.submissions.submit(
            [document("prep"), document("train", after=["prep"])], user="ann", key=None
        )
        await up.until(lambda: up.phase(first["id"]) == "Running")
        assert up.service.jobs.get("prep", user="ann")["id"] == first["id"]
        assert up.service.jobs.get(first["id"][-4:])["id"] == first["id"]
        assert up.service.jobs.get(second["id"][:-2])["id"] == second["id"]
        assert up.service.jobs.get(second["id"])["reason"]["code"] == "dependency"
        up.backend.finish(first["id"])
        await up.until(lambda: up.phase(second["id"]) == "Running")
        many = await up.service.submissions.submit([document("many", array="0-4")], user="ann", key=None)
        assert len({view["id"] for view in many}) == 5
        pages, cursor = [], None
        while True:
            items, cursor = up.service.jobs.page(phases=None, user=None, queue=None, labels={}, after=cursor, limit=3)
            pages += [view["id"] for view in items]
            if cursor is None:
                break
        assert pages == [first["id"], second["id"], *(view["id"] for view in many)]


async def test_a_running_job_is_not_scaled_to_an_unplaceable_size(url: str) -> None:
    async with live_server(url) as up:
        (view,) = await up.service.submissions.submit([document(workers={"min": 1, "max": 4})], user="ann", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        with pytest.raises(Refused, match=r"room for 4 workers of .* at most"):
            await up.service.jobs.scale(view["id"], 99)
        assert up.service.jobs.get(view["id"])["max"] == 4
        scaled = await up.service.jobs.scale(view["id"], 4)
        assert (scaled["fixed"], scaled["min"], scaled["max"]) == (4, 1, 4)


async def test_a_lease_without_expiry_ends_when_it_is_not_renewed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levada.live.live.LEASE_S", 0.5)

    store = await Store.open(sqlite_url)
    # The lease holder had a clock one day ahead, and its machine is gone.
    assert await store.acquire("another-machine:1:x", time.time() + 86_400, 15.0)
    await store.close()
    async with live_server(sqlite_url) as up:
        await up.service.submissions.submit([document()], user="ann", key=None)


async def test_a_zombie_server_does_not_hold_its_lease(sqlite_url: str) -> None:
    with subprocess.Popen(["sleep", "1000"]) as dead:
        dead.kill()
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is a zombie
        store = await Store.open(sqlite_url)
        assert await store.acquire(f"{socket.gethostname()}:{dead.pid}:x", time.time(), 15.0)
        await store.close()
        async with live_server(sqlite_url) as up:
            await up.service.submissions.submit([document()], user="ann", key=None)


async def test_a_restarted_container_does_not_wait_for_its_own_lease(sqlite_url: str) -> None:
    store = await Store.open(sqlite_url)
    # Its host name and its pid are those of the container before it.
    assert await store.acquire(f"{socket.gethostname()}:{os.getpid()}:x", time.time(), 15.0)
    await store.close()
    async with live_server(sqlite_url) as up:
        assert up.live.lease_age_s() < 15.0
        with pytest.raises(Refused, match="another server uses this store"):
            async with live_server(sqlite_url):
                pass


async def test_a_lease_is_renewed_while_its_server_lives(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.live.live.LEASE_S", 0.3)

    async with live_server(sqlite_url) as up:
        _, first = await up.live.store.holder()
        async with asyncio.timeout(10):
            while (renewed := (await up.live.store.holder())[1]) < first + 0.3:
                await asyncio.sleep(0.01)
        assert renewed >= first + 0.3


async def test_of_two_simultaneous_jobs_with_one_name_one_is_accepted(url: str) -> None:
    worker = {"containers": [{"name": "tensorflow", "image": "x", "command": ["python3", "train.py"]}]}
    twin = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "twin"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": worker}}}},
    }

    async with live_server(url) as up:
        results = await asyncio.gather(
            *(up.service.submissions.submit([twin], user="ann", key=None) for _ in range(4)), return_exceptions=True
        )
        assert [view["id"] for result in results if isinstance(result, list) for view in result] == ["twin"]
        refused = [str(result) for result in results if isinstance(result, Refused)]
        assert len(refused) == 3
        assert "keeps its name" in refused[0]
        await up.until(lambda: up.phase("twin") == "Running")


async def test_a_watch_misses_nothing_and_can_be_resumed(url: str) -> None:
    async with live_server(url) as up:
        seen: list[int] = []

        async def watch(after: int | None, enough: int) -> None:
            async for line in up.service.history.watch(after=after, job=None):
                seen.append(line["id"])
                if len(seen) >= enough:
                    return

        watcher = asyncio.create_task(watch(0, 6))
        await up.service.submissions.submit([document(f"j{n}") for n in range(4)], user="ann", key=None)
        await asyncio.wait_for(watcher, WAIT_S)
        await asyncio.wait_for(watch(seen[-1], 12), WAIT_S)
        assert seen == list(range(1, 13))


async def test_queries_do_not_change_the_state(url: str) -> None:
    async with live_server(url, FakeMachines({"n0": {"v100": 2}})) as up:
        jobs = [document(name, steps=100, workers={"min": 1, "max": 2}) for name in ("one", "two", "three")]
        ids = [view["id"] for view in await up.service.submissions.submit(jobs, user="ann", key=None)]
        await up.until(lambda: [up.phase(job) for job in ids].count("Running") == 2)
        numbers = np.array([up.live.loop.records.by_id[ids[0]].number])
        for steps in (5.0, 10.0):
            up.live.loop.observe(Report(events=(ev.Progress(at=0.0, number=numbers, steps=np.array([steps])),)))
            await up.settle()
        state, service = state_of(up.live.loop.engine), up.service
        believed = {job: service.jobs.curve(job) for job in ids}
        before = contents(state)
        for job in ids:
            await service.jobs.explain(job)
            service.jobs.get(job)
        await service.submissions.whatif([document("four", steps=100)], user="ann", policy="max_min_fairness")
        await service.submissions.whatif([document("five", steps=100)], user="ann", policy=None)
        (
            service.snapshot(),
            service.cluster.nodes(),
            service.cluster.queues(),
            service.cluster.policy(),
            service.cluster.policies(),
        )
        assert not differences(before, contents(state))
        assert {job: service.jobs.curve(job) for job in ids} == believed
        assert all(not curve["points"] for job, curve in believed.items() if job != ids[0]), (
            "these jobs report no progress"
        )


async def test_a_lost_node_can_be_removed_and_join_again(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:

        def nodes() -> dict[str, str]:
            return {node["name"]: node["phase"] for node in up.service.cluster.nodes()}

        with pytest.raises(NotFound, match="no node n9"):
            await up.service.cluster.remove_node("n9")
        with pytest.raises(Refused, match="n1 is connected"):
            await up.service.cluster.remove_node("n1")
        await up.service.cluster.cordon("n1", cordoned=True)
        up.backend.report(ev.NodesLost(at=0.0, names=("n1",)))
        await up.until(lambda: nodes() == {"n0": "Ready", "n1": "Lost"})
        await up.service.cluster.remove_node("n1")
        assert nodes() == {"n0": "Ready"}
        with pytest.raises(NotFound, match="no node n1"):
            await up.service.cluster.remove_node("n1")
        with pytest.raises(NotFound, match="no node n1"):
            await up.service.cluster.cordon("n1", cordoned=True)
        n0, n1 = machines.cluster.nodes
        machines.cluster = Cluster(nodes=(n0,))
        await up.kill()
    async with live_server(url, machines) as up:
        assert nodes() == {"n0": "Ready"}
        up.backend.report(ev.NodesAdded(at=0.0, nodes=(n1,)))
        await up.until(lambda: nodes() == {"n0": "Ready", "n1": "Ready"})


async def test_a_lost_node_held_by_jobs_is_not_removed(url: str) -> None:
    async with live_server(url, answers=False) as up:
        (view,) = await up.service.submissions.submit([document(workers=2, gpuTypes=["k80"])], user="ann", key=None)
        await up.until(lambda: up.backend.machines.taken)
        up.backend.report(ev.NodesLost(at=0.0, names=("n1",)))
        await up.until(lambda: up.service.cluster.nodes()[1]["phase"] == "Lost")
        with pytest.raises(Refused, match=view["id"]):
            await up.service.cluster.remove_node("n1")


async def test_get_and_list_return_the_same_job(url: str) -> None:
    async with live_server(url) as up:
        documents = [document(f"j{n}", priority=n % 3, gpusPerWorker=2) for n in range(12)]
        documents.append(document("later", after=["j0"]))
        await up.service.submissions.submit(documents, user="ann", key=None)
        await up.until(lambda: up.service.jobs.get("j2")["phase"] == "Running")
        await up.service.jobs.suspend("j9")
        await up.settle()

        def listed(**wanted: Any) -> list[dict[str, Any]]:
            asked = {"phases": None, "user": None, "queue": None, "labels": {}, "after": None, "limit": 100}
            return up.service.jobs.page(**{**asked, **wanted})[0]

        seen = listed()
        assert [view["position"] for view in seen] == [up.service.jobs.get(view["id"])["position"] for view in seen]
        places = sorted(view["position"] for view in seen if view["position"] is not None)
        assert places == list(range(1, len(places) + 1))
        assert len(places) > 3
        phases = {view["phase"] for view in seen}
        assert {"Pending", "Running", "Suspended"} <= phases
        for phase in phases:
            matching = [view["id"] for view in listed(phases={phase})]
            assert matching == [view["id"] for view in seen if view["phase"] == phase]
        assert len(listed(queue="default")) == len(seen)
        assert listed(queue="other") == listed(queue="") == []


async def test_a_backend_without_agents_rejects_them(sqlite_url: str) -> None:
    class Connection:
        async def receive(self) -> str | None:
            raise AssertionError("it was spoken with")

        async def send(self, text: str) -> None:
            raise AssertionError("it was spoken with")

        async def close(self, why: str = "") -> None:
            pass

    async with live_server(sqlite_url) as up:
        with pytest.raises(Refused, match="does not accept agents"):
            await up.service.workers.serve_agent(Connection())
