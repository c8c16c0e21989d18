"""The methods of the client."""

import threading
import time

import pytest

from levada.errors import BadInput, NotFound, Refused
from levada.sdk import Client
from tests.server.http_server import KEY, Served, document


def test_a_job_is_submitted_read_changed_and_cancelled(client: Client) -> None:
    [job] = client.submit(document(labels={"team": "vision"}))
    assert job["phase"] == "Running"
    assert client.get("resnet50")["id"] == job["id"]
    assert client.get(job["id"][-4:])["id"] == job["id"]
    assert client.update(job["id"], priority=7)["priority"] == 7
    scaled = client.scale(job["id"], 3)
    assert (scaled["fixed"], scaled["message"]) == (3, "Fixed at 3 workers.")
    assert client.suspend(job["id"])["phase"] == "Suspended"
    assert client.resume(job["id"])["phase"] == "Pending"
    assert client.explain(job["id"])["job"] == job["id"]
    assert client.cancel(job["id"])["phase"] == "Cancelled"
    with pytest.raises(Refused, match="ended already"):
        client.cancel(job["id"])


def test_an_empty_name_is_rejected(client: Client) -> None:
    for method in (client.get, client.wait, client.cancel):
        with pytest.raises(BadInput, match="must not be empty"):
            method("")


def test_all_documents_are_accepted_or_none(client: Client) -> None:
    assert [job["workload"] for job in client.submit([document("a"), document("b", array="0-2")])] == ["a", *"bbb"]
    with pytest.raises(BadInput) as caught:
        client.submit([document("c"), document("d", workers=0)])
    assert [fault.path for fault in caught.value.faults] == ["document 2: spec.workers.min"]
    assert len(client.jobs()) == 4


def test_lists_combine_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.sdk.client._PAGE", 3)
    ids = [job["id"] for job in client.submit([document(f"job{i}") for i in range(8)])]
    assert [job["id"] for job in client.jobs()] == ids
    assert [job["id"] for job in client.jobs(limit=4)] == ids[:4]
    client.cancel(ids[0])
    assert [job["id"] for job in client.jobs(phases=["Cancelled"])] == ids[:1]
    assert client.jobs(user="unknown") == []
    assert len(client.jobs(user="me")) == 8
    assert client.jobs(labels={"team": "vision"}) == []
    assert [event["id"] for event in client.events()] == list(range(1, 18))
    assert {event["job"] for event in client.events(ids[2])} == {ids[2]}


def test_columns_combine_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levada.sdk.client._PAGE", 1)  # two jobs per page of columns
    ids = [job["id"] for job in client.submit([document(f"job{i}") for i in range(5)])]
    columns = client.job_columns(["id", "workload", "progress.step", "id"])
    assert columns == {"id": ids, "workload": [f"job{i}" for i in range(5)], "progress.step": [0] * 5}
    assert client.job_columns(["id"], limit=3) == {"id": ids[:3]}
    assert client.job_columns(["id"], user="unknown") == {"id": []}
    with pytest.raises(BadInput, match="did you mean phase"):
        client.job_columns(["fase"])


def test_a_version_guards_a_write(client: Client) -> None:
    [job] = client.submit(document())
    _, version = client.get_version(job["id"])
    client.update(job["id"], priority=1, version=version)
    with pytest.raises(Refused, match="changed"):
        client.update(job["id"], priority=2, version=version)
    with pytest.raises(Refused, match="changed"):
        client.cancel(job["id"], version=version)
    assert client.get(job["id"])["priority"] == 1


def test_the_cluster_and_the_policy(client: Client) -> None:
    assert [node["name"] for node in client.nodes()] == ["node-0"]
    assert client.cordon("node-0")["phase"] == "Cordoned"
    assert client.drain("node-0")["phase"] == "Cordoned"
    assert client.uncordon("node-0")["phase"] == "Ready"
    with pytest.raises(Refused, match="is connected"):
        client.remove_node("node-0")
    with pytest.raises(NotFound, match="no node"):
        client.remove_node("node-9")
    assert client.reserve(2, 60)["devices"] == {"node-0": ["0", "1"]}
    queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "team"}, "spec": {"weight": 2.0}}
    assert client.put_queue(queue)["weight"] == 2.0
    assert [queue["name"] for queue in client.queues()] == ["default", "team"]
    client.drop_queue("team")
    with pytest.raises(NotFound):
        client.drop_queue("team")
    assert client.set_policy("tiresias", {"queue_limit": 60.0})["name"] == "tiresias"
    assert client.set_rate_limit(5)["rate_limit_s"] == 5
    assert client.policy() == {"name": "tiresias", "options": {"queue_limit": 60.0}, "rate_limit_s": 5}
    assert "fifo" in [policy["name"] for policy in client.policies()]
    with pytest.raises(BadInput, match="did you mean tiresias"):
        client.set_policy("tiresia")


