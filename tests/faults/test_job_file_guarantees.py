"""Guarantees of job file fields, with a real server and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.real_server import RealServer, real_server

_OVER = ("Succeeded", "Failed", "Cancelled")
#: Waits until a file exists.
_WAIT = "until test -e {0}; do sleep 0.2; done; "
_PLAIN = ["sleep", "1000"]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("guarantees")
    (folder / "home").mkdir()
    with real_server(folder / "home", nodes=("a100=4",)) as server:
        yield server.up()


@pytest.fixture
def server(shared_server: RealServer) -> Iterator[RealServer]:
    yield shared_server
    for job in shared_server.client.jobs():
        if job["phase"] not in _OVER:
            shared_server.client.cancel(job["id"])
    shared_server.wait_until(
        lambda: not shared_server.job_processes() and all(job["phase"] in _OVER for job in shared_server.client.jobs())
    )


def wait_decisions(server: RealServer, more: int) -> None:
    """Trigger *more* further decisions with small CPU jobs, and wait for them."""
    first = server.client.decisions(1)[-1]["revision"]
    for index in range(more):
        quick = server.submit(f"quick-{index}", ["true"], gpusPerWorker=0)
        server.wait_phase(quick, "Succeeded")
    server.wait_until(lambda: server.client.decisions(1)[-1]["revision"] > first)


def wait_view(server: RealServer, job: str, **fields: Any) -> dict[str, Any]:
    """Wait until the job has these field values; return it."""

    def matching_view() -> dict[str, Any] | None:
        view: dict[str, Any] = dict(server.client.get(job))
        return view if all(view[name] == value for name, value in fields.items()) else None

    return server.wait_until(matching_view)


def test_a_script_without_checkpoints_is_protected_until_its_first(server: RealServer) -> None:
    first = server.submit("auto", _PLAIN, workers={"min": 1, "max": 4}, preemptible="auto")
    before = wait_view(server, first, phase="Running", gpus=4)
    # Not even for a job with higher priority.
    second = server.submit("more", _PLAIN, workers=2, priority=100)
    wait_decisions(server, 3)
    now = server.client.get(first)
    assert (now["gpus"], now["generation"], now["moves"]) == (4, before["generation"], 0)
    assert server.phase(second) == "Pending"
    (server.home / "jobs" / first / "checkpoints" / "model").write_text("weights")
    wait_view(server, first, phase="Running", gpus=2)
    wait_view(server, second, phase="Running", gpus=2)


def test_preemptible_true_is_preempted_at_once_and_false_never(server: RealServer) -> None:
    gives = server.submit("gives", _PLAIN, workers={"min": 1, "max": 3}, preemptible=True)
    wait_view(server, gives, phase="Running", gpus=3)
    keeps = server.submit("keeps", _PLAIN, workers={"min": 1, "max": 2}, preemptible=False)
    before = wait_view(server, keeps, phase="Running")
    (server.home / "jobs" / keeps / "checkpoints" / "model").write_text("weights")
    wants = server.submit("wants", _PLAIN, workers=1)
    wait_view(server, wants, phase="Running")
    after = server.client.get(keeps)
    assert (after["gpus"], after["generation"]) == (before["gpus"], before["generation"])
    assert server.client.get(gives)["resizes"] >= 1


def test_a_job_fails_after_its_last_retry(server: RealServer, tmp_path: Path) -> None:
    counts = f"echo x >> {tmp_path}/{{0}}; test $(wc -l < {tmp_path}/{{0}}) -ge {{1}} || exit 7"
    lucky = server.submit("lucky", ["sh", "-c", counts.format("lucky", 3)], retries=3)
    unlucky = server.submit("unlucky", ["sh", "-c", counts.format("unlucky", 9)], retries=1)
    ended = server.wait_phase(lucky, *_OVER)
    assert (ended["phase"], ended["exit_code"], ended["restarts"]) == ("Succeeded", 0, 2)
    ended = server.wait_phase(unlucky, *_OVER)
    assert (ended["phase"], ended["exit_code"], ended["restarts"]) == ("Failed", 7, 1)
    assert (tmp_path / "unlucky").read_text() == "x\nx\n"


def test_a_time_limit_ends_a_job(server: RealServer) -> None:
    job = server.submit("limited", _PLAIN, timeLimit="1s", checkpoint={"gracePeriod": "1s"}, retries=5)
    ended = server.wait_phase(job, *_OVER)
    assert (ended["phase"], ended["reason"]["code"], ended["restarts"]) == ("Failed", "time-limit", 0)
    assert ended["reason"]["text"].startswith("Reached its time limit after ")
    assert 0.9 < ended["running_s"] < 5


def test_a_job_starts_after_its_dependencies(server: RealServer, tmp_path: Path) -> None:
    go = _WAIT.format(tmp_path / "go")
    good = server.submit("good", ["sh", "-c", go])
    bad = server.submit("bad", ["sh", "-c", go + "exit 1"])
    after_good, after_bad = (server.submit(f"after-{job[:3]}", ["true"], after=[job]) for job in (good, bad))
    server.wait_phase(good, "Running")
    assert server.client.get(after_good)["reason"]["code"] == "dependency"
    (tmp_path / "go").touch()
    ended = server.wait_phase(after_good, "Succeeded")
    assert ended["started"] >= server.client.get(good)["finished"]
    server.wait_phase(bad, "Failed")
    wait_view(server, after_bad, phase="Pending")
    server.wait_until(lambda: server.client.get(after_bad)["reason"]["code"] == "dependency-failed")


def test_the_pending_job_with_higher_priority_starts_first(server: RealServer, tmp_path: Path) -> None:
    line = f"echo {{0}} >> {tmp_path}/order"
    blocks = server.submit("blocks", ["sh", "-c", _WAIT.format(tmp_path / "go")], workers=4)
    server.wait_phase(blocks, "Running")
    low, high = (
        server.submit(
            name, ["sh", "-c", f"{line.format(name)}; sleep 0.3"], workers={"min": 4, "max": 4}, priority=rank
        )
        for name, rank in (("low", 1), ("high", 2))
    )
    server.wait_until(lambda: server.client.get(low)["position"] and server.client.get(high)["position"])
    (tmp_path / "go").touch()
    for job in (low, high):
        server.wait_phase(job, "Succeeded")
    assert (tmp_path / "order").read_text().split() == ["high"] * 4 + ["low"] * 4


def put_queue(server: RealServer, name: str, **spec: Any) -> None:
    """Create or change a queue."""
    server.client.put_queue({"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec})


def test_a_queue_borrows_idle_gpus_and_returns_them(server: RealServer) -> None:
    for name in ("red", "blue"):
        put_queue(server, name, guaranteed={"a100": 2})
    red = server.submit("red", _PLAIN, queue="red", workers={"min": 1, "max": 4}, preemptible=True)
    wait_view(server, red, phase="Running", gpus=4)
    blue = server.submit("blue", _PLAIN, queue="blue", workers=2)
    wait_view(server, blue, phase="Running", gpus=2)
    assert wait_view(server, red, phase="Running", gpus=2)["resizes"] >= 1


def test_limits_of_a_queue_and_of_each_of_its_users_hold(server: RealServer) -> None:
    put_queue(server, "small", limit={"a100": 2})
    put_queue(server, "fair", perUserLimit={"a100": 1})
    put_queue(server, "alone", guaranteed={"a100": 1}, borrow=False)
    one, two = (server.submit(f"small-{n}", _PLAIN, queue="small", workers=2) for n in range(2))
    wait_view(server, one, phase="Running", gpus=2)
    server.wait_until(lambda: server.client.get(two)["reason"]["code"] == "queue-limit")
    one, two = (server.submit(f"fair-{n}", _PLAIN, queue="fair") for n in range(2))
    wait_view(server, one, phase="Running")
    server.wait_until(lambda: server.client.get(two)["reason"]["code"] == "user-limit")
    keeps = server.submit("alone", _PLAIN, queue="alone", workers={"min": 1, "max": 3})
    wait_view(server, keeps, phase="Running", gpus=1)
    assert {job["phase"] for job in server.client.jobs() if job["workload"] in ("small-1", "fair-1")} == {"Pending"}
