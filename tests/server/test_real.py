"""The API on the live service with its store; only the machines are simulated."""

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
from levada.runtime.http import HttpChannel
from levada.runtime.report import ProgressReport
from levada.runtime.worker_env import read as read_place
from levada.sdk import Client
from levada.server.app import api
from levada.server.context import Context
from levada.server.secrets import StoredKeys
from levada.server.worker_token import sign
from tests.live.live_server import live_server
from tests.server.http_server import KEY, Served, document, served
from tests.server.memory_service import MemoryKeys, MemoryService
from tests.server.test_schema import CHECKS, THOROUGH
from tests.timeouts import WAIT_S

schema = schemathesis.openapi.from_dict(api(Context(MemoryService(), MemoryKeys())).openapi())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("store")
    with served(live_in(folder)) as up:
        yield up


def live_in(folder: Path) -> Any:
    """Return the context of a live service and its keys, with a store in *folder*."""

    @asynccontextmanager
    async def backing() -> AsyncIterator[tuple[Any, Any]]:
        options = {"rate_limit_s": 0.0, "min_run_s": 0.0, "cooldown_s": 0.0, "payback": 0.0}
        async with live_server(f"sqlite:///{folder}/levada.db", options=options) as up:
            keys = StoredKeys(up.live.store.database)
            up.service.live_server = up  # type: ignore[attr-defined]
            yield up.service, keys

    return backing


@pytest.fixture
def client(real: Served) -> Iterator[Client]:
    with Client(real.url, real.tokens["operator"]) as operator:
        yield operator
        for job in operator.jobs(phases=["Pending", "Starting", "Running", "Resizing", "Stopping", "Suspended"]):
            with suppress(Refused):  # it may have just ended
                operator.cancel(job["id"])