def test_reads_that_change_nothing(client: Client) -> None:
    assert client.whatif(document(), policy="fifo")["policy"] == "fifo"
    case = {"policy": "fifo", "cluster": {"gpus": {"v100": 3}}, "jobs": [{"id": "A", "min": 2}, {"id": "B", "min": 2}]}
    assert client.allocate(case)["allocations"] == {"A": {"v100": 2}, "B": {}}
    assert client.decision(1)["revision"] == 1
    assert client.decisions()[0]["revision"] == 1
    assert client.plans() == []
    [usage] = client.usage(["user", "queue"])
    assert (usage["user"], usage["queue"], usage["gpu_seconds"]) == ("-", "-", 0.0)
    assert client.snapshot()["jobs"] == []
    assert client.jobs() == []
    assert client.ready() == ""
    assert client.version()
    assert "levada_jobs" in client.metrics()


def test_tokens_are_created_used_and_revoked(up: Served) -> None:
    admin = Client(up.url, up.tokens["admin"])
    created = admin.create_token(user="zoe", role="user")
    zoe = Client(up.url, created["token"])
    assert zoe.me() == {"user": "zoe", "role": "user"}
    zoe.submit(document())
    assert "zoe" in [user["name"] for user in admin.users()]
    assert created["id"] in [token["id"] for token in admin.tokens()]
    assert admin.audit()[-1]["path"] == "/api/v1/jobs"
    admin.revoke_token(created["id"])
    with pytest.raises(Refused, match="token"):
        zoe.me()
    admin.create_token(user="zoe")
    admin.revoke_user("zoe")
    with pytest.raises(NotFound):
        admin.revoke_user("zoe")
    zoe.close()
    admin.close()


def test_logs_end_or_follow_until_the_job_has_ended(up: Served, client: Client) -> None:
    [job] = client.submit(document())
    for text in ("one", "two", "drei ✓"):
        up.run(lambda text=text: up.service.add_output(job["id"], text))
    assert [line["text"] for line in client.logs(job["id"])] == ["one", "two", "drei ✓"]
    assert [line["text"] for line in client.logs(job["id"], tail=1)] == ["drei ✓"]
    with pytest.raises(NotFound):
        client.logs(job["id"], worker="7")
    with client.logs(job["id"], tail=0, follow=True) as lines:
        up.run(lambda: up.service.add_output(job["id"], "four"))
        assert next(lines)["text"] == "four"
        up.run(lambda: up.service.end(job["id"]))
        assert list(lines) == []


def test_waiting_ends_with_the_job(up: Served, client: Client) -> None:
    [job] = client.submit(document())
    ended: list[str] = []
    waiting = threading.Thread(target=lambda: ended.append(client.wait(job["id"])["phase"]))
    waiting.start()
    until = time.monotonic() + 10
    while up.run(lambda: up.service.open_watches) == 0 and time.monotonic() < until:
        pass
    client.update(job["id"], priority=3)
    up.run(lambda: up.service.end(job["id"], "Failed"))
    waiting.join(10)
    assert ended == ["Failed"]
    assert client.wait(job["id"])["phase"] == "Failed"


def test_waiting_times_out(client: Client) -> None:
    [job] = client.submit(document())
    assert client.wait(job["id"], phases=["Running"])["phase"] == "Running"
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="still Running"):
        client.wait(job["id"], timeout_s=0.3)
    assert time.monotonic() - began < 5


def test_a_worker_reports_with_its_own_token(up: Served, client: Client) -> None:
    from levada.server.worker_token import sign

    [job] = client.submit(document())
    worker = Client(up.url, sign(KEY, job["id"], 0, "g1-0"))
    worker._call("POST", "/worker/report", body={"step": 10, "saves": 1})
    assert up.service.reports == [(job["id"], "g1-0", {"step": 10.0, "saves": 1})]
    with pytest.raises(Refused):
        worker.get(job["id"])
    stale = Client(up.url, sign(KEY, job["id"], 0, "g0-0"))
    with pytest.raises(Refused, match="has ended"):
        stale._call("POST", "/worker/report", body={"step": 11})
    worker.close()
    stale.close()
