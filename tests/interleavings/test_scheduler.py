"""The scheduler: order by seed, virtual time, and killed and frozen processes."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.interleavings.scheduler import SeededLoop, run


def _order(seed: int) -> str:
    async def main(_loop: SeededLoop) -> str:
        done: list[str] = []

        async def say(name: str) -> None:
            await asyncio.to_thread(done.append, name)

        await asyncio.gather(*(say(name) for name in "abcd"))
        return "".join(done)

    return run(seed, main)


def test_a_seed_decides_the_order() -> None:
    assert [_order(seed) for seed in range(20)] == [_order(seed) for seed in range(20)]
    assert len({_order(seed) for seed in range(200)}) == 24


def test_virtual_time_advances_for_all_clocks() -> None:
    async def main(_loop: SeededLoop) -> tuple[float, float]:
        wall, counted = time.time(), time.monotonic()
        await asyncio.sleep(7200.0)
        return time.time() - wall, time.monotonic() - counted

    assert run(1, main) == (7200.0, 7200.0)


def test_the_effect_of_a_thread_may_precede_its_result() -> None:
    async def main(_loop: SeededLoop) -> float:
        at: list[float] = []
        await asyncio.to_thread(lambda: at.append(time.monotonic()))
        return time.monotonic() - at[0]

    assert max(run(seed, main) for seed in range(100)) > 0.5


def test_a_killed_process_runs_nothing() -> None:
    done: list[str] = []

    async def victim() -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            done.append("finally")

    async def main(loop: SeededLoop) -> None:
        loop.spawn("victim", victim())
        await asyncio.sleep(0.5)
        loop.kill("victim")
        await asyncio.sleep(10.0)
        assert done == []

    run(1, main)


def test_a_frozen_process_continues_when_released() -> None:
    async def main(loop: SeededLoop) -> list[float]:
        at: list[float] = []

        async def work() -> None:
            await asyncio.sleep(1.0)
            at.append(time.monotonic())

        loop.spawn("frozen", work())
        await asyncio.sleep(0.5)
        loop.freeze("frozen")
        await asyncio.sleep(4.5)
        assert at == []
        loop.release("frozen")
        await asyncio.sleep(1.0)
        return at

    assert run(1, main) == [5.0]


def test_a_deadlock_is_distinguished_from_slow_tasks() -> None:
    async def main(loop: SeededLoop) -> None:
        await loop.create_future()

    with pytest.raises(AssertionError, match="waits forever"):
        run(1, main)