def until(condition: Any) -> Any:
    end = time.monotonic() + WAIT_S
    while not (result := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return result


def test_a_job_from_submission_to_its_end(real: Served, client: Client) -> None:
    with client.watch() as events:
        [job] = client.submit(document("train", steps=100, labels={"team": "vision"}))
        client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
        running = client.get(job["id"])
        assert running["gpus"] == 4
        assert running["gpu_type"] in ("v100", "k80")
        assert client.explain(job["id"])["job"] == job["id"]
        assert [line["text"] for line in client.logs(job["id"])] == [f"{job['id']} says hello"]
        real.run(lambda: real.service.live_server.backend.finish(job["id"]))
        assert client.wait(job["id"], timeout_s=WAIT_S)["phase"] == "Succeeded"
        seen = []
        while not seen or seen[-1].get("phase") != "Succeeded":
            seen.append(next(events))
            assert seen[-1]["job"] in (job["id"], None)
    events_so_far = client.events(job["id"])
    assert [event["id"] for event in events_so_far] == sorted(event["id"] for event in events_so_far)
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
    assert [job["id"] for job in client.submit(document("version"), key="k")] == [job["id"]]
    with pytest.raises(Refused, match="key"):
        client.submit(document("other"), key="k")
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    _, version = client.get_version(job["id"])
    client.update(job["id"], priority=1, version=version)
    with pytest.raises(Refused, match="changed"):
        client.update(job["id"], priority=2, version=version)


def test_cluster_queues_policy_and_forecasts(client: Client) -> None:
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
        created = admin.create_token(user="zoe", role="user", expires_s=3600)
        with Client(real.url, created["token"]) as zoe:
            assert zoe.me()["user"] == "zoe"
        assert created["id"] in [token["id"] for token in admin.tokens()]
        admin.revoke_token(created["id"])
        assert admin.audit()[-1]["path"] == f"/api/v1/tokens/{created['id']}"
        with Client(real.url, created["token"]) as zoe, pytest.raises(Refused, match="token"):
            zoe.me()


def token_of(real: Served, job: str, worker: str) -> str:
    """Return the token of a worker of this job."""
    return sign(KEY, job, real.service.loop.records.by_id[job].number, worker)


def test_only_workers_of_a_job_can_report_for_it(real: Served, client: Client) -> None:
    def report(token: str, **fields: Any) -> int:
        return real.ask("POST", "/api/v1/worker/report", {"step": 40, **fields}, token=token).status

    def resize(workers: int) -> None:
        before = client.get(job)["generation"]
        client.scale(job, workers)
        until(lambda: client.get(job)["generation"] > before and client.get(job)["phase"] == "Running")

    job = client.submit(document("worker", steps=100, workers={"min": 1, "max": 1}))[0]["id"]
    client.wait(job, phases=["Running"], timeout_s=WAIT_S)
    first, second = token_of(real, job, "g1-0"), token_of(real, job, "g2-1")
    assert report(first, flags=3) == 200  # can resize in place
    until(lambda: (client.get(job)["progress"] or {"step": 0})["step"] == 40)
    assert report(second, generation=1) == 409  # not started yet
    resize(2)
    assert (report(first), report(second)) == (200, 200)  # the first survived the resize and keeps its token
    assert real.ask("GET", "/api/v1/worker/job", token=first).json()["id"] == job
    resize(1)
    assert (report(first), report(second, generation=3)) == (200, 409)
    # Tokens of another job with the same id, and of a job whose id is a prefix.
    number = real.service.loop.records.by_id[job].number
    assert report(sign(KEY, job, number + 1, "g1-0")) == 409
    assert report(sign(KEY, job[:-1], number, "g1-0")) == 409
    client.suspend(job)
    client.wait(job, phases=["Suspended"], timeout_s=WAIT_S)
    assert report(first) == real.ask("GET", "/api/v1/worker/job", token=first).status == 409  # stopped
    client.resume(job)
    newer = client.wait(job, phases=["Running"], timeout_s=WAIT_S)["generation"]
    assert report(first, generation=newer) == 409  # its process is gone
    assert report(token_of(real, job, f"g{newer}-0")) == 200
    client.cancel(job)
    client.wait(job, timeout_s=WAIT_S)
    stale = token_of(real, job, f"g{newer}-0")
    assert report(stale) == real.ask("GET", "/api/v1/worker/job", token=stale).status == 409


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
    channel.exchange(
        ProgressReport(flags=3, generation=generation, step=25, step_s=0.5, saves=1, saved_step=20), urgent=True
    )
    assert channel.dropped == 0
    until(lambda: (client.get(job["id"])["progress"] or {"step": 0})["step"] == 25)
    other = real.ask("POST", "/api/v1/worker/report", {"job": "other", "step": 1}, token=environment["LEVADA_TOKEN"])
    assert (other.status, other.json()["code"]) == (403, "not_allowed")
    # The server refuses reports of a stopped job.
    client.suspend(job["id"], force=True)
    client.wait(job["id"], phases=["Suspended"], timeout_s=WAIT_S)
    channel.exchange(ProgressReport(flags=3, generation=generation, step=60), urgent=True)
    assert channel.dropped == 1  # the connection is closed, too


def test_the_runtime_reads_its_token_file_again(real: Served, client: Client, tmp_path: Path) -> None:
    [job] = client.submit(document("rotated", steps=100))
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    token, generation = tmp_path / "token", client.get(job["id"])["generation"]
    environment = {
        "LEVADA_JOB": job["id"],
        "LEVADA_GENERATION": str(generation),
        "LEVADA_SERVER": real.url,
        "LEVADA_TOKEN_FILE": str(token),
        "LEVADA_WORKER": "pod-0",
    }
    place = read_place(environment)
    channel = HttpChannel(place)
    assert place.worker == "pod-0"
    for content, dropped in (("old", 1), (token_of(real, job["id"], f"g{generation}-0"), 1), ("old", 2)):
        token.write_text(content + "\n")
        channel.exchange(ProgressReport(flags=1, generation=generation, step=5), urgent=True)
        assert channel.dropped == dropped
    client.cancel(job["id"])


@pytest.mark.parametrize("cursor", ["%C2%B2", "%D9%A1", "-1", "x", "1.5"])
def test_an_invalid_cursor_is_rejected(real: Served, cursor: str) -> None:
    bad = real.ask("GET", f"/api/v1/jobs?cursor={cursor}")
    assert (bad.status, [fault["path"] for fault in bad.json()["errors"]]) == (422, ["cursor"])


def test_vodas_table(real: Served, client: Client) -> None:
    [job] = client.submit(document("table"))
    client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
    rows = real.ask("GET", "/training").text.splitlines()
    assert any(row.startswith(job["id"]) and "Running" in row for row in rows)
    gone = real.ask("DELETE", "/training", raw=b'"%s"' % job["id"].encode())
    assert gone.text == f"Training job deleted: {job['id']}"


def test_jobs_and_events_survive_a_restart(tmp_path: Path) -> None:
    with served(live_in(tmp_path)) as first, Client(first.url, first.tokens["admin"]) as client:
        [job] = client.submit(document("restarted"), key="k")
        client.wait(job["id"], phases=["Running"], timeout_s=WAIT_S)
        token = first.tokens["admin"]
        seen = client.events()
    with served(live_in(tmp_path)) as second, Client(second.url, token) as client:
        assert [job["id"] for job in client.submit(document("restarted"), key="k")] == [job["id"]]
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
def test_answers_match_the_openapi_document(case: Any, real: Served) -> None:
    if not real.service.loop.records.by_id:
        real.ask("POST", "/api/v1/jobs", document("there"))
    token = real.tokens["admin"]
    if case.path.startswith("/api/v1/worker/"):
        token = token_of(real, next(iter(real.service.loop.records.by_id)), "g1-0")
    case.call_and_validate(base_url=real.url, headers={"Authorization": f"Bearer {token}"}, checks=CHECKS, timeout=20)
