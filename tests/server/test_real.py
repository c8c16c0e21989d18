"""The API over the live service, with its store: only the machines are rehearsed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from levada.errors import BadInput, NotFound, Refused
from levada.live.store.keys import KeyStore
from levada.runtime.http import HttpChannel
from levada.runtime.place import read as read_place
from levada.runtime.report import Report
from levada.sdk import Client
from levada.server.app import api
from levada.server.context import Context
from levada.server.keys import StoredKeys
from levada.server.worker_token import sign
from tests.live.house import house
from tests.patience import WAIT_S
from tests.server.memory import MemoryKeys, MemoryService
from tests.server.serving import KEY, Served, document, served
from tests.server.test_schema import CHECKS, THOROUGH

schema = schemathesis.openapi.from_dict(api(Context(MemoryService(), MemoryKeys())).openapi())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("store")
    with served(live_in(folder)) as up:
        yield up


def live_in(folder: Path) -> Any:
    """A live service and its keys on a store in this folder."""

    @asynccontextmanager
    async def backing() -> AsyncIterator[tuple[Any, Any]]:
        options = {"rate_limit_s": 0.0, "min_run_s": 0.0, "cooldown_s": 0.0, "payback": 0.0}
        async with house(f"sqlite:///{folder}/levada.db", options=options) as up:
            keys = StoredKeys(KeyStore(up.live.store.database))
            up.service.house = up  # type: ignore[attr-defined]
            yield up.service, keys

    return backing


@pytest.fixture
def client(real: Served) -> Iterator[Client]:
    with Client(real.url, real.tokens["operator"]) as made:
        yield made
        for job in made.jobs(phases=["Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended"]):
            with suppress(Refused):  # it may have ended meanwhile
                made.cancel(job["id"])


def until(true: Any) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_job_from_submission_to_its_end(real: Served, client: Client) -> None:
    with client.watch() as events:
        [job] = client.submit(document("train", steps=100, labels={"team": "vision"}))
        client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
        running = client.get(job["id"])
        assert running["gpus"] == 4
        assert running["gpu_type"] in ("v100", "k80")
        assert client.explain(job["id"])["job"] == job["id"]
        assert [line["text"] for line in client.logs(job["id"])] == [f"{job['id']} says hello"]
        real.run(lambda: real.service.house.backend.finish(job["id"]))
        assert client.wait(job["id"], timeout_s=WAIT_S)["phase"] == "Succeeded"
        seen = []
        while not seen or seen[-1].get("phase") != "Succeeded":
            seen.append(next(events))
            assert seen[-1]["job"] in (job["id"], None)
    told = client.events(job["id"])
    assert [event["id"] for event in told] == sorted(event["id"] for event in told)
    with pytest.raises(Refused, match="ended"):
        client.cancel(job["id"])
    assert client.usage(["user", "queue"])[0]["user"] == "otto"


def test_jobs_are_changed_suspended_resumed(client: Client) -> None:
    [job] = client.submit(document("change"))
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    assert client.update(job["id"], priority=5, weight=2.0)["priority"] == 5
    assert client.scale(job["id"], 2)["fixed"] == 2
    client.suspend(job["id"], force=True)
    client.wait(job["id"], phases=["Suspended"], timeout_s=WAIT_S)
    client.resume(job["id"])
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    with pytest.raises(BadInput, match="queue"):
        client.update(job["id"], queue="nowhere")
    with pytest.raises(BadInput, match="max"):
        client.update(job["id"], min=9, max=8)


def test_versions_and_keys(real: Served, client: Client) -> None:
    [job] = client.submit(document("version"), key="k")
    assert [each["id"] for each in client.submit(document("version"), key="k")] == [job["id"]]
    with pytest.raises(Refused, match="key"):
        client.submit(document("other"), key="k")
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    _, version = client.get_version(job["id"])
    client.update(job["id"], priority=1, version=version)
    with pytest.raises(Refused, match="changed"):
        client.update(job["id"], priority=2, version=version)


def test_the_cluster_queues_policy_and_questions(client: Client) -> None:
    assert [node["name"] for node in client.nodes()] == ["n0", "n1"]
    assert client.cordon("n1")["phase"] == "Cordoned"
    assert client.uncordon("n1")["phase"] == "Ready"
    with pytest.raises(NotFound, match=r"did you mean|lists them"):
        client.drain("n9")
    queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "team"}, "spec": {"weight": 2.0}}
    assert client.put_queue(queue)["weight"] == 2.0
    client.drop_queue("team")
    assert client.reserve(1, 0.01, gpu_type="k80")["devices"]
    assert client.set_policy("fifo")["name"] == "fifo"
    assert client.set_rate_limit(0)["rate_limit_s"] == 0
    assert client.set_policy("elastic-fifo")["name"] == "elastic-fifo"
    [job] = client.submit(document("decided"))
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    until(client.decisions)
    last = client.decisions()[-1]
    assert client.decision(last["revision"])["policy"]
    assert client.plans()
    assert client.snapshot()["jobs"]
    assert client.whatif(document("maybe"))["jobs"]
    assert 'levada_gpus{gpu_type="v100"} 4.0' in client.metrics()
    assert 'levada_decisions_total{policy="elastic-fifo"}' in client.metrics()


def test_tokens_and_audit_are_in_the_store(real: Served) -> None:
    with Client(real.url, real.tokens["admin"]) as admin:
        made = admin.create_token(user="zoe", role="user", expires_s=3600)
        with Client(real.url, made["token"]) as zoe:
            assert zoe.me()["user"] == "zoe"
        assert made["id"] in [token["id"] for token in admin.tokens()]
        admin.revoke_token(made["id"])
        assert admin.audit()[-1]["path"] == f"/api/v1/tokens/{made['id']}"
        with Client(real.url, made["token"]) as zoe, pytest.raises(Refused, match="token"):
            zoe.me()


def token_of(real: Served, job: str, worker: str) -> str:
    """The token that a worker of this job was started with."""
    return sign(KEY, job, real.service.loop.records.by_id[job].number, worker)


def test_only_members_of_a_job_report_for_it(real: Served, client: Client) -> None:
    def told(token: str, **said: Any) -> int:
        return real.ask("POST", "/api/v1/worker/report", {"step": 40, **said}, token=token).status

    def resized(workers: int) -> None:
        before = client.get(job)["generation"]
        client.scale(job, workers)
        until(lambda: client.get(job)["generation"] > before and client.get(job)["phase"] == "Running")

    job = client.submit(document("worker", steps=100, workers={"min": 1, "max": 1}))[0]["id"]
    client.wait(job, phases=["Running"], timeout_s=WAIT_S)
    first, second = token_of(real, job, "g1-0"), token_of(real, job, "g2-1")
    assert told(first, flags=3) == 200  # and it can be resized in place
    until(lambda: (client.get(job)["progress"] or {"step": 0})["step"] == 40)
    assert told(second, generation=1) == 409  # which is not there yet
    resized(2)
    assert (told(first), told(second)) == (200, 200)  # one survived the resize, with the token of its start
    assert real.ask("GET", "/api/v1/worker/job", token=first).json()["id"] == job
    resized(1)
    assert (told(first), told(second, generation=3)) == (200, 409)
    # A token of another job that had this id, and one of a job whose id only begins so.
    number = real.service.loop.records.by_id[job].number
    assert told(sign(KEY, job, number + 1, "g1-0")) == 409
    assert told(sign(KEY, job[:-1], number, "g1-0")) == 409
    client.suspend(job)
    client.wait(job, phases=["Suspended"], timeout_s=WAIT_S)
    assert told(first) == real.ask("GET", "/api/v1/worker/job", token=first).status == 409  # it has left
    client.resume(job)
    newer = client.wait(job, phases=["Running"], timeout_s=WAIT_S)["generation"]
    assert told(first, generation=newer) == 409  # its process is gone
    assert told(token_of(real, job, f"g{newer}-0")) == 200
    client.cancel(job)
    client.wait(job, timeout_s=WAIT_S)
    over = token_of(real, job, f"g{newer}-0")
    assert told(over) == real.ask("GET", "/api/v1/worker/job", token=over).status == 409


def test_the_runtime_reports_over_http(real: Served, client: Client) -> None:
    [job] = client.submit(document("runtime", steps=100))
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    generation = client.get(job["id"])["generation"]
    environment = {
        "LEVADA_JOB": job["id"],
        "LEVADA_GENERATION": str(generation),
        "LEVADA_SERVER": real.url,
        "LEVADA_TOKEN": token_of(real, job["id"], f"g{generation}-0"),
    }
    channel = HttpChannel(read_place(environment))
    channel.exchange(Report(flags=3, generation=generation, step=25, step_s=0.5, saves=1, saved_step=20), hurry=True)
    assert channel.dropped == 0
    until(lambda: (client.get(job["id"])["progress"] or {"step": 0})["step"] == 25)
    theirs = real.ask("POST", "/api/v1/worker/report", {"job": "other", "step": 1}, token=environment["LEVADA_TOKEN"])
    assert (theirs.status, theirs.json()["code"]) == (403, "not_allowed")
    # One whose job was stopped is told no.
    client.suspend(job["id"], force=True)
    client.wait(job["id"], phases=["Suspended"], timeout_s=WAIT_S)
    channel.exchange(Report(flags=3, generation=generation, step=60), hurry=True)
    assert channel.dropped == 1  # which also closed its connection


@pytest.mark.parametrize("cursor", ["%C2%B2", "%D9%A1", "-1", "x", "1.5"])
def test_a_cursor_that_is_none_is_refused(real: Served, cursor: str) -> None:
    bad = real.ask("GET", f"/api/v1/jobs?cursor={cursor}")
    assert (bad.status, [each["path"] for each in bad.json()["errors"]]) == (422, ["cursor"])


def test_vodas_table(real: Served, client: Client) -> None:
    [job] = client.submit(document("table"))
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    rows = real.ask("GET", "/training").text.splitlines()
    assert any(row.startswith(job["id"]) and "Running" in row for row in rows)
    gone = real.ask("DELETE", "/training", raw=b'"%s"' % job["id"].encode())
    assert gone.text == f"Training job deleted: {job['id']}"


def test_what_was_done_is_there_after_a_restart(tmp_path: Path) -> None:
    with served(live_in(tmp_path)) as first, Client(first.url, first.tokens["admin"]) as client:
        [job] = client.submit(document("kept"), key="k")
        client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
        token = first.tokens["admin"]
        seen = client.events()
    with served(live_in(tmp_path)) as second, Client(second.url, token) as client:
        assert [each["id"] for each in client.submit(document("kept"), key="k")] == [job["id"]]
        assert client.events()[: len(seen)] == seen
        with client.watch(after=seen[-2]["id"]) as events:
            assert next(events) == seen[-1]


@schema.exclude(path_regex="^/api/v1/(watch|agents)").parametrize()
@settings(
    max_examples=100 if THOROUGH else 5,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_every_answer_is_as_described(case: Any, real: Served) -> None:
    if not real.service.loop.records.by_id:
        real.ask("POST", "/api/v1/jobs", document("there"))
    token = real.tokens["admin"]
    if case.path.startswith("/api/v1/worker/"):
        token = token_of(real, next(iter(real.service.loop.records.by_id)), "g1-0")
    case.call_and_validate(base_url=real.url, headers={"Authorization": f"Bearer {token}"}, checks=CHECKS, timeout=20)
