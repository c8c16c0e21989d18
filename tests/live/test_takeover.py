"""Takeover between two machines: jobs are neither started twice nor lost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from levada.errors import Refused
from levada.live.takeover import JobsRunElsewhere, ServerLocation
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import document, live_server

ONE = ServerLocation(host="one", folder="/s", id="a")
TWO = ServerLocation(host="two", folder="/s", id="b")


async def left_running(url: str, machines: FakeMachines, machine: ServerLocation = ONE) -> str:
    """A job that runs while its server is dead."""
    async with live_server(url, machines, machine=machine) as up:
        (job,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(job["id"]) == "Running")
        await up.settle()
        await up.kill()
    return str(job["id"])


async def test_a_job_running_on_another_machine_is_not_touched(url: str) -> None:
    machines, other = FakeMachines(), FakeMachines()
    job = await left_running(url, machines)
    with pytest.raises(JobsRunElsewhere, match=f"{job} run on one or .* --take-over one"):
        async with live_server(url, other, machine=TWO):
            pass
    assert not other.taken
    async with live_server(url, machines, machine=ONE) as up:
        view = up.service.jobs.get(job)
        assert (view["phase"], view["generation"], view["restarts"]) == ("Running", 1, 0)
        assert len(machines.taken) == 1, "it was started once"
        up.backend.finish(job)
        await up.until(lambda: up.phase(job) == "Succeeded")
    async with live_server(url, other, machine=TWO) as up:
        assert up.phase(job) == "Succeeded"


async def test_a_standby_waits_until_no_job_runs_elsewhere(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    machines, other = FakeMachines(), FakeMachines()
    job = await left_running(url, machines)
    async with AsyncExitStack() as stack:
        opening = asyncio.create_task(stack.enter_async_context(live_server(url, other, machine=TWO, wait=True)))
        while "only its own server sees them" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not opening.done()
        async with live_server(url, machines, machine=ONE) as up:
            assert up.phase(job) == "Running"
            up.backend.finish(job)
            await up.until(lambda: up.phase(job) == "Succeeded")
            assert not opening.done(), "one acts"
        up = await asyncio.wait_for(opening, 30)
        (fresh,) = await up.service.submissions.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(fresh["id"]) == "Running")
        assert [op.job for op in other.taken] == [fresh["id"]]


async def test_an_operator_can_force_a_takeover(url: str) -> None:
    other = FakeMachines()
    job = await left_running(url, FakeMachines())
    with pytest.raises(JobsRunElsewhere):
        async with live_server(url, other, machine=TWO, gone="three"):
            pass
    async with live_server(url, other, machine=TWO, gone="one") as up:
        await up.until(lambda: up.phase(job) == "Running")
        assert [op.job for op in other.taken] == [job]
        await up.kill()
    # Now the first server does not see the job.
    with pytest.raises(JobsRunElsewhere, match="run on two"):
        async with live_server(url, FakeMachines(), machine=ONE):
            pass


@pytest.mark.parametrize(
    "then",
    [
        # The folder is recognized under another host name or path, e.g. in a new container.
        ServerLocation(host="renamed", folder="/s", id="a"),
        ServerLocation(host="one", folder="/t", id="a"),
    ],
)
async def test_a_server_that_sees_the_jobs_continues_them(sqlite_url: str, then: ServerLocation) -> None:
    machines = FakeMachines()
    job = await left_running(sqlite_url, machines)
    async with live_server(sqlite_url, machines, machine=then) as up:
        assert up.phase(job) == "Running"
        assert len(machines.taken) == 1


async def test_another_state_folder_is_another_server_even_at_the_same_path(sqlite_url: str) -> None:
    job = await left_running(sqlite_url, FakeMachines())
    with pytest.raises(Refused, match=f"run in /s on this machine .{job}.; use --state-dir /s"):
        async with live_server(sqlite_url, FakeMachines(), machine=ServerLocation(host="one", folder="/s", id="c")):
            pass
