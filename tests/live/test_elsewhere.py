"""Two servers on two machines and one store: jobs that only one of them sees are neither doubled nor lost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from levada.errors import Refused
from levada.live.elsewhere import Elsewhere, Machine
from tests.live.house import document, house
from tests.live.rehearsal import Stage

ONE = Machine(host="one", folder="/s", id="a")
TWO = Machine(host="two", folder="/s", id="b")


async def left_running(url: str, stage: Stage, machine: Machine = ONE) -> str:
    """A job that runs on while its server is dead."""
    async with house(url, stage, machine=machine) as up:
        (job,) = await up.service.submit([document()], user="ann", key=None)
        await up.until(lambda: up.phase(job["id"]) == "Running")
        await up.settle()
        await up.kill()
    return str(job["id"])


def test_a_job_that_only_another_machine_sees_is_left_alone(url: str) -> None:
    async def story() -> None:
        stage, other = Stage(), Stage()
        job = await left_running(url, stage)
        with pytest.raises(Elsewhere, match=f"{job} run on one, .* --take-over one"):
            async with house(url, other, machine=TWO):
                pass
        assert not other.taken
        async with house(url, stage, machine=ONE) as up:
            view = up.service.job(job)
            assert (view["phase"], view["generation"], view["restarts"]) == ("Running", 1, 0)
            assert len(stage.taken) == 1, "it was started once"
            up.backend.finish(job)
            await up.until(lambda: up.phase(job) == "Succeeded")
        async with house(url, other, machine=TWO) as up:
            assert up.phase(job) == "Succeeded"

    asyncio.run(story())


def test_who_stands_by_waits_until_nothing_runs_that_it_cannot_see(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        stage, other = Stage(), Stage()
        job = await left_running(url, stage)
        async with AsyncExitStack() as stack:
            opening = asyncio.create_task(stack.enter_async_context(house(url, other, machine=TWO, wait=True)))
            while "only its own server sees them" not in caplog.text:
                await asyncio.sleep(0.01)
            assert not opening.done()
            async with house(url, stage, machine=ONE) as up:
                assert up.phase(job) == "Running"
                up.backend.finish(job)
                await up.until(lambda: up.phase(job) == "Succeeded")
                assert not opening.done(), "one acts"
            up = await asyncio.wait_for(opening, 30)
            (fresh,) = await up.service.submit([document()], user="ann", key=None)
            await up.until(lambda: up.phase(fresh["id"]) == "Running")
            assert [op.job for op in other.taken] == [fresh["id"]]

    asyncio.run(story())


def test_an_operator_may_say_that_a_machine_is_gone(url: str) -> None:
    async def story() -> None:
        other = Stage()
        job = await left_running(url, Stage())
        with pytest.raises(Elsewhere):
            async with house(url, other, machine=TWO, gone="three"):
                pass
        async with house(url, other, machine=TWO, gone="one") as up:
            await up.until(lambda: up.phase(job) == "Running")
            assert [op.job for op in other.taken] == [job]
            await up.kill()
        # From now on it is the first one that cannot see it.
        with pytest.raises(Elsewhere, match="run on two"):
            async with house(url, Stage(), machine=ONE):
                pass

    asyncio.run(story())


@pytest.mark.parametrize(
    "then",
    [
        # Its folder is found again, though the machine has another name, as a container has each time, or it was moved.
        Machine(host="renamed", folder="/s", id="a"),
        Machine(host="one", folder="/t", id="a"),
    ],
)
def test_who_sees_them_goes_on(sqlite_url: str, then: Machine) -> None:
    async def story() -> None:
        stage = Stage()
        job = await left_running(sqlite_url, stage)
        async with house(sqlite_url, stage, machine=then) as up:
            assert up.phase(job) == "Running"
            assert len(stage.taken) == 1

    asyncio.run(story())


def test_another_folder_is_another_server_though_machine_and_path_have_the_same_name(sqlite_url: str) -> None:
    async def story() -> None:
        job = await left_running(sqlite_url, Stage())
        with pytest.raises(Refused, match=f"run in the folder /s of this machine .{job}.; go on there with --state /s"):
            async with house(sqlite_url, Stage(), machine=Machine(host="one", folder="/s", id="c")):
                pass

    asyncio.run(story())
