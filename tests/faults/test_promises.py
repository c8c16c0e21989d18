"""What a job file promises, kept by a real server with real processes: one short story each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.site import Site, site

_OVER = ("Succeeded", "Failed", "Cancelled")
#: Runs until the file that it is given is there.
_WAIT = "until test -e {0}; do sleep 0.2; done; "
_PLAIN = ["sleep", "1000"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("promises")
    (folder / "home").mkdir()
    with site(folder / "home", nodes=("a100=4",)) as here:
        yield here.up()


@pytest.fixture
def here(server: Site) -> Iterator[Site]:
    yield server
    for job in server.client.jobs():
        if job["phase"] not in _OVER:
            server.client.cancel(job["id"])
    server.until(lambda: not server.left() and all(job["phase"] in _OVER for job in server.client.jobs()))


def decisions(here: Site, more: int) -> None:
    """Returns when the policy has decided so often again: each time something that it hears of happens."""
    first = here.client.decisions(1)[-1]["revision"]
    for each in range(more):
        quick = here.submit(f"quick-{each}", ["true"], gpusPerWorker=0)
        here.until_phase(quick, "Succeeded")
    here.until(lambda: here.client.decisions(1)[-1]["revision"] > first)


def settles(here: Site, job: str, **wanted: Any) -> dict[str, Any]:
    """The job when it looks so."""

    def seen() -> dict[str, Any] | None:
        view: dict[str, Any] = dict(here.client.get(job))
        return view if all(view[name] == value for name, value in wanted.items()) else None

    return here.until(seen)


def test_a_script_without_checkpoints_is_left_alone_until_its_first(here: Site) -> None:
    first = here.submit("auto", _PLAIN, workers={"min": 1, "max": 4}, preemptible="auto")
    before = settles(here, first, phase="Running", gpus=4)
    # Not even for somebody who is more important.
    second = here.submit("more", _PLAIN, workers=2, priority=100)
    decisions(here, 3)
    now = here.client.get(first)
    assert (now["gpus"], now["generation"], now["moves"]) == (4, before["generation"], 0)
    assert here.phase(second) == "Pending"
    (here.home / "jobs" / first / "checkpoints" / "model").write_text("weights")
    settles(here, first, phase="Running", gpus=2)
    settles(here, second, phase="Running", gpus=2)


def test_preemptible_true_gives_way_at_once_and_false_never(here: Site) -> None:
    gives = here.submit("gives", _PLAIN, workers={"min": 1, "max": 3}, preemptible=True)
    settles(here, gives, phase="Running", gpus=3)
    keeps = here.submit("keeps", _PLAIN, workers={"min": 1, "max": 2}, preemptible=False)
    before = settles(here, keeps, phase="Running")
    (here.home / "jobs" / keeps / "checkpoints" / "model").write_text("weights")
    wants = here.submit("wants", _PLAIN, workers=1)
    settles(here, wants, phase="Running")
    after = here.client.get(keeps)
    assert (after["gpus"], after["generation"]) == (before["gpus"], before["generation"])
    assert here.client.get(gives)["resizes"] >= 1


def test_retries_are_used_up_and_then_it_has_failed(here: Site, tmp_path: Path) -> None:
    counts = f"echo x >> {tmp_path}/{{0}}; test $(wc -l < {tmp_path}/{{0}}) -ge {{1}} || exit 7"
    lucky = here.submit("lucky", ["sh", "-c", counts.format("lucky", 3)], retries=3)
    unlucky = here.submit("unlucky", ["sh", "-c", counts.format("unlucky", 9)], retries=1)
    ended = here.until_phase(lucky, *_OVER)
    assert (ended["phase"], ended["exit_code"], ended["restarts"]) == ("Succeeded", 0, 2)
    ended = here.until_phase(unlucky, *_OVER)
    assert (ended["phase"], ended["exit_code"], ended["restarts"]) == ("Failed", 7, 1)
    assert (tmp_path / "unlucky").read_text() == "x\nx\n"


def test_a_time_limit_ends_a_job(here: Site) -> None:
    job = here.submit("limited", _PLAIN, timeLimit="1s", checkpoint={"gracePeriod": "1s"}, retries=5)
    ended = here.until_phase(job, *_OVER)
    assert (ended["phase"], ended["reason"]["code"], ended["restarts"]) == ("Failed", "time-limit", 0)
    assert 0.9 < ended["running_s"] < 5


def test_a_job_comes_after_others(here: Site, tmp_path: Path) -> None:
    go = _WAIT.format(tmp_path / "go")
    good = here.submit("good", ["sh", "-c", go])
    bad = here.submit("bad", ["sh", "-c", go + "exit 1"])
    after_good, after_bad = (here.submit(f"after-{job[:3]}", ["true"], after=[job]) for job in (good, bad))
    here.until_phase(good, "Running")
    assert here.client.get(after_good)["reason"]["code"] == "dependency"
    (tmp_path / "go").touch()
    ended = here.until_phase(after_good, "Succeeded")
    assert ended["started"] >= here.client.get(good)["finished"]
    here.until_phase(bad, "Failed")
    settles(here, after_bad, phase="Pending")
    here.until(lambda: here.client.get(after_bad)["reason"]["code"] == "dependency-failed")


def test_the_more_important_of_two_that_wait_goes_first(here: Site, tmp_path: Path) -> None:
    line = f"echo {{0}} >> {tmp_path}/order"
    blocks = here.submit("blocks", ["sh", "-c", _WAIT.format(tmp_path / "go")], workers=4)
    here.until_phase(blocks, "Running")
    low, high = (
        here.submit(name, ["sh", "-c", f"{line.format(name)}; sleep 0.3"], workers={"min": 4, "max": 4}, priority=rank)
        for name, rank in (("low", 1), ("high", 2))
    )
    here.until(lambda: here.client.get(low)["position"] and here.client.get(high)["position"])
    (tmp_path / "go").touch()
    for job in (low, high):
        here.until_phase(job, "Succeeded")
    assert (tmp_path / "order").read_text().split() == ["high"] * 4 + ["low"] * 4


def queue(here: Site, name: str, **spec: Any) -> None:
    """Makes or changes a queue."""
    here.client.put_queue({"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec})


def test_a_queue_borrows_what_others_leave_and_gives_it_back(here: Site) -> None:
    for name in ("red", "blue"):
        queue(here, name, guaranteed={"a100": 2})
    red = here.submit("red", _PLAIN, queue="red", workers={"min": 1, "max": 4}, preemptible=True)
    settles(here, red, phase="Running", gpus=4)
    blue = here.submit("blue", _PLAIN, queue="blue", workers=2)
    settles(here, blue, phase="Running", gpus=2)
    settles(here, red, phase="Running", gpus=2)


def test_limits_of_a_queue_and_of_each_of_its_users_hold(here: Site) -> None:
    queue(here, "small", limit={"a100": 2})
    queue(here, "fair", perUserLimit={"a100": 1})
    queue(here, "alone", guaranteed={"a100": 1}, borrow=False)
    one, two = (here.submit(f"small-{n}", _PLAIN, queue="small", workers=2) for n in range(2))
    settles(here, one, phase="Running", gpus=2)
    here.until(lambda: here.client.get(two)["reason"]["code"] == "queue-limit")
    one, two = (here.submit(f"fair-{n}", _PLAIN, queue="fair") for n in range(2))
    settles(here, one, phase="Running")
    here.until(lambda: here.client.get(two)["reason"]["code"] == "user-limit")
    keeps = here.submit("alone", _PLAIN, queue="alone", workers={"min": 1, "max": 3})
    settles(here, keeps, phase="Running", gpus=1)
    assert {job["phase"] for job in here.client.jobs() if job["workload"] in ("small-1", "fair-1")} == {"Pending"}
